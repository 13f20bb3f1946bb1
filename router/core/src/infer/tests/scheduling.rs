//! Who runs when, and what a client that goes away leaves behind.

use super::*;

#[tokio::test]
async fn a_prompt_is_computed_beside_the_streams_that_run() {
    let server = Server::default().await;
    server.mock.hold();
    let mut a = server
        .infer
        .generate_stream(request("once", 50))
        .await
        .unwrap();
    server.until_running(1).await;
    let mut b = server
        .infer
        .generate_stream(request("upon", 50))
        .await
        .unwrap();
    // Two steps are on their way before b comes.
    server.mock.release(4);
    for _ in 0..4 {
        next_token(&mut a).await;
    }
    for _ in 0..2 {
        next_token(&mut b).await;
    }
    let steps = sizes(&server.mock.steps());
    assert_eq!(steps, [(1, 0), (0, 1), (1, 1), (0, 2)]);
    drop((a, b));
    server.mock.resume();
    server.assert_clean(128).await;
}

#[tokio::test]
async fn a_long_step_of_idle_shards_gets_a_head_start() {
    // (milliseconds of a step, steps that the first two requests get when the second comes just after the first)
    let cases = [
        (11.0, [(1, 0), (1, 1), (0, 2)]),
        (2.0, [(1, 0), (0, 1), (1, 1)]),
    ];
    for (milliseconds, expected) in cases {
        let cost = StepCost::new(&[1024], &[milliseconds], 0.0, 0.0, &[]);
        let server = Server::costing(cost, mock_config(), batch_limits(), 4).await;
        // No thread of the tokenizer is waited for: meanwhile the paused clock would go on.
        let of_ids = |ids: &[u32]| GenerateRequest {
            inputs: Inputs::Ids(ids.to_vec()),
            ..request("", 5)
        };
        server.mock.hold();
        tokio::time::pause();
        let a = server.infer.generate_stream(of_ids(&[5, 6, 7])).await;
        server.until_running(1).await;
        let b = server.infer.generate_stream(of_ids(&[8, 9])).await;
        until("it waits", || server.infer.snapshot().queued == 1).await;
        tokio::time::advance(Duration::from_millis(2)).await;
        tokio::time::resume();
        server.mock.resume();
        assert!(a.unwrap().gather().await.is_ok() && b.unwrap().gather().await.is_ok());
        assert_eq!(sizes(&server.mock.steps())[..3], expected);
        server.assert_clean(4).await;
    }
}

