//! What requests with a common beginning share, and what pauses cost.

use super::*;

/// `count` ids that begin with `first`.
fn ids(first: u32, count: u32) -> Vec<u32> {
    std::iter::once(first)
        .chain((0..count - 1).map(|n| 10 + n % 200))
        .collect()
}

fn of_ids(ids: Vec<u32>, max_new_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        inputs: Inputs::Ids(ids),
        ..request("", max_new_tokens)
    }
}

/// A prompt of this id alone ends by itself after three tokens.
const SHORT: u32 = VOCAB - 1;

fn with_short_ones(config: MockConfig) -> MockConfig {
    let tokens = config.tokens.clone();
    MockConfig {
        tokens: Arc::new(move |row| match row.input_ids[..] {
            [SHORT] if row.generated == 3 => mock_eos()[0],
            _ => tokens(row),
        }),
        ..config
    }
}

/// So many short outputs that everybody is expected to be short. Returns how many.
async fn expect_short_outputs(server: &Server) -> usize {
    let short = 1100;
    for _ in 0..short {
        let asked = of_ids(vec![SHORT], 100);
        assert_eq!(server.infer.generate(asked).await.unwrap().tokens.len(), 4);
    }
    short
}

fn chunk_tokens(server: &Server) -> Vec<u32> {
    let steps = server.mock.steps();
    let chunks = steps.iter().map(|step| step.chunk_tokens);
    chunks.filter(|&tokens| tokens > 0).collect()
}

#[tokio::test]
async fn the_same_prompt_again_is_one_token_of_work() {
    let server = Server::default().await;
    let first = server.infer.generate(of_ids(ids(5, 100), 4)).await.unwrap();
    let again = server.infer.generate(of_ids(ids(5, 100), 4)).await.unwrap();
    assert_eq!((first.cached_tokens, again.cached_tokens), (0, 99));
    assert_eq!(chunk_tokens(&server), [100, 1]);
    assert_eq!(first.tokens, again.tokens);
    // Generated tokens are kept too: a conversation goes on behind its last answer.
    let answer = first.tokens.iter().map(|token| token.id);
    let turn: Vec<u32> = ids(5, 100)
        .into_iter()
        .chain(answer)
        .chain([7, 8, 9])
        .collect();
    let next = server.infer.generate(of_ids(turn, 4)).await.unwrap();
    assert_eq!(next.cached_tokens, 100 + 3);
    server.assert_clean(128).await;
}

