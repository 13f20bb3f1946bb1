//! Outputs that follow grammars.

#[path = "../../../../grammar/tests/common/ambiguous.rs"]
mod ambiguous;

use std::hash::{DefaultHasher, Hash, Hasher};

use futures::future::join_all;
use serde_json::{Value, json};
use text_generation_grammar::GrammarError;

use self::ambiguous::ambiguous;
use super::*;

/// Tokens as random as the seed of the request.
pub(super) fn random() -> MockConfig {
    MockConfig {
        tokens: Arc::new(|row| {
            let mut hasher = DefaultHasher::new();
            (row.seed, row.generated).hash(&mut hasher);
            hasher.finish() as u32 % VOCAB
        }),
        ..mock_config()
    }
}

/// Every request wants to end at once.
fn ending() -> MockConfig {
    MockConfig {
        tokens: Arc::new(|_| 0),
        ..mock_config()
    }
}

pub(super) fn schema() -> GrammarSource {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 4},
            "size": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "size"],
        "additionalProperties": false,
    });
    GrammarSource::json_schema(schema, true).unwrap()
}

fn regex(regex: &str) -> GrammarSource {
    GrammarSource::Regex(regex.to_owned())
}

/// A sampling request whose answer follows a grammar.
pub(super) fn following(grammar: GrammarSource, max_new_tokens: u32, seed: u64) -> GenerateRequest {
    with(request("once", max_new_tokens), |p| {
        (p.do_sample, p.seed, p.grammar) = (true, Some(seed), Some(grammar));
    })
}

/// The text, whether it ended by itself, and the number of its tokens.
async fn answer(server: &Server, request: GenerateRequest) -> (String, FinishReason, u32) {
    let generated = server.infer.generate(request).await.unwrap().generated;
    let (reason, tokens) = (generated.finish_reason, generated.generated_tokens);
    (generated.text, reason, tokens)
}

fn most_constrained(server: &Server) -> usize {
    let steps = server.mock.steps();
    steps.iter().map(|step| step.constrained).max().unwrap_or(0)
}