#[tokio::test]
async fn clients_that_leave_do_not_make_outputs_look_short() {
    let limits = BatchLimits {
        max_batch_total_tokens: 200,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 8).await;
    for _ in 0..1100 {
        let stream = server.infer.generate_stream(request("once", 150)).await;
        next_token(&mut stream.unwrap()).await;
    }
    server.assert_clean(8).await;
    let before = server.mock.admitted();
    let asked = |ids: Vec<u32>| GenerateRequest {
        inputs: Inputs::Ids(ids),
        ..request("", 150)
    };
    server.mock.hold();
    let a = server.infer.generate_stream(asked(vec![5; 40])).await;
    let mut a = a.unwrap();
    server.until_running(1).await;
    let b = server.infer.generate_stream(asked(vec![6; 40])).await;
    server.mock.release(20);
    for _ in 0..20 {
        next_token(&mut a).await;
    }
    // Two of 190 tokens do not fit, and nothing says that they end early: the second waits for the first.
    assert_eq!(server.mock.admitted(), before + 1);
    server.mock.resume();
    let (a, b) = futures::future::join(a.gather(), b.unwrap().gather()).await;
    assert!(a.is_ok() && b.is_ok());
    assert_eq!(server.mock.admitted(), before + 2);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_long_prompt_is_computed_in_chunks() {
    let limits = BatchLimits {
        max_batch_prefill_tokens: 10,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 4).await;
    let mut request = request("", 3);
    request.inputs = Inputs::Ids((3..38).collect());
    request.parameters.decoder_input_details = true;
    let answer = server.infer.generate(request).await.unwrap();
    let steps = server.mock.steps();
    let chunks: Vec<u32> = steps.iter().map(|step| step.chunk_tokens).collect();
    assert_eq!(chunks[..5], [10, 10, 10, 5, 0]);
    assert_eq!((answer.input_length, answer.tokens.len()), (35, 3));
    let ids: Vec<u32> = answer.prefill.iter().map(|token| token.id).collect();
    assert_eq!(ids, (3..38).collect::<Vec<_>>());
    let scored = answer
        .prefill
        .iter()
        .filter(|token| token.logprob.is_some());
    assert_eq!(scored.count(), 34);
    server.assert_clean(4).await;
}

#[tokio::test]
async fn without_chunking_prompts_interrupt_the_streams_that_run() {
    let limits = BatchLimits {
        prefill_chunking: false,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 4).await;
    server.mock.hold();
    let a = server.infer.generate_stream(request("once", 4)).await;
    server.until_running(1).await;
    let b = server.infer.generate_stream(request("upon", 2)).await;
    server.mock.resume();
    assert!(a.unwrap().gather().await.is_ok() && b.unwrap().gather().await.is_ok());
    let steps = sizes(&server.mock.steps());
    assert_eq!(steps[..4], [(1, 0), (0, 1), (1, 0), (0, 2)]);
    server.assert_clean(4).await;
}

#[tokio::test]
async fn a_late_request_starts_within_max_waiting_tokens_steps() {
    let limits = BatchLimits {
        // One waiting request is never enough to interrupt.
        waiting_served_ratio: WaitingServedRatio::Fixed(50.0),
        max_waiting_tokens: 6,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 128).await;
    server.mock.hold();
    let _early = server
        .infer
        .generate_stream(request("once", 500))
        .await
        .unwrap();
    server.mock.release(3);
    until("three steps ran", || server.mock.steps().len() == 3).await;
    let mut late = server
        .infer
        .generate_stream(request("upon", 500))
        .await
        .unwrap();
    server.mock.release(20);
    next_token(&mut late).await;
    let steps = sizes(&server.mock.steps());
    let second_prefill = steps[1..].iter().position(|(chunks, _)| *chunks > 0);
    assert!((3..=6).contains(&second_prefill.unwrap()), "{steps:?}");
}

#[tokio::test]
async fn a_lower_priority_number_runs_first() {
    let limits = BatchLimits {
        max_batch_size: 1,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 8).await;
    server.mock.hold();
    let first = server.infer.generate_stream(request("once", 5)).await;
    server.until_running(1).await;
    let usual = server.infer.generate_stream(request("upon", 5)).await;
    let urgent = with(request("time", 5), |p| p.priority = Some(-1));
    let urgent = server.infer.generate_stream(urgent).await;
    until("both wait", || server.infer.snapshot().queued == 2).await;
    server.mock.resume();
    let (_, usual, urgent) = tokio::join!(
        first.unwrap().gather(),
        usual.unwrap().gather(),
        urgent.unwrap().gather()
    );
    assert!(urgent.unwrap().instants.started < usual.unwrap().instants.started);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_dropped_stream_frees_its_row_and_slots_within_two_steps() {
    let server = Server::default().await;
    server.mock.hold();
    let mut kept = server
        .infer
        .generate_stream(request("once", 900))
        .await
        .unwrap();
    server.until_running(1).await;
    let alone = server.infer.snapshot().slots_used;
    let gone = server
        .infer
        .generate_stream(request("upon", 900))
        .await
        .unwrap();
    server.mock.release(3);
    server.until_running(2).await;
    next_token(&mut kept).await;
    next_token(&mut kept).await;
    drop(gone);
    assert_eq!(server.infer.snapshot().permits_available, 127);
    // The steps on their way, and the one that leaves the request out.
    server.mock.release(3);
    server.until_running(1).await;
    until("its slots are free", || {
        server.infer.snapshot().slots_used <= alone
    })
    .await;
    until("its row is free", || server.mock.rows() == 1).await;
    drop(kept);
    server.mock.resume();
    server.assert_clean(128).await;
}

#[tokio::test]
async fn a_queued_request_whose_client_has_gone_never_runs() {
    let limits = BatchLimits {
        max_batch_size: 1,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 8).await;
    server.mock.hold();
    let first = server
        .infer
        .generate_stream(request("once", 5))
        .await
        .unwrap();
    server.until_running(1).await;
    let gone = server
        .infer
        .generate_stream(request("upon", 5))
        .await
        .unwrap();
    let last = server
        .infer
        .generate_stream(request("time", 5))
        .await
        .unwrap();
    drop(gone);
    server.mock.resume();
    let (first, last) = tokio::join!(first.gather(), last.gather());
    assert!(first.is_ok() && last.is_ok());
    let steps = server.mock.steps();
    let prefills = steps.iter().filter(|step| step.chunks > 0).count();
    assert_eq!(prefills, 2);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_full_server_refuses_at_once_and_recovers() {
    let server = Server::start(mock_config(), batch_limits(), 2).await;
    server.mock.hold();
    let a = server
        .infer
        .generate_stream(request("once", 5))
        .await
        .unwrap();
    let b = server
        .infer
        .generate_stream(request("once", 5))
        .await
        .unwrap();
    let refused = server.infer.generate_stream(request("once", 5)).await;
    assert_eq!(refused.unwrap_err(), overloaded(2));
    drop(a);
    let c = server.infer.generate_stream(request("once", 5)).await;
    assert!(
        c.is_ok(),
        "a permit is free as soon as its stream is dropped"
    );
    drop((b, c));
    server.mock.resume();
    server.assert_clean(2).await;
}

#[tokio::test]
async fn an_invalid_request_takes_no_permit_and_harms_nobody() {
    let limits = BatchLimits {
        max_batch_prefill_tokens: 20,
        max_batch_total_tokens: 100,
        prefill_chunking: false,
        ..batch_limits()
    };
    let server = Server::start(mock_config(), limits, 2).await;
    let long = "Hello there ".repeat(30);
    let refused = [
        with(request("once", 5), |p| p.temperature = Some(-1.0)),
        with(request("once", 5), |p| p.best_of = Some(2)),
        // These pass validation here, and could never run.
        request(&long, 5),
        request("once", 200),
    ];
    for request in refused {
        let error = server.infer.generate_stream(request).await.unwrap_err();
        assert!(matches!(error, InferError::Validation(_)), "{error:?}");
    }
    server.infer.generate(request("once", 5)).await.unwrap();
    server.assert_clean(2).await;
}

#[tokio::test]
async fn shutdown_refuses_new_requests_and_waits_for_the_running_ones() {
    let server = Server::default().await;
    server.mock.hold();
    let running = server
        .infer
        .generate_stream(request("once", 20))
        .await
        .unwrap();
    let infer = server.infer.clone();
    let drained = tokio::spawn(async move { infer.drained().await });
    server.infer.shutdown();
    let refused = server.infer.generate(request("once", 5)).await;
    assert_eq!(refused.unwrap_err(), InferError::ShuttingDown);
    assert!(!drained.is_finished());
    server.mock.resume();
    let answer = running.gather().await.unwrap();
    assert_eq!(answer.generated.generated_tokens, 20);
    drained.await.unwrap();
    server.assert_clean(128).await;
}
