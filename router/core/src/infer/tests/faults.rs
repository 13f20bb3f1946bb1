//! What fails alone, what fails together, and that the server goes on.

use super::*;

fn generation_error(error: InferError) -> String {
    match error {
        InferError::Generation(message) => message,
        other => panic!("a generation error, not {other:?}"),
    }
}

#[tokio::test]
async fn a_failed_decode_fails_its_requests_and_the_server_goes_on() {
    let server = Server::default().await;
    server.mock.hold();
    let mut streams = server.streams((0..3).map(|_| request("once", 50))).await;
    server.mock.release(4);
    for stream in &mut streams {
        next_token(stream).await;
    }
    server.mock.fail_next_step("out of memory");
    server.mock.resume();
    for stream in streams {
        let message = generation_error(stream.gather().await.unwrap_err());
        assert!(message.contains("out of memory"), "{message}");
    }
    server.assert_clean(128).await;
    let answer = server.infer.generate(request("once", 5)).await;
    assert_eq!(answer.unwrap().generated.generated_tokens, 5);
    server.assert_clean(128).await;
}

#[tokio::test]
async fn a_failed_prompt_fails_alone_and_the_others_resume() {
    let server = Server::start(repeating("the quick brown fox "), batch_limits(), 8).await;
    server.mock.hold();
    let mut running = server
        .infer
        .generate_stream(request("once", 30))
        .await
        .unwrap();
    server.until_running(1).await;
    let failing = server
        .infer
        .generate_stream(request("upon", 30))
        .await
        .unwrap();
    until("it waits", || server.infer.snapshot().queued == 1).await;
    // Two steps of the first alone; the prompt of the second comes with the third.
    server.mock.release(2);
    for _ in 0..2 {
        next_token(&mut running).await;
    }
    server.mock.fail_next_step("no luck");
    server.mock.resume();
    let message = generation_error(failing.gather().await.unwrap_err());
    assert!(message.contains("no luck"), "{message}");
    let answer = running.gather().await.unwrap();
    let text = byte_level().encode("the quick brown fox ", false).unwrap();
    let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
    // What came before the failure was taken from the stream already.
    let expected = text.iter().copied().cycle().skip(2).take(28);
    assert_eq!(ids, expected.collect::<Vec<_>>());
    assert_eq!(answer.generated.generated_tokens, 30);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn shards_that_disagree_start_again_and_nobody_notices() {
    let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let config = MockConfig {
        world_size: 2,
        tokens: Arc::new(move |row| match row.generated {
            3 => 43 + u32::from(count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1),
            n => 40 + n,
        }),
        ..mock_config()
    };
    let server = Server::start(config, batch_limits(), 4).await;
    let answer = server.infer.generate(request("once", 9)).await.unwrap();
    let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
    assert_eq!(ids, (40..49).collect::<Vec<_>>());
    assert_eq!(server.mock.starts(), 2);
    server.assert_clean(4).await;
}

#[tokio::test]
async fn one_request_fails_alone() {
    let server = Server::default().await;
    server.mock.hold();
    let mut streams = server.streams((0..3).map(|_| request("once", 50))).await;
    server.mock.release(5);
    for stream in &mut streams {
        next_token(stream).await;
    }
    // Ids count from 0.
    server.mock.fail_request(1);
    server.mock.resume();
    let outcomes = futures::future::join_all(streams.into_iter().map(GenerateStream::gather)).await;
    let failed: Vec<bool> = outcomes.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, true, false]);
    server.assert_clean(128).await;
}

#[tokio::test]
async fn nothing_is_found_of_a_request_that_fails_after_its_client_has_gone() {
    let server = Server::default().await;
    server.mock.hold();
    let stream = server
        .infer
        .generate_stream(request("once upon a time", 50));
    let stream = stream.await.unwrap();
    server.until_running(1).await;
    drop(stream);
    // The prompt is answered, and its owner leaves while the step that was sent ahead still runs.
    server.mock.release(1);
    server.until_running(0).await;
    server.mock.fail_request(0);
    server.mock.resume();
    server.assert_clean(128).await;
    let again = server.infer.generate(request("once upon a time", 5)).await;
    assert_eq!(again.unwrap().cached_tokens, 0);
    server.assert_clean(128).await;
}

