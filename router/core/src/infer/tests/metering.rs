//! What a dashboard sees.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use super::*;

/// Runs on one thread, so that a recorder of this test sees everything.
fn page_after(scenario: impl AsyncFnOnce(&Server)) -> String {
    let config = MockConfig {
        idle_time: Duration::from_millis(250),
        kernel_compilations: 2,
        ..mock_config()
    };
    page_of(config, scenario)
}

fn page_of(config: MockConfig, scenario: impl AsyncFnOnce(&Server)) -> String {
    recorded(config, batch_limits(), async |server, _| {
        scenario(server).await;
    })
}

/// The scenario may look at the page while it runs.
fn recorded(
    setup: impl Into<Setup>,
    limits: BatchLimits,
    scenario: impl AsyncFnOnce(&Server, &PrometheusHandle),
) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let server = Server::start(setup, limits, 2).await;
            scenario(&server, &recorder.handle()).await;
            server.assert_clean(2).await;
        });
    });
    recorder.handle().render()
}

fn assert_lines(page: &str, lines: &[&str]) {
    for line in lines {
        assert!(page.lines().any(|l| l == *line), "{line} is not in\n{page}");
    }
}

#[test]
fn every_request_is_counted_once() {
    let page = page_after(async |server| {
        let infer = &server.infer;
        infer.generate(request("once", 4)).await.unwrap();
        let stopping = with(request("once", 4), |p| {
            p.do_sample = true;
            p.best_of = Some(2);
        });
        let streams = infer.generate_group(group(stopping, 2)).await.unwrap();
        gather_best(streams).await.unwrap();
        let invalid = with(request("once", 4), |p| p.top_p = Some(2.0));
        infer.generate(invalid).await.unwrap_err();
        let dropped = infer.generate_stream(request("once", 50)).await.unwrap();
        let mut other = infer.generate_stream(request("once", 2)).await.unwrap();
        infer.generate(request("once", 4)).await.unwrap_err();
        drop(dropped);
        while other.next().await.is_some() {}
        drop(other);
        server.assert_clean(2).await;
        server.mock.fail_next_step("broken");
        infer.generate(request("once", 4)).await.unwrap_err();
    });
    assert_lines(
        &page,
        &[
            "tgi_request_count 7",
            "tgi_request_success 3",
            r#"tgi_request_failure{err="validation"} 1"#,
            r#"tgi_request_failure{err="dropped"} 1"#,
            r#"tgi_request_failure{err="overloaded"} 1"#,
            r#"tgi_request_failure{err="generation"} 1"#,
            "tgi_request_duration_count 3",
            "tgi_request_input_length_count 5",
        ],
    );
}

#[test]
fn a_group_is_one_request_and_complete_with_its_last_sample() {
    let page = page_after(async |server| {
        let streams = server
            .infer
            .generate_group(group(request("once", 4), 2))
            .await;
        for stream in streams.unwrap() {
            stream.gather().await.unwrap();
        }
        let streams = server
            .infer
            .generate_group(group(request("once", 400), 2))
            .await;
        drop(streams);
        server
            .infer
            .generate_group(group(request("once", 4), 3))
            .await
            .unwrap_err();
        server.assert_clean(2).await;
        server.mock.fail_next_step("broken");
        for stream in server
            .infer
            .generate_group(group(request("once", 4), 2))
            .await
            .unwrap()
        {
            stream.gather().await.unwrap_err();
        }
    });
    assert_lines(
        &page,
        &[
            "tgi_request_count 4",
            "tgi_request_success 1",
            r#"tgi_request_failure{err="dropped"} 1"#,
            r#"tgi_request_failure{err="validation"} 1"#,
            r#"tgi_request_failure{err="generation"} 1"#,
            "tgi_request_generated_tokens_sum 8",
            "tgi_request_generated_tokens_count 1",
            "tgi_request_input_length_count 3",
        ],
    );
}

#[test]
fn several_prompts_are_one_request() {
    let page = page_after(async |server| {
        let prompts = vec![group(request("once", 4), 1); 2];
        for streams in server.infer.generate_groups(prompts.clone()).await.unwrap() {
            gather_best(streams).await.unwrap();
        }
        let running = server.infer.generate_stream(request("once", 2)).await;
        server.infer.generate_groups(prompts).await.unwrap_err();
        running.unwrap().gather().await.unwrap();
    });
    assert_lines(
        &page,
        &[
            "tgi_request_count 3",
            "tgi_request_success 2",
            r#"tgi_request_failure{err="overloaded"} 1"#,
            r#"tgi_request_failure{err="dropped"} 0"#,
            "tgi_request_input_length_count 3",
        ],
    );
}

