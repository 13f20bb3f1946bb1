//! Outputs that follow grammars on shards that draft: the same text, in fewer steps where tokens are forced or predicted.

use futures::future::join_all;
use serde_json::{Value, json};

use super::grammars::{following, random, schema};
use text_generation_mock_shard::MockRow;

use super::windows::{all, drafting, none};
use super::*;
use crate::types::GeneratedText;

/// Much of it is forced.
fn record() -> GrammarSource {
    let text = json!({"type": "string", "maxLength": 3, "pattern": "^[a-c]*$"});
    let number = json!({"type": "integer", "minimum": 10, "maximum": 99});
    let schema = json!({
        "type": "object",
        "properties": {"first_name": text, "last_name": text, "number_of_pets": number},
        "required": ["first_name", "last_name", "number_of_pets"],
        "additionalProperties": false,
    });
    GrammarSource::json_schema(schema, true).unwrap()
}

/// As [`drafting`], of many requests.
async fn drafting_many(right: fn(&MockRow, u32) -> u32) -> Server {
    let config = MockConfig {
        widths: vec![2, 4],
        drafts: Arc::new(right),
        ..random()
    };
    Server::start(config, batch_limits(), 64).await
}

async fn generated(server: &Server, request: GenerateRequest) -> GeneratedText {
    server.infer.generate(request).await.unwrap().generated
}

async fn texts(
    server: &Server,
    requests: impl IntoIterator<Item = GenerateRequest>,
) -> Vec<String> {
    let asked = requests.into_iter().map(|each| generated(server, each));
    let answers = join_all(asked).await;
    answers.into_iter().map(|answer| answer.text).collect()
}

fn mixture() -> Vec<GenerateRequest> {
    let grammars = |seed: u64| {
        let grammar = match seed % 3 {
            0 => record(),
            1 => schema(),
            _ => GrammarSource::Regex("(once upon a time, |the end )[a-z]{3,9}\\.".to_owned()),
        };
        following(grammar, 20 + 7 * seed as u32, seed)
    };
    let free = |seed: u64| {
        with(request("upon", 30), |p| {
            (p.do_sample, p.seed) = (true, Some(seed));
            p.bad_words = seed.is_multiple_of(2).then(|| vec!["a".to_owned()]);
        })
    };
    (0..12).map(grammars).chain((0..4).map(free)).collect()
}

#[tokio::test]
async fn texts_are_those_of_single_tokens_whoever_drafts() {
    let plain = Server::start(random(), batch_limits(), 64).await;
    let expected = texts(&plain, mixture()).await;
    assert!(expected.iter().any(|text| text.contains("first_name")));
    for right in [all, none] {
        let server = drafting_many(right).await;
        assert_eq!(texts(&server, mixture()).await, expected);
        let wide = server.mock.steps().into_iter();
        assert!(
            wide.filter(|step| step.width > 1 && step.constrained > 0)
                .count()
                > 5
        );
        server.assert_clean(64).await;
    }
}

#[tokio::test]
async fn forced_tokens_take_fewer_steps() {
    let asked = || following(record(), 100, 5);
    let plain = Server::start(random(), batch_limits(), 8).await;
    let expected = generated(&plain, asked()).await;
    let value: Value = serde_json::from_str(&expected.text).unwrap();
    assert!(value["number_of_pets"].as_u64().unwrap() >= 10, "{value}");
    let server = drafting(random(), none).await;
    let found = generated(&server, asked()).await;
    assert_eq!(found.text, expected.text);
    assert_eq!(found.generated_tokens, expected.generated_tokens);
    assert!(found.speculated.accepted > 20, "{:?}", found.speculated);
    let steps = |server: &Server| server.mock.steps().len();
    let (steps, before) = (steps(&server), steps(&plain));
    assert!(3 * steps < 2 * before, "{steps} and {before}");
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_prediction_is_followed_under_a_grammar() {
    let asked = || following(record(), 100, 5);
    let plain = drafting(random(), none).await;
    let expected = generated(&plain, asked()).await;
    let server = drafting(random(), none).await;
    let predicting = with(asked(), |p| {
        p.prediction = Some(Inputs::from(expected.text.as_str()));
    });
    let found = generated(&server, predicting).await;
    assert_eq!(found.text, expected.text);
    assert!(found.predicted.unwrap().accepted > 20);
    let steps = |server: &Server| server.mock.steps().len();
    assert!(steps(&server) < steps(&plain));
    // One that the grammar forbids is no worse than none.
    let wrong = with(asked(), |p| p.prediction = Some(Inputs::from("[1, 2, 3]")));
    assert_eq!(generated(&server, wrong).await.text, expected.text);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn bad_words_are_in_no_window() {
    let asked = || {
        with(request("once", 40), |p| {
            (p.ignore_eos, p.bad_words) = (true, Some(vec!["b".to_owned()]));
        })
    };
    let plain = Server::start(repeating("abc"), batch_limits(), 8).await;
    let expected = generated(&plain, asked()).await.text;
    assert!(
        !expected.contains('b') && expected.contains('a'),
        "{expected}"
    );
    let server = drafting(repeating("abc"), all).await;
    for prediction in ["abc".repeat(20), expected.clone()] {
        let request = with(asked(), |p| {
            p.prediction = Some(Inputs::from(prediction.as_str()))
        });
        assert_eq!(generated(&server, request).await.text, expected);
    }
    let wide = server.mock.steps().into_iter();
    assert!(
        wide.filter(|step| step.width > 1 && step.constrained > 0)
            .count()
            > 3
    );
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_constrained_stream_leaves_the_windows_of_others_alone() {
    let server = drafting(random(), all).await;
    let free = || with(request("upon", 400), |p| p.ignore_eos = true);
    let constrained = following(GrammarSource::Regex("[a-z]{60}".to_owned()), 60, 3);
    let alone = generated(&server, free()).await;
    let before = server.mock.steps().len();
    let (beside, long) =
        futures::join!(generated(&server, free()), generated(&server, constrained));
    assert_eq!((&beside.text, long.text.len()), (&alone.text, 60));
    let both = server.mock.steps()[before..]
        .iter()
        .filter(|step| step.width > 1 && step.constrained > 0)
        .count();
    assert!(both > 5, "{both}");
    server.assert_clean(8).await;
}

#[tokio::test]
async fn few_mask_slots_and_a_small_pool_change_no_text() {
    let plain = Server::start(random(), batch_limits(), 64).await;
    let expected = texts(&plain, mixture()).await;
    let config = MockConfig {
        widths: vec![2, 4],
        drafts: Arc::new(all),
        max_masks: 8,
        ..random()
    };
    let limits = BatchLimits {
        max_batch_total_tokens: 120,
        ..batch_limits()
    };
    let server = Server::start(config, limits, 64).await;
    assert_eq!(texts(&server, mixture()).await, expected);
    let wide = server.mock.steps().into_iter();
    let wide = wide.filter(|step| step.width > 1 && step.constrained > 0);
    assert!(wide.count() > 0);
    server.assert_clean(64).await;
}
