//! Beam search above the batcher. The scores themselves are compared with those of transformers in `integration-tests`.

use futures::future::join_all;
use text_generation_mock_shard::MockRow;

use super::recovery::ids;
use super::*;
use crate::tenant::{Grant, Tenant};

const PERMITS: usize = 16;

/// The most likely token follows from the whole text; the next ones are those above it, each less likely by one.
fn by_text() -> MockConfig {
    let token = |row: &MockRow| 40 + row.ids.iter().sum::<u32>() * 7 % 250;
    MockConfig {
        tokens: Arc::new(token),
        ..mock_config()
    }
}

fn searched(prompt: u32, max_new_tokens: u32, width: u32) -> GenerateRequest {
    let ids = (0..prompt).map(|n| 10 + n % 200).collect();
    let asked = GenerateRequest {
        inputs: Inputs::Ids(ids),
        ..request("", max_new_tokens)
    };
    with(asked, |p| p.beam_width = Some(width))
}

async fn search(server: &Server, asked: GenerateRequest) -> Vec<GenerateAnswer> {
    let width = asked.parameters.beam_width.unwrap();
    let streams = server.infer.generate_group(group(asked, width)).await;
    let answers = join_all(streams.unwrap().into_iter().map(GenerateStream::gather)).await;
    answers.into_iter().map(Result::unwrap).collect()
}

fn scores(answers: &[GenerateAnswer]) -> Vec<f32> {
    let scores = answers.iter().map(|answer| answer.generated.beam_score);
    scores.map(Option::unwrap).collect()
}

#[tokio::test]
async fn beams_share_what_they_begin_with() {
    let server = Server::start(by_text(), batch_limits(), PERMITS).await;
    let answers = search(&server, searched(100, 5, 3)).await;
    // Plans that only tell of rows that are free have none.
    let steps = server.mock.steps();
    let chunks = steps.iter().map(|step| step.chunk_tokens);
    let chunks: Vec<_> = chunks.filter(|&tokens| tokens > 0).collect();
    assert_eq!(chunks, [100, 3, 3, 3, 3]);
    // The best takes the likeliest of each step, and the others one that is less likely by one.
    assert_eq!(scores(&answers), [-0.5, -0.7, -0.7]);
    for answer in &answers {
        let sum: f32 = answer.tokens.iter().filter_map(|token| token.logprob).sum();
        assert_eq!(answer.generated.beam_score, Some(sum / 5.0));
        assert_eq!(answer.generated.finish_reason, FinishReason::Length);
        assert_eq!((answer.input_length, answer.cached_tokens), (100, 0));
    }
    assert_ne!(ids(&answers[0]), ids(&answers[1]));
    // The prompt is there the next time.
    let again = search(&server, searched(100, 5, 3)).await;
    assert_eq!(again[0].cached_tokens, 99);
    assert_eq!(ids(&again[2]), ids(&answers[2]));
    server.assert_clean(PERMITS).await;
}

#[tokio::test]
async fn the_best_comes_first_and_comes_alone_in_a_stream() {
    let server = Server::start(by_text(), batch_limits(), PERMITS).await;
    let whole = search(&server, searched(20, 4, 3)).await;
    let streams = server
        .infer
        .generate_group(group(searched(20, 4, 3), 3))
        .await;
    let (best, others) = gather_best(streams.unwrap()).await.unwrap();
    assert_eq!(ids(&best), ids(&whole[0]));
    assert_eq!(
        others.iter().map(ids).collect::<Vec<_>>(),
        [ids(&whole[1]), ids(&whole[2])]
    );
    let stream = server
        .infer
        .generate_stream(searched(20, 4, 3))
        .await
        .unwrap();
    assert_eq!(ids(&stream.gather().await.unwrap()), ids(&whole[0]));
    server.assert_clean(PERMITS).await;
}

#[tokio::test]
async fn alternatives_and_the_prompt_come_with_the_texts() {
    let server = Server::start(by_text(), batch_limits(), PERMITS).await;
    let asked = with(searched(20, 4, 2), |p| {
        p.top_n_tokens = Some(2);
        p.decoder_input_details = true;
    });
    for answer in search(&server, asked).await {
        let tops: Vec<usize> = answer.top_tokens.iter().map(Vec::len).collect();
        assert_eq!(tops, [2, 2, 2, 2]);
        assert_eq!(answer.prefill.len(), 20);
    }
    let answers = search(&server, searched(20, 4, 2)).await;
    assert!(answers[0].top_tokens.is_empty() && answers[0].prefill.is_empty());
}

