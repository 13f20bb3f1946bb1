//! What the dashboard and the alert rules in `deploy/` ask for is on the page, and so is what TGI's dashboards ask for.
//! A test alone in its process: the recorder is the process's own.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use std::collections::BTreeSet;

use common::{Server, adapters, lora_adapters, until};
use serde_json::{Value, json};
use text_generation_http::connection::ServerLimits;
use text_generation_mock_shard::MockConfig;

const DASHBOARD: &str = include_str!("../../../deploy/grafana/text-generation.json");
const ALERTS: &str = include_str!("../../../deploy/prometheus/alerts.yaml");

/// The metrics of TGI 3 by their names, as its dashboards and autoscalers ask for them.
const TGI: [&str; 26] = [
    "tgi_request_count",
    "tgi_request_success",
    "tgi_request_failure",
    "tgi_request_duration_bucket",
    "tgi_request_validation_duration_bucket",
    "tgi_request_queue_duration_bucket",
    "tgi_request_inference_duration_bucket",
    "tgi_request_mean_time_per_token_duration_bucket",
    "tgi_request_generated_tokens_bucket",
    "tgi_request_input_length_bucket",
    "tgi_request_max_new_tokens_bucket",
    "tgi_request_skipped_tokens_bucket",
    "tgi_batch_next_size_bucket",
    "tgi_batch_inference_count",
    "tgi_batch_inference_success",
    "tgi_batch_inference_failure",
    "tgi_batch_inference_duration_bucket",
    "tgi_batch_forward_duration_bucket",
    "tgi_batch_decode_duration_bucket",
    "tgi_batch_filter_duration_bucket",
    "tgi_batch_concat_duration_bucket",
    "tgi_batch_concat",
    "tgi_batch_current_size",
    "tgi_batch_current_max_tokens",
    "tgi_queue_size",
    "tgi_batch_max_total_tokens",
];

#[tokio::test]
async fn every_name_that_is_asked_for_is_on_the_page() {
    let flags = [
        "--metrics-aliases=vllm",
        "--served-model-name=m",
        &lora_adapters(&["pirate", "sums"]),
    ];
    let server = Server::over(model(), &flags, ServerLimits::default()).await;
    while_a_request_runs(&server).await;
    assert_eq!(
        server
            .get("/nowhere")
            .send()
            .await
            .expect("an answer")
            .status(),
        404
    );
    let page = page(&server).await;
    let on_page = names(&page);
    let asked = expressions().flat_map(|text| metrics_of(&text));
    let asked: BTreeSet<String> = asked.chain(TGI.map(str::to_owned)).collect();
    assert!(asked.len() > 40, "{asked:?}");
    let missing: Vec<&String> = asked.difference(&on_page).collect();
    assert!(missing.is_empty(), "{missing:?} are not in\n{page}");
    assert_eq!(value(&page, "tgi_kv_cache_usage"), 0.0);
    for (theirs, kind) in [
        ("num_requests_waiting", "gauge"),
        ("num_requests_running", "gauge"),
        ("kv_cache_usage_perc", "gauge"),
        ("gpu_cache_usage_perc", "gauge"),
        ("prefix_cache_queries_total", "counter"),
        ("prefix_cache_hits_total", "counter"),
    ] {
        let declared = format!("# TYPE vllm:{theirs} {kind}\nvllm:{theirs}{{model_name=\"m\"}} ");
        assert!(page.contains(&declared), "{declared} is not in\n{page}");
    }
    let cache = "vllm:cache_config_info{model_name=\"m\",block_size=\"1\",cache_dtype=\"float32\",num_gpu_blocks=\"16384\"} 1";
    assert!(page.contains(cache), "{page}");
}

/// With an adapter that serves, and one that nobody asks for.
fn model() -> MockConfig {
    MockConfig {
        adapters: adapters(&["pirate", "sums"]),
        ..common::alphabet()
    }
}

/// vLLM's list of adapters without its value, a time.
fn lora_requests(page: &str) -> &str {
    let found = page
        .lines()
        .find(|line| line.starts_with("vllm:lora_requests_info"));
    found
        .and_then(|line| line.rsplit_once(' '))
        .map_or("", |(sample, _)| sample)
}

/// The page is true at every step: load shows at once, under both names, and goes away.
async fn while_a_request_runs(server: &Server) {
    server.until_adapters_are_there().await;
    server.mock.hold();
    let body = json!({"inputs": "Hello!", "parameters": {"adapter_id": "pirate"}});
    let running = server.post_json("/generate_stream", &body).await;
    until("the request shows", async || {
        let page = page(server).await;
        value(&page, "tgi_batch_current_size") == 1.0
            && value(&page, "vllm:num_requests_running{model_name=\"m\"}") == 1.0
            && value(&page, "tgi_kv_cache_usage") > 0.0
            && value(&page, "tgi_adapter_requests_running{adapter=\"pirate\"}") == 1.0
            && value(&page, "tgi_adapter_requests_waiting{adapter=\"pirate\"}") == 0.0
            && lora_requests(&page)
                == "vllm:lora_requests_info{model_name=\"m\",max_lora=\"2\",running_lora_adapters=\"pirate\",waiting_lora_adapters=\"\"}"
    })
    .await;
    server.mock.resume();
    running.text().await.expect("a stream");
    until("nothing runs", async || {
        let page = page(server).await;
        value(&page, "tgi_kv_cache_usage") == 0.0
            && lora_requests(&page).contains("running_lora_adapters=\"\"")
    })
    .await;
}

async fn page(server: &Server) -> String {
    let response = server.get("/metrics").send().await.expect("an answer");
    response.text().await.expect("a page")
}

fn value(page: &str, sample: &str) -> f64 {
    let found = page
        .lines()
        .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found
        .and_then(|value| value.parse().ok())
        .unwrap_or(f64::NAN)
}

/// Names of all samples.
fn names(page: &str) -> BTreeSet<String> {
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples
        .filter_map(|line| line.split(['{', ' ']).next())
        .map(str::to_owned)
        .collect()
}

/// What the dashboard asks in its panels and variables, and all of the alert rules.
fn expressions() -> impl Iterator<Item = String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let panels = list(&dashboard["panels"]);
    let targets: Vec<Value> = panels
        .iter()
        .flat_map(|panel| list(&panel["targets"]))
        .collect();
    assert!(targets.len() > 20, "{targets:?}");
    let variables = list(&dashboard["templating"]["list"]).into_iter();
    let asked = targets.into_iter().map(|target| target["expr"].clone());
    asked
        .chain(variables.map(|variable| variable["definition"].clone()))
        .filter_map(|text| text.as_str().map(str::to_owned))
        .chain([ALERTS.to_owned()])
}

fn metrics_of(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("tgi_"))
        .map(str::to_owned)
        .collect()
}
