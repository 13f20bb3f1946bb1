//! Shards that compute a decode step more than was asked for.

use futures::stream::{self, StreamExt};

use super::*;

fn ahead() -> MockConfig {
    MockConfig {
        run_ahead: true,
        ..mock_config()
    }
}

#[tokio::test]
async fn a_decode_after_a_prefill_may_bring_tokens_of_the_older_requests_only() {
    let server = Server::start(ahead(), batch_limits(), 8).await;
    server.mock.hold();
    let a = server.infer.generate_stream(request("once", 50)).await;
    let mut a = a.unwrap();
    server.until_running(1).await;
    let b = server.infer.generate_stream(request("upon", 50)).await;
    let mut b = b.unwrap();
    // Prefill of a, a decode, prefill of b, a decode for which only a had been computed.
    server.mock.release(4);
    for _ in 0..3 {
        next_token(&mut a).await;
    }
    next_token(&mut b).await;
    assert_eq!(server.mock.steps().last(), Some(&(false, 2)));
    assert!(futures::poll!(b.next()).is_pending());
    server.mock.release(1);
    next_token(&mut a).await;
    next_token(&mut b).await;
    server.mock.resume();
    let generated = |answer: GenerateAnswer| answer.generated.generated_tokens;
    assert_eq!(generated(a.gather().await.unwrap()), 50);
    assert_eq!(generated(b.gather().await.unwrap()), 50);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn texts_end_where_they_end_and_discarded_tokens_are_not_seen() {
    let config = MockConfig {
        run_ahead: true,
        ..repeating("there was a girl who ")
    };
    let server = Server::start(config, batch_limits(), 8).await;
    let stopped = with(request("once", 1000), |p| p.stop = vec!["a gi".to_owned()]);
    let (stopped, cut) = tokio::join!(
        server.infer.generate(stopped),
        server.infer.generate(request("upon", 3))
    );
    let stopped = stopped.unwrap().generated;
    assert_eq!(stopped.text, "there was a gi");
    assert_eq!(stopped.finish_reason, FinishReason::StopSequence);
    assert_eq!(cut.unwrap().generated.generated_tokens, 3);
    server.assert_clean(8).await;
}

/// Traffic of groups in a pool that is far too small for all of it, with clients that go away: every stream that is
/// read to its end has exactly the tokens of its seed.
async fn traffic(config: MockConfig, pool: u32) {
    let limits = BatchLimits {
        max_batch_total_tokens: pool,
        max_batch_size: 12,
        ..batch_limits()
    };
    let config = MockConfig {
        // Some end by themselves, some at their limit.
        tokens: Arc::new(|row| {
            let ends = row.seed.is_multiple_of(3) && u64::from(row.generated) == row.seed % 11;
            if ends {
                0
            } else {
                40 + (row.seed as u32 + row.generated) % 200
            }
        }),
        ..config
    };
    let permits = 64;
    let server = Server::start(config, limits, permits).await;
    let one = |number: u32| {
        let infer = server.infer.clone();
        async move {
            let (n, new) = (1 + number % 4, 1 + number % 23);
            let asked = with(request("once upon a time", new), |p| {
                (p.do_sample, p.seed) = (true, Some(u64::from(number) * 7));
            });
            let mut streams = infer.generate_group(group(asked, n)).await.unwrap();
            if number.is_multiple_of(5) {
                let _ = streams[0].next().await;
                drop(streams.remove(0));
            }
            for stream in streams {
                let seed = u64::from(number) * 7 + u64::from(stream.index);
                let answer = stream.gather().await.unwrap();
                let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
                let ends = if seed.is_multiple_of(3) {
                    seed % 11
                } else {
                    99
                };
                let token = |n| {
                    if u64::from(n) == ends {
                        0
                    } else {
                        40 + (seed as u32 + n) % 200
                    }
                };
                let count = new.min(ends as u32 + 1);
                assert_eq!(ids, (0..count).map(token).collect::<Vec<_>>(), "{seed}");
            }
        }
    };
    stream::iter(0..150)
        .map(one)
        .for_each_concurrent(16, |request| request)
        .await;
    server.assert_clean(permits).await;
}

#[tokio::test]
async fn streams_of_a_small_pool_are_complete_and_right() {
    for pool in [110, 250] {
        traffic(ahead(), pool).await;
    }
}

#[tokio::test]
async fn so_are_those_of_several_ranks_and_of_shards_that_do_not_run_ahead() {
    traffic(
        MockConfig {
            world_size: 2,
            ..ahead()
        },
        130,
    )
    .await;
    traffic(mock_config(), 110).await;
}