#[tokio::test]
async fn a_new_prefix_of_several_requests_is_computed_once() {
    let limits = BatchLimits {
        max_batch_prefill_tokens: 64,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 8).await;
    server.mock.hold();
    let requests = (0..4).map(|n| of_ids([ids(5, 192), vec![300 + n]].concat(), 4));
    let streams = server.streams(requests).await;
    server.mock.resume();
    let answers = futures::future::join_all(streams.into_iter().map(GenerateStream::gather)).await;
    let cached: Vec<u32> = answers
        .into_iter()
        .map(|a| a.unwrap().cached_tokens)
        .collect();
    assert_eq!(cached, [0, 192, 192, 192]);
    assert_eq!(chunk_tokens(&server).iter().sum::<u32>(), 193 + 3);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn only_requests_with_the_same_salt_share() {
    let server = Server::default().await;
    let salted = |salt: &str| {
        with(of_ids(ids(5, 50), 2), |p| {
            p.cache_salt = Some(salt.to_owned())
        })
    };
    for (salt, cached) in [("a", 0), ("b", 0), ("a", 49)] {
        let answer = server.infer.generate(salted(salt)).await.unwrap();
        assert_eq!(answer.cached_tokens, cached, "{salt}");
    }
    let answer = server.infer.generate(of_ids(ids(5, 50), 2)).await.unwrap();
    assert_eq!(answer.cached_tokens, 0);
}

#[tokio::test]
async fn log_probabilities_of_a_prompt_are_complete_where_it_is_cached() {
    let server = Server::default().await;
    server.infer.generate(of_ids(ids(5, 50), 2)).await.unwrap();
    let asked = with(of_ids(ids(5, 50), 2), |p| p.decoder_input_details = true);
    let answer = server.infer.generate(asked).await.unwrap();
    assert_eq!((answer.prefill.len(), answer.cached_tokens), (50, 0));
    assert!(
        answer.prefill[1..]
            .iter()
            .all(|token| token.logprob.is_some())
    );
    server.assert_clean(128).await;
}

/// Slots for one request, which is as long as the pool, and not for what others computed of the same.
fn as_long_as_the_pool() -> BatchLimits {
    BatchLimits {
        max_batch_total_tokens: 200,
        ..batch_limits()
    }
}

#[tokio::test]
async fn a_cached_prompt_is_computed_again_in_a_pool_that_cannot_hold_it_twice() {
    let server = Server::start(mock_config(), as_long_as_the_pool(), 8).await;
    let asked = || with(of_ids(ids(5, 110), 85), |p| p.decoder_input_details = true);
    let first = within_a_minute(server.infer.generate(asked()))
        .await
        .unwrap();
    let again = within_a_minute(server.infer.generate(asked()))
        .await
        .unwrap();
    assert_eq!(
        (&first.prefill, &first.tokens),
        (&again.prefill, &again.tokens)
    );
    assert_eq!((again.prefill.len(), again.tokens.len()), (110, 85));
    server.assert_clean(8).await;
}

#[tokio::test]
async fn what_two_requests_computed_at_once_does_not_fill_the_pool_for_ever() {
    let config = with_short_ones(mock_config());
    let server = Server::start(config, as_long_as_the_pool(), 8).await;
    // Both are expected to be short, and start with one plan.
    expect_short_outputs(&server).await;
    server.mock.hold();
    let of = |last: u32, count: u32, new: u32| {
        let prompt = [ids(5, 28), vec![last; count as usize - 28]].concat();
        server.infer.generate_stream(of_ids(prompt, new))
    };
    // Two steps are on their way before they come.
    let running = server.infer.generate_stream(request("upon", 3)).await;
    server.until_running(1).await;
    let (short, long) = (of(7, 31, 20).await, of(8, 110, 90).await);
    until("both wait", || server.infer.snapshot().queued == 2).await;
    server.mock.resume();
    assert!(running.unwrap().gather().await.is_ok());
    let both = futures::future::join(short.unwrap().gather(), long.unwrap().gather());
    let (short, long) = within_a_minute(both).await;
    assert_eq!(short.unwrap().tokens.len(), 20);
    assert_eq!(long.unwrap().tokens.len(), 90);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn without_the_cache_nothing_is_shared() {
    let (config, limits) = with_states(mock_config());
    let server = Server::start(config, limits, 8).await;
    for _ in 0..2 {
        let answer = server.infer.generate(of_ids(ids(5, 50), 2)).await.unwrap();
        assert_eq!(answer.cached_tokens, 0);
    }
    // Also not by the samples of one request, which start at once.
    for samples in 2..4 {
        let asked = group(of_ids(ids(5, 50), 2), samples);
        let streams = server.infer.generate_group(asked).await.unwrap();
        let (best, others) = gather_best(streams).await.unwrap();
        assert_eq!(others.len() as u32, samples - 1);
        let cached = [best].into_iter().chain(others).map(|a| a.cached_tokens);
        assert_eq!(cached.sum::<u32>(), 0);
    }
    assert_eq!(chunk_tokens(&server), [50, 50, 100, 150]);
    server.assert_clean(8).await;
}

/// Expected to be short, and none is: the pool runs short again and again, and no client can tell. Every other request
/// has a grammar, which knows after a pause where it stood.
async fn pause(config: MockConfig, limits: BatchLimits) {
    let limits = BatchLimits {
        max_batch_total_tokens: 1200,
        max_batch_size: 16,
        ..limits
    };
    let config = MockConfig {
        tokens: Arc::new(|row| 3 + (row.seed as u32 * 31 + row.generated * 7) % 300),
        ..config
    };
    let server = Server::start(with_short_ones(config), limits, 64).await;
    let short = expect_short_outputs(&server).await;
    let one = |n: u64| {
        let asked = with(of_ids(ids(3 + n as u32, 20), 600), |p| {
            (p.do_sample, p.seed) = (true, Some(n));
            p.grammar = (n % 2 == 1).then(|| GrammarSource::Regex("(0123456789){300}".to_owned()));
        });
        server.infer.generate(asked)
    };
    let answers = futures::future::join_all((0..16).map(one)).await;
    for (n, answer) in (0..).zip(answers) {
        let answer = answer.unwrap();
        if n % 2 == 1 {
            let text = answer.generated.text;
            assert!(
                text.len() >= 600 && "0123456789".repeat(600).starts_with(&text),
                "{n}: {text}"
            );
            continue;
        }
        let tokens: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
        let expected: Vec<u32> = (0..600).map(|g| 3 + (n * 31 + g * 7) % 300).collect();
        assert_eq!(tokens, expected, "{n}");
    }
    let admitted = server.mock.admitted();
    assert!(admitted > short + 16, "{admitted}: nobody paused");
    server.assert_clean(64).await;
}

#[tokio::test]
async fn requests_that_pause_lose_nothing() {
    pause(mock_config(), batch_limits()).await;
}

#[tokio::test]
async fn requests_with_windows_that_pause_lose_nothing() {
    let config = MockConfig {
        widths: vec![2, 4],
        drafts: Arc::new(super::windows::all),
        max_masks: 8,
        ..mock_config()
    };
    pause(config, batch_limits()).await;
}

#[tokio::test]
async fn requests_with_states_that_pause_are_computed_from_the_first_token_on() {
    let (config, limits) = with_states(mock_config());
    pause(config, limits).await;
}
