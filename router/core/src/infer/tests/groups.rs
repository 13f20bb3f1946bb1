//! Samples that share a prompt.

use futures::future::join_all;

use super::*;

/// Each seed generates its own token, over and over, and as many of them as the seed says.
fn by_seed() -> MockConfig {
    MockConfig {
        tokens: Arc::new(|row| {
            if u64::from(row.generated) < row.seed {
                40 + row.seed as u32
            } else {
                0
            }
        }),
        ..mock_config()
    }
}

fn sampled(inputs: &str, max_new_tokens: u32, seed: u64) -> GenerateRequest {
    with(request(inputs, max_new_tokens), |p| {
        (p.do_sample, p.seed) = (true, Some(seed));
    })
}

fn ids(answer: &GenerateAnswer) -> Vec<u32> {
    answer.tokens.iter().map(|token| token.id).collect()
}

async fn gather(streams: Vec<GenerateStream>) -> Vec<GenerateAnswer> {
    let answers = join_all(streams.into_iter().map(GenerateStream::gather)).await;
    answers.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn samples_share_one_prefill_and_have_their_own_seeds() {
    let server = Server::start(by_seed(), batch_limits(), 8).await;
    let prompt = "once upon a time there was a little girl who lived in a house in the woods";
    let request = sampled(prompt, 50, 5);
    let streams = server
        .infer
        .generate_group(group(request, 3))
        .await
        .unwrap();
    let indices: Vec<u32> = streams.iter().map(|stream| stream.index).collect();
    assert_eq!(indices, [0, 1, 2]);
    for (seed, answer) in (5..).zip(gather(streams).await) {
        let mut expected = vec![40 + seed as u32; seed];
        expected.push(0);
        assert_eq!(ids(&answer), expected);
        assert_eq!(answer.generated.seed, Some(seed as u64));
    }
    // The first computes the prompt, the others its last token alone.
    let steps = server.mock.steps();
    let prompt = byte_level().encode(prompt, true).unwrap();
    let computed: u32 = steps.iter().map(|step| step.chunk_tokens).sum();
    assert_eq!(computed as usize, prompt.len() + 2);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn the_prompt_is_held_once() {
    let server = Server::start(by_seed(), batch_limits(), 8).await;
    let prompt = "once upon a time there was a little girl who lived in a house in the woods";
    let length = byte_level().encode(prompt, true).unwrap().len();
    let streams = server
        .infer
        .generate_group(group(sampled(prompt, 3, 9), 3))
        .await;
    assert_eq!(gather(streams.unwrap()).await.len(), 3);
    server.assert_clean(8).await;
    server.mock.hold();
    let streams = server
        .infer
        .generate_group(group(sampled(prompt, 3, 9), 3))
        .await;
    server.until_running(3).await;
    server.mock.release(2);
    until("all run", || server.mock.rows() == 3).await;
    // Each computes the last token of the prompt and has two more slots.
    assert_eq!(server.mock.slots(), length - 1 + 3 * 3);
    server.mock.resume();
    assert_eq!(gather(streams.unwrap()).await.len(), 3);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_sample_that_is_dropped_or_fails_leaves_the_others_alone() {
    let server = Server::default().await;
    server.mock.hold();
    let streams = server
        .infer
        .generate_group(group(request("once", 200), 4))
        .await;
    let mut streams = streams.unwrap();
    server.mock.release(4);
    for stream in &mut streams {
        next_token(stream).await;
    }
    // The first brought the prompt; ids count from 0.
    drop(streams.remove(0));
    server.mock.fail_request(2);
    server.mock.resume();
    let outcomes = join_all(streams.into_iter().map(GenerateStream::gather)).await;
    let complete: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(complete, [true, false, true]);
    server.assert_clean(128).await;
}

#[tokio::test]
async fn a_queued_group_runs_with_the_samples_that_are_still_wanted() {
    let limits = BatchLimits {
        max_batch_size: 3,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 16).await;
    server.mock.hold();
    let first = server.infer.generate_stream(request("once", 5)).await;
    server.until_running(1).await;
    let gone = server
        .infer
        .generate_group(group(request("upon", 5), 3))
        .await;
    let mut last = server
        .infer
        .generate_group(group(request("time", 5), 3))
        .await
        .unwrap();
    drop((gone, last.remove(0)));
    server.mock.resume();
    assert!(first.unwrap().gather().await.is_ok());
    assert_eq!(gather(last).await.len(), 2);
    server.assert_clean(16).await;
}

#[tokio::test]
async fn a_failed_prefill_fails_all_samples() {
    let server = Server::default().await;
    server.mock.fail_next_step("no luck");
    let streams = server
        .infer
        .generate_group(group(request("once", 5), 3))
        .await
        .unwrap();
    for outcome in join_all(streams.into_iter().map(GenerateStream::gather)).await {
        assert!(outcome.unwrap_err().to_string().contains("no luck"));
    }
    server.assert_clean(128).await;
}

#[tokio::test]
async fn every_sample_has_the_log_probabilities_of_the_prompt() {
    let server = Server::default().await;
    let asked = with(request("once upon a time", 2), |p| {
        (p.decoder_input_details, p.do_sample) = (true, true);
    });
    let streams = server.infer.generate_group(group(asked, 3)).await.unwrap();
    let (best, others) = gather_best(streams).await.unwrap();
    assert_eq!(others.len(), 2);
    for answer in others.iter().chain([&best]) {
        assert_eq!(answer.prefill.len() as u32, best.input_length);
        assert_eq!(answer.prefill, best.prefill);
    }
    // One computed the prompt, and the others its last token.
    let steps = server.mock.steps();
    let computed: u32 = steps.iter().map(|step| step.chunk_tokens).sum();
    assert_eq!(computed, best.input_length + 2);
}

#[tokio::test]
async fn a_group_that_could_never_run_is_refused() {
    let limits = BatchLimits {
        max_batch_total_tokens: 100,
        max_batch_size: 4,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 8).await;
    let refused = async |n, new| {
        let refused = server
            .infer
            .generate_group(group(request("once", new), n))
            .await;
        refused.unwrap_err().to_string()
    };
    for n in [0, 9, u32::MAX] {
        let expected = format!(
            "Input validation error: `n` must be > 0 and <= 8. Given: {n}; the limit is `--max-concurrent-requests`"
        );
        assert_eq!(refused(n, 5).await, expected);
    }
    assert!(refused(2, 200).await.contains("must be <= 100"));
    // They run one after the other where they do not fit together.
    let streams = server
        .infer
        .generate_group(group(request("once", 40), 4))
        .await;
    assert_eq!(gather(streams.unwrap()).await.len(), 4);
    // Alone it would run.
    server.infer.generate(request("once", 40)).await.unwrap();
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_refused_group_leaves_none_of_its_siblings_running() {
    let server = Server::default().await;
    let unknown = GenerateRequest {
        inputs: Inputs::Ids(vec![VOCAB]),
        ..request("", 5)
    };
    // What is wrong is found after its sibling could have been queued.
    let slow = request(&"once upon a time ".repeat(300), 5);
    for refused in [unknown, slow] {
        let groups = vec![group(request("once", 5), 1), group(refused, 1)];
        let error = server.infer.generate_groups(groups).await.unwrap_err();
        assert!(matches!(error, InferError::Validation(_)), "{error}");
    }
    // The batcher takes submissions in their order: had there been others, they would have been computed before.
    server.infer.generate(request("once", 1)).await.unwrap();
    let steps = server.mock.steps();
    assert_eq!(steps.iter().filter(|step| step.chunks > 0).count(), 1);
    server.assert_clean(128).await;
}

#[tokio::test]
async fn groups_take_all_their_permits_or_none() {
    let server = Server::start(mock_config(), batch_limits(), 3).await;
    let ask = async |prompts: usize, samples| {
        let groups = vec![group(request("once", 5), samples); prompts];
        server.infer.generate_groups(groups).await
    };
    let refused = ask(2, 2).await.unwrap_err().to_string();
    let expected = "Input validation error: a request may start at most 3 generations (`--max-concurrent-requests`). \
                    Given: 4, for all prompts together";
    assert_eq!(refused, expected);
    // Nobody ends before the places are counted.
    server.mock.hold();
    let running = server.infer.generate_stream(request("once", 5)).await;
    assert_eq!(ask(3, 1).await.unwrap_err(), overloaded(3));
    let streams = ask(2, 1).await.unwrap();
    assert_eq!(server.infer.snapshot().permits_available, 0);
    server.mock.resume();
    for streams in streams {
        assert_eq!(gather(streams).await.len(), 1);
    }
    drop(running);
    server.assert_clean(3).await;
}