#[tokio::test]
async fn what_ends_by_itself_is_valid_and_the_same_alone_as_among_others() {
    let config = MockConfig {
        world_size: 2,
        ..random()
    };
    let server = Server::start(config, batch_limits(), 64).await;
    let asked = |seed| answer(&server, following(schema(), 40, seed));
    let answers = join_all((0..24).map(asked)).await;
    let ended: Vec<&String> = answers
        .iter()
        .filter(|(_, reason, _)| *reason == FinishReason::EosToken)
        .map(|(text, ..)| text)
        .collect();
    assert!(ended.len() > 5, "{answers:?}");
    for text in &ended {
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(value["name"].as_str().unwrap().chars().count() <= 4);
        assert!(value["size"].as_u64().unwrap() <= 99);
    }
    let texts: std::collections::BTreeSet<_> = ended.iter().collect();
    assert!(texts.len() > 3, "seeds make no difference: {texts:?}");
    assert!(most_constrained(&server) > 1);
    assert_eq!(asked(7).await, answers[7]);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn those_without_a_grammar_choose_as_ever_and_never_wait_alone() {
    let server = Server::start(random(), batch_limits(), 64).await;
    let free = |seed| {
        let asked = with(request("upon", 30), |p| {
            (p.do_sample, p.seed) = (true, Some(seed))
        });
        answer(&server, asked)
    };
    let alone = join_all((0..4).map(free)).await;
    assert_eq!(most_constrained(&server), 0);
    let constrained = join_all((0..4).map(|seed| answer(&server, following(schema(), 30, seed))));
    let (beside, _) = futures::join!(join_all((0..4).map(free)), constrained);
    assert_eq!(alone, beside);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn samples_follow_one_grammar_with_seeds_of_their_own() {
    let server = Server::start(random(), batch_limits(), 8).await;
    let streams = server
        .infer
        .generate_group(group(following(schema(), 40, 3), 3))
        .await;
    let samples = join_all(streams.unwrap().into_iter().map(GenerateStream::gather)).await;
    for (seed, sample) in (3..).zip(samples) {
        let alone = answer(&server, following(schema(), 40, seed)).await;
        assert_eq!(sample.unwrap().generated.text, alone.0);
    }
    server.assert_clean(8).await;
}

#[tokio::test]
async fn the_end_is_where_the_grammar_allows_it() {
    let server = Server::start(ending(), batch_limits(), 8).await;
    let asked = |grammar: &str, change: fn(&mut GenerateParameters)| {
        answer(&server, with(following(regex(grammar), 9, 0), change))
    };
    // `!` has the lowest id of those that are allowed.
    let (eos, length) = (FinishReason::EosToken, FinishReason::Length);
    let text = |text: &str, reason, tokens| (text.to_owned(), reason, tokens);
    assert_eq!(asked("!{2,4}", |_| {}).await, text("!!", eos, 3));
    // What can only end has ended, without a token for it.
    assert_eq!(asked("!{3}", |_| {}).await, text("!!!", eos, 3));
    assert_eq!(asked("!{9}", |_| {}).await, text("!!!!!!!!!", eos, 9));
    assert_eq!(asked("!{10}", |_| {}).await, text("!!!!!!!!!", length, 9));
    // The end of a grammar is meant, whatever was asked for.
    assert_eq!(
        asked("!{2,4}", |p| p.ignore_eos = true).await,
        text("!!", eos, 3)
    );
    assert_eq!(
        asked("!{2,4}", |p| p.min_new_tokens = Some(3)).await,
        text("!!!", eos, 4)
    );
    assert_eq!(
        asked("!{2,4}", |p| p.min_new_tokens = Some(9)).await,
        text("!!!!", eos, 4)
    );
    assert_eq!(
        asked("(!{0})", |p| p.min_new_tokens = Some(9)).await,
        text("", eos, 1)
    );
    let stop: fn(&mut GenerateParameters) = |p| p.stop = vec!["!!".to_owned()];
    assert_eq!(
        asked("!{5}", stop).await,
        text("!!", FinishReason::StopSequence, 2)
    );
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_client_that_goes_leaves_nothing_behind() {
    let server = Server::start(ending(), batch_limits(), 8).await;
    let mut gone = server
        .infer
        .generate_stream(following(regex("!{900}"), 900, 0))
        .await
        .unwrap();
    let staying = server
        .infer
        .generate_stream(following(regex("!{100}"), 900, 0))
        .await
        .unwrap();
    next_token(&mut gone).await;
    drop(gone);
    assert_eq!(
        staying.gather().await.unwrap().generated.generated_tokens,
        100
    );
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_grammar_that_cannot_be_followed_fails_alone() {
    let config = MockConfig {
        ignores_masks_of: Some(1),
        ..ending()
    };
    let server = Server::start(config, batch_limits(), 8).await;
    let asked = |_| server.infer.generate(following(regex("!{20}"), 30, 0));
    let answers = join_all((0..3).map(asked)).await;
    let free = server.infer.generate(request("once", 5));
    assert_eq!(free.await.unwrap().generated.generated_tokens, 1);
    let (whole, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    let whole = whole.into_iter().flatten();
    let tokens: Vec<u32> = whole
        .map(|answer| answer.generated.generated_tokens)
        .collect();
    assert_eq!(tokens, [20, 20]);
    for error in failed.into_iter().filter_map(Result::err) {
        assert_eq!(error.error_type(), "grammar", "{error}");
        assert_eq!(error, InferError::Grammar(GrammarError::Rejected { id: 0 }));
    }
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_token_that_costs_its_grammar_too_much_ends_its_request_while_the_others_go_on() {
    let server = Server::start(repeating("a"), batch_limits(), 8).await;
    server.mock.hold();
    let requests = [
        following(ambiguous(), 100, 0),
        request("once", 400),
        following(regex("a{400}"), 400, 0),
    ];
    let streams = server.streams(requests).await;
    server.mock.resume();
    let outcomes = join_all(streams.into_iter().map(GenerateStream::gather)).await;
    let [slow, free, held] = outcomes.try_into().unwrap();
    // Of time on a slow machine, of the parser's items on a fast one.
    let error = slow.unwrap_err();
    assert!(
        matches!(error, InferError::Grammar(GrammarError::OutOfFuel { .. })),
        "{error}"
    );
    for whole in [free, held] {
        let generated = whole.unwrap().generated;
        assert_eq!(generated.generated_tokens, 400);
        assert_eq!(generated.text, "a".repeat(400));
    }
    server.assert_clean(8).await;
}

#[tokio::test]
async fn steps_and_masks_that_fail_harm_nobody_who_comes_later() {
    let server = Server::start(ending(), batch_limits(), 8).await;
    let fail: [fn(&MockShard); 2] = [
        |mock| mock.fail_next_step("no luck"),
        |mock| mock.fail_next_masks("no luck"),
    ];
    for fail in fail {
        server.mock.hold();
        let asked = (0..3).map(|_| following(regex("!{50}"), 60, 0));
        let mut streams = server.streams(asked).await;
        server.mock.release(3);
        for stream in &mut streams {
            next_token(stream).await;
        }
        fail(&server.mock);
        server.mock.resume();
        for outcome in join_all(streams.into_iter().map(GenerateStream::gather)).await {
            let message = outcome.unwrap_err().to_string();
            assert!(message.contains("no luck"), "{message}");
        }
        server.assert_clean(8).await;
        let answer = answer(&server, following(regex("!{5}"), 9, 0)).await;
        assert_eq!(answer.2, 5);
    }
    server.assert_clean(8).await;
}

#[tokio::test]
async fn no_more_run_than_there_are_mask_slots_for_and_others_pass() {
    let config = MockConfig {
        max_masks: 5,
        ..ending()
    };
    let server = Server::start(config, batch_limits(), 64).await;
    server.mock.hold();
    let asked = (0..6).map(|digit| following(regex(&format!("({digit}!){{20}}")), 60, 0));
    let streams = server.streams(asked).await;
    let free = server.infer.generate_stream(request("once", 5)).await;
    until("all are there", || {
        let gauges = server.infer.snapshot();
        gauges.queued + gauges.running == 7
    })
    .await;
    // Far too few steps for any of the others.
    server.mock.release(8);
    free.unwrap().gather().await.unwrap();
    assert!(server.infer.snapshot().queued > 0);
    server.mock.resume();
    for (digit, stream) in (0..).zip(streams) {
        let text = stream.gather().await.unwrap().generated.text;
        assert_eq!(text, format!("{digit}!").repeat(20));
    }
    assert_eq!(most_constrained(&server), 2);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn without_mask_slots_grammars_are_not_supported() {
    let config = MockConfig {
        max_masks: 2,
        ..ending()
    };
    let server = Server::start(config, batch_limits(), 8).await;
    let error = server
        .infer
        .generate(following(schema(), 9, 0))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "Input validation error: grammar is not supported"
    );
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_bad_grammar_is_refused_and_says_why() {
    let server = Server::default().await;
    let refused = async |grammar| {
        let error = server
            .infer
            .generate(following(grammar, 9, 0))
            .await
            .unwrap_err();
        assert_eq!(error.error_type(), "validation");
        let InferError::Validation(invalid) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(invalid.field(), Some("grammar"));
        error.to_string()
    };
    let message = refused(regex("(")).await;
    assert!(
        message.starts_with("Input validation error: `grammar` is not valid: the regex"),
        "{message}"
    );
    let schema = json!({"type": "object", "properties": {"a": {"type": "nothing"}}});
    let message = refused(GrammarSource::json_schema(schema, true).unwrap()).await;
    assert!(message.contains("the JSON schema"), "{message}");
    server.assert_clean(128).await;
}
