//! Many requests: nothing leaks, and a pool that is far too small for all of them serves all of them.

use futures::stream::{self, StreamExt};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_with_every_tenth_cancelled_leave_nothing_behind() {
    let permits = 256;
    let limits = BatchLimits {
        max_batch_total_tokens: 2000,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, permits).await;
    let one = |number: u32| {
        let infer = server.infer.clone();
        async move {
            let request = request("once upon a time", 1 + number % 9);
            let mut stream = infer.generate_stream(request).await.unwrap();
            if number.is_multiple_of(10) {
                // Sometimes still queued, sometimes running.
                if number.is_multiple_of(20) {
                    let _ = stream.next().await;
                }
                return;
            }
            let answer = stream.gather().await.unwrap();
            assert_eq!(answer.generated.generated_tokens, 1 + number % 9);
        }
    };
    stream::iter(0..10_000)
        .map(one)
        .for_each_concurrent(permits, |request| request)
        .await;
    server.assert_clean(permits).await;
}

#[tokio::test]
async fn a_small_pool_serves_requests_that_would_not_fit_together() {
    let limits = BatchLimits {
        max_batch_total_tokens: 300,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 64).await;
    let answers = (0..16).map(|n| {
        server
            .infer
            .generate(request("once upon a time", 40 + 5 * n))
    });
    for (n, answer) in (0..).zip(futures::future::join_all(answers).await) {
        assert_eq!(answer.unwrap().generated.generated_tokens, 40 + 5 * n);
    }
    let widest = server.mock.steps().iter().map(|step| step.decodes).max();
    assert!(widest > Some(1), "requests run together where they fit");
    server.assert_clean(64).await;
}

/// Traffic of groups in a pool that is far too small for all of it, with clients that go away: every stream that is
/// read to its end has exactly the tokens of its seed.
async fn traffic(config: MockConfig, limits: BatchLimits, pool: u32) {
    let limits = BatchLimits {
        max_batch_total_tokens: pool,
        max_batch_size: 12,
        ..limits
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
        traffic(mock_config(), batch_limits(), pool).await;
    }
}

#[tokio::test]
async fn so_are_those_of_several_ranks() {
    let ranks = MockConfig {
        world_size: 2,
        ..mock_config()
    };
    traffic(ranks, batch_limits(), 130).await;
}

#[tokio::test]
async fn so_are_those_without_chunks_and_without_a_cache() {
    let limits = BatchLimits {
        prefill_chunking: false,
        prefix_caching: false,
        ..batch_limits()
    };
    traffic(mock_config(), limits, 110).await;
}

#[tokio::test]
async fn so_are_those_of_prompts_in_many_chunks() {
    let limits = BatchLimits {
        max_batch_prefill_tokens: 3,
        ..batch_limits()
    };
    traffic(mock_config(), limits, 110).await;
}