#[tokio::test]
async fn health_follows_the_shards_and_the_last_step() {
    let server = Server::default().await;
    assert_eq!(server.infer.health().await, Health::Healthy);
    server.mock.set_healthy(false);
    assert_eq!(
        server.infer.health().await,
        Health::Healthy,
        "it was healthy just now"
    );
    a_second_passes().await;
    assert_eq!(server.infer.health().await, Health::Unhealthy);
    server.mock.set_healthy(true);
    a_second_passes().await;
    assert_eq!(server.infer.health().await, Health::Healthy);
    server.mock.fail_next_step("broken");
    server.infer.generate(request("once", 5)).await.unwrap_err();
    server.mock.fail_next_step("still broken");
    assert_eq!(
        server.infer.health().await,
        Health::Unhealthy,
        "the probe fails"
    );
    a_second_passes().await;
    assert_eq!(
        server.infer.health().await,
        Health::Healthy,
        "the probe succeeds, without traffic"
    );
    server.assert_clean(128).await;
}

async fn a_second_passes() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(1)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn many_who_ask_for_health_cost_the_shards_one_check_and_none_waits_for_long() {
    let server = Server::default().await;
    server.mock.fail_next_step("broken");
    server.infer.generate(request("once", 5)).await.unwrap_err();
    server.mock.hold();
    let asking = tokio::spawn({
        let infer = server.infer.clone();
        async move { futures::future::join_all((0..32).map(|_| infer.health())).await }
    });
    until("a probe waits for the shards", || {
        let gauges = server.infer.snapshot();
        gauges.queued + gauges.running > 0
    })
    .await;
    let gauges = server.infer.snapshot();
    assert_eq!(gauges.queued + gauges.running, 1, "one probe for all");
    tokio::time::pause();
    let asked = tokio::time::Instant::now();
    let answers = asking.await.unwrap();
    assert_eq!(answers, [Health::Unhealthy; 32]);
    assert!(asked.elapsed() <= Duration::from_secs(2));
    tokio::time::resume();
    server.mock.resume();
    server.assert_clean(128).await;
}

#[tokio::test]
async fn what_still_runs_when_the_time_is_over_is_told_so() {
    let server = Server::default().await;
    server.mock.hold();
    let infer = server.infer.clone();
    let running = tokio::spawn(async move { infer.generate(request("once", 5)).await });
    server.until_running(1).await;
    server.infer.cut();
    assert_eq!(
        running.await.unwrap().unwrap_err(),
        InferError::ShuttingDown
    );
    server.mock.resume();
    server.assert_clean(128).await;
}

#[tokio::test]
async fn the_permit_comes_back_with_the_end_of_the_generation() {
    let server = Server::default().await;
    let mut stream = server
        .infer
        .generate_stream(request("once", 3))
        .await
        .unwrap();
    assert_eq!(server.infer.snapshot().permits_available, 127);
    while stream.next().await.is_some() {}
    assert_eq!(server.infer.snapshot().permits_available, 128);
    drop(stream);
}

#[test]
fn when_the_batching_task_is_gone_requests_fail_and_health_says_so() {
    let serving = tokio::runtime::Runtime::new().unwrap();
    let front = tokio::runtime::Runtime::new().unwrap();
    let server = serving.block_on(Server::default());
    let stream = serving.block_on(async {
        server.mock.hold();
        let stream = server.infer.generate_stream(request("once", 5)).await;
        server.until_running(1).await;
        stream.unwrap()
    });
    serving.shutdown_background();
    front.block_on(async {
        assert_eq!(
            stream.gather().await.unwrap_err(),
            InferError::IncompleteGeneration
        );
        let message = server.infer.generate(request("once", 5)).await.unwrap_err();
        assert!(generation_error(message).contains("batching task"));
        assert_eq!(server.infer.health().await, Health::Unhealthy);
    });
}