#[test]
fn steps_tokens_and_the_pool_are_reported() {
    let page = page_after(async |server| {
        let stopped = with(request("once", 4), |p| p.stop = vec!["never".to_owned()]);
        server.infer.generate(stopped).await.unwrap();
    });
    assert_lines(
        &page,
        &[
            r#"tgi_batch_inference_count{method="prefill"} 1"#,
            r#"tgi_batch_inference_success{method="decode"} 3"#,
            r#"tgi_batch_inference_duration_count{method="decode"} 3"#,
            "tgi_request_time_to_first_token_duration_count 1",
            "tgi_request_time_between_tokens_duration_count 3",
            "tgi_request_skipped_tokens_count 4",
            "tgi_batch_next_size_count 1",
            // Of decode steps alone.
            "tgi_engine_idle_duration_count 3",
            "tgi_engine_idle_duration_sum 0.75",
            "tgi_engine_kernel_compilations 2",
            "tgi_batch_current_size 0",
            "tgi_batch_current_max_tokens 0",
            "tgi_queue_size 0",
            "tgi_kv_slots_used 0",
            "tgi_kv_cache_usage 0",
            r#"tgi_cache_config_info{block_size="1",cache_dtype="float32",num_gpu_blocks="16384"} 1"#,
            r#"tgi_request_failure{err="dropped"} 0"#,
            "tgi_kv_slots_total 16384",
            "tgi_batch_max_total_tokens 16384",
        ],
    );
}

#[test]
fn steps_that_waited_for_masks_are_told_from_those_that_have_some() {
    let config = MockConfig {
        mask_wait: Duration::from_millis(250),
        ..grammars::random()
    };
    let page = page_of(config, async |server| {
        let grammar = GrammarSource::Regex("[ab]{3}".to_owned());
        let following = grammars::following(grammar, 3, 1);
        server.infer.generate(following).await.unwrap();
        server.infer.generate(request("once", 4)).await.unwrap();
    });
    assert_lines(
        &page,
        &[
            "tgi_grammar_steps 3",
            "tgi_grammar_mask_wait_duration_count 3",
            "tgi_grammar_mask_wait_duration_sum 0.75",
        ],
    );
    let page = page_of(grammars::random(), async |server| {
        let following = grammars::following(grammars::schema(), 3, 1);
        server.infer.generate(following).await.unwrap();
    });
    assert_lines(&page, &["tgi_grammar_mask_wait_duration_count 0"]);
}

#[test]
fn the_imbalance_of_experts_is_recorded_where_shards_have_whole_ones() {
    let scenario = async |server: &Server| {
        server.infer.generate(request("once", 4)).await.unwrap();
    };
    let config = MockConfig {
        world_size: 2,
        expert_loads: vec![vec![30, 10], vec![10, 30]],
        ..mock_config()
    };
    assert_lines(
        &page_of(config, scenario),
        &[
            r#"tgi_expert_load_imbalance_count{method="prefill"} 1"#,
            r#"tgi_expert_load_imbalance_sum{method="prefill"} 1.5"#,
            r#"tgi_expert_load_imbalance_count{method="decode"} 3"#,
            r#"tgi_expert_load_imbalance_sum{method="decode"} 4.5"#,
        ],
    );
    let page = page_after(scenario);
    assert!(!page.contains("tgi_expert_load_imbalance"), "{page}");
}

#[test]
fn losses_of_the_shards_are_counted() {
    let page = page_after(async |server| {
        server.mock.hold();
        let stream = server.infer.generate_stream(request("once", 9)).await;
        server.until_running(1).await;
        server.mock.kill();
        server.mock.resume();
        stream.unwrap().gather().await.unwrap();
    });
    assert_lines(
        &page,
        &[
            "tgi_shard_restarts 1",
            "tgi_shard_recovery_duration_count 1",
            "tgi_request_success 1",
        ],
    );
}

#[test]
fn requests_of_each_adapter_are_counted_while_they_run_and_wait() {
    let limits = BatchLimits {
        max_batch_size: 1,
        ..batch_limits()
    };
    let none = [
        r#"tgi_adapter_requests_running{adapter="pirate"} 0"#,
        r#"tgi_adapter_requests_running{adapter="sums"} 0"#,
        r#"tgi_adapter_requests_waiting{adapter="pirate"} 0"#,
        r#"tgi_adapter_requests_waiting{adapter="sums"} 0"#,
    ];
    let page = recorded(adapters::config(false), limits, async |server, pages| {
        assert_lines(&pages.render(), &none);
        server.mock.hold();
        let names = [Some("pirate"), Some("sums")];
        let streams = server
            .streams(names.map(|name| adapters::asked(name, 8)))
            .await;
        let one_runs_and_one_waits = [
            r#"tgi_adapter_requests_running{adapter="pirate"} 1"#,
            r#"tgi_adapter_requests_running{adapter="sums"} 0"#,
            r#"tgi_adapter_requests_waiting{adapter="pirate"} 0"#,
            r#"tgi_adapter_requests_waiting{adapter="sums"} 1"#,
        ];
        server.run_steps(2).await;
        assert_lines(&pages.render(), &one_runs_and_one_waits);
        server.mock.kill();
        server.until_recovered(1).await;
        server.run_steps(2).await;
        assert_lines(&pages.render(), &one_runs_and_one_waits);
        server.mock.resume();
        recovery::rest(streams).await;
    });
    assert_lines(&page, &none);
}