#[tokio::test]
async fn a_stop_string_ends_a_text_and_the_others_go_on() {
    let server = Server::start(by_text(), batch_limits(), PERMITS).await;
    let free = search(&server, searched(20, 6, 2)).await;
    let stop = free[0].tokens[2].text.clone();
    let asked = with(searched(20, 6, 2), |p| {
        p.stop = vec![stop.clone()];
        p.early_stopping = serde_json::from_str("\"never\"").unwrap();
    });
    let answers = search(&server, asked).await;
    let stopped = answers
        .iter()
        .find(|answer| answer.tokens.len() == 3)
        .unwrap();
    assert_eq!(stopped.generated.finish_reason, FinishReason::StopSequence);
    assert_eq!(stopped.generated.stop_sequence.as_ref(), Some(&stop));
    assert_eq!(ids(stopped), ids(&free[0])[..3]);
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_search() {
    let server = Server::start(by_text(), batch_limits(), PERMITS).await;
    server.mock.hold();
    let streams = server
        .infer
        .generate_group(group(searched(20, 900, 4), 2))
        .await;
    let streams = streams.unwrap();
    assert_eq!(server.infer.snapshot().permits_available, PERMITS - 4);
    server.run_steps(3).await;
    drop(streams);
    server.mock.resume();
    server.assert_clean(PERMITS).await;
    let steps = server.mock.steps().len();
    assert!(steps < 8, "{steps} steps");
}

#[tokio::test]
async fn a_beam_that_fails_fails_the_search_and_nobody_else() {
    let server = Server::start(by_text(), batch_limits(), PERMITS).await;
    server.mock.hold();
    let streams = server
        .infer
        .generate_group(group(searched(20, 9, 2), 2))
        .await;
    let other = server
        .infer
        .generate_stream(request("once", 9))
        .await
        .unwrap();
    // 0 is the first step of the search and 1 the other request.
    server.mock.fail_request(3);
    server.mock.resume();
    let failed = join_all(streams.unwrap().into_iter().map(GenerateStream::gather)).await;
    for outcome in failed {
        assert!(matches!(outcome, Err(InferError::Generation(_))));
    }
    assert_eq!(other.gather().await.unwrap().tokens.len(), 9);
    server.assert_clean(PERMITS).await;
}

#[tokio::test]
async fn a_search_goes_on_where_shards_are_lost() {
    let calm = Server::start(by_text(), batch_limits(), PERMITS).await;
    let expected = search(&calm, searched(40, 12, 3)).await;
    let server = Server::start(by_text(), batch_limits(), PERMITS).await;
    server.mock.hold();
    let streams = server
        .infer
        .generate_group(group(searched(40, 12, 3), 3))
        .await;
    server.run_steps(4).await;
    server.mock.kill();
    server.until_recovered(1).await;
    server.mock.resume();
    let answers = join_all(streams.unwrap().into_iter().map(GenerateStream::gather)).await;
    for (answer, expected) in answers.into_iter().zip(&expected) {
        let answer = answer.unwrap();
        assert_eq!(ids(&answer), ids(expected));
        assert_eq!(answer.generated.beam_score, expected.generated.beam_score);
    }
    server.assert_clean(PERMITS).await;
}

#[tokio::test]
async fn a_search_keeps_its_place_in_the_queue() {
    let limits = BatchLimits {
        max_batch_size: 1,
        ..batch_limits()
    };
    let server = Server::start(by_text(), limits, PERMITS).await;
    server.mock.hold();
    let searched = group(searched(20, 2, 2), 1);
    let search = server.infer.generate_group(searched).await.unwrap();
    let others = server
        .streams([request("once", 3), request("twice", 50)])
        .await;
    // Its prompt, one of the others at most, and its beams one after the other: the last waits longer.
    server.mock.release(1 + 3 + 2);
    let search = join_all(search.into_iter().map(GenerateStream::gather));
    assert_eq!(within_a_minute(search).await.len(), 1);
    server.mock.resume();
    join_all(others.into_iter().map(GenerateStream::gather)).await;
    server.assert_clean(PERMITS).await;
}

#[tokio::test]
async fn all_beams_are_their_tenants() {
    let server = Server::start(by_text(), batch_limits(), PERMITS).await;
    let tenant = Tenant::new(
        "acme",
        Grant {
            max_concurrent_requests: Some(3),
            tokens_per_minute: Some(40),
            ..Grant::default()
        },
    );
    let asked = |width| with(searched(20, 10, width), |p| p.tenant = tenant.clone());
    let refused = server
        .infer
        .generate_group(group(asked(4), 1))
        .await
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("`beam_width` must be > 0 and <= 3"),
        "{refused}"
    );
    // 20 tokens of the prompt and 28 of the beams are more than there are.
    search(&server, asked(3)).await;
    let refused = server
        .infer
        .generate_group(group(asked(1), 1))
        .await
        .unwrap_err();
    assert!(
        matches!(
            refused,
            InferError::Overloaded(Overload::TenantTokens { .. })
        ),
        "{refused}"
    );
}

#[tokio::test]
async fn what_a_server_cannot_search_is_refused() {
    let server = Server::start(by_text(), batch_limits(), PERMITS).await;
    let message = async |server: &Server, asked| {
        let refused = server.infer.generate_stream(asked).await.unwrap_err();
        refused.to_string()
    };
    let wide = message(&server, searched(20, 4, 9)).await;
    assert!(wide.contains("`beam_width` must be >= 1 and <= 8 (`--max-beam-width`). Given: 9"));
    let ends = with(searched(20, 4, 8), |p| {
        p.stop_token_ids = Some((0..15).collect())
    });
    let ends = message(&server, ends).await;
    assert!(
        ends.contains("`beam_width` must be <= 4 in a model and a request with 16"),
        "{ends}"
    );
    let limits = BatchLimits {
        prefix_caching: false,
        ..batch_limits()
    };
    let uncached = Server::start(by_text(), limits, PERMITS).await;
    let uncached = message(&uncached, searched(20, 4, 2)).await;
    assert!(
        uncached.contains("`--prefix-caching` is false"),
        "{uncached}"
    );
}
