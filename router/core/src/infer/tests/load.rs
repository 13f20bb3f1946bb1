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
    let widest = server.mock.steps().iter().map(|(_, rows)| *rows).max();
    assert!(widest > Some(1), "requests run together where they fit");
    server.assert_clean(64).await;
}
