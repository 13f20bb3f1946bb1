//! Traces as a collector gets them.

#![allow(clippy::expect_used, reason = "tests may fail")]

mod common;

use std::time::{Duration, Instant};

use common::{LONG, Server};
use serde_json::json;
use text_generation_mock_collector::{
    MockCollector, Span, SpanKind, StatusCode, Value, attributes, text,
};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN_ID: &str = "b7ad6b7169203331";

/// A collector, and the flag that names it.
async fn collecting() -> (MockCollector, String) {
    let (collector, endpoint) = MockCollector::start().await.expect("a port");
    (collector, format!("--otlp-endpoint={endpoint}"))
}

/// All spans, once the server has sent them.
async fn sent(collector: &MockCollector, server: &Server) -> Vec<Span> {
    server.idle().await;
    flush(server).await;
    collector.spans()
}

async fn flush(server: &Server) {
    let tracer = server.state.options.tracer.as_ref().expect("traces");
    tracer.shutdown().await;
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let span = spans.iter().find(|span| span.name == name);
    span.expect("a span of this name")
}

#[tokio::test]
async fn a_request_is_one_trace_from_its_client_to_the_steps_of_the_shards() {
    let (collector, endpoint) = collecting().await;
    let flags = [&endpoint, "--otlp-service-name=here", "--log-level=debug"];
    let server = Server::with_flags(&flags).await;
    let body = json!({"model": "m", "prompt": "hey", "max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "seed": 3, "stream": true});
    let request = server
        .post("/v1/completions")
        .header("traceparent", format!("00-{TRACE_ID}-{SPAN_ID}-01"))
        .header("tracestate", "vendor=1")
        .header("x-request-id", "mine");
    let answer = request.json(&body).send().await.expect("an answer");
    answer.text().await.expect("a stream");
    let spans = sent(&collector, &server).await;

    let root = named(&spans, "POST /v1/completions");
    assert_eq!(
        (hex(&root.trace_id), hex(&root.parent_span_id)),
        (TRACE_ID.into(), SPAN_ID.into())
    );
    assert_eq!(
        (root.kind(), root.trace_state.as_str()),
        (SpanKind::Server, "vendor=1")
    );
    let said = attributes(&root.attributes);
    for (key, value) in [
        ("http.route", text("/v1/completions")),
        ("http.response.status_code", Value::IntValue(200)),
        ("gen_ai.operation.name", text("text_completion")),
        ("gen_ai.request.id", text("mine")),
        ("gen_ai.request.model", text("test/model")),
        ("gen_ai.request.max_tokens", Value::IntValue(5)),
        ("gen_ai.request.temperature", Value::DoubleValue(0.5)),
        ("gen_ai.request.top_p", Value::DoubleValue(0.5)),
        ("gen_ai.request.seed", Value::IntValue(3)),
        ("gen_ai.request.stream", Value::BoolValue(true)),
        ("gen_ai.usage.input_tokens", Value::IntValue(3)),
        ("gen_ai.usage.output_tokens", Value::IntValue(5)),
    ] {
        assert_eq!(said.get(key), Some(&value), "{key}");
    }
    assert!(format!("{:?}", said["gen_ai.response.finish_reasons"]).contains("\"length\""));
    assert!(!said.contains_key("error.type"));
    let Value::DoubleValue(first) = said["gen_ai.latency.time_to_first_token"] else {
        panic!("not a number of seconds");
    };
    assert!((0.0..LONG.as_secs_f64()).contains(&first));

    // One after the other, within the request.
    let phases = ["queue", "prefill", "decode"].map(|name| named(&spans, name));
    let mut reached = root.start_time_unix_nano;
    for phase in phases {
        assert_eq!(
            (&phase.trace_id, &phase.parent_span_id),
            (&root.trace_id, &root.span_id)
        );
        assert!(reached <= phase.start_time_unix_nano);
        assert!(phase.start_time_unix_nano <= phase.end_time_unix_nano);
        reached = phase.end_time_unix_nano;
    }
    assert!(reached <= root.end_time_unix_nano);
    assert_eq!(spans.len(), 4);

    // Each step that computed it names its span.
    let link = [root.trace_id.as_slice(), &root.span_id].concat();
    let links = server.mock.trace_links();
    assert!(
        links.len() >= 5 && links.iter().all(|found| *found == link),
        "{links:?}"
    );

    let everything = format!("{:?}", collector.resources());
    assert!(!everything.contains("hey"), "a prompt is in a span");
    let resource = collector.resources()[0]
        .resource
        .clone()
        .expect("a resource");
    assert_eq!(
        attributes(&resource.attributes)["service.name"],
        text("here")
    );
}

#[tokio::test]
async fn refusals_and_failures_say_what_they_are() {
    let (collector, endpoint) = collecting().await;
    let server = Server::with_flags(&[&endpoint]).await;
    let refused = json!({"inputs": "hey", "parameters": {"max_new_tokens": 0}});
    assert_eq!(server.ask("/generate", &refused).await.0, 422);
    server.mock.fail_next_step("out of order");
    let failing = json!({"inputs": "hey", "parameters": {"max_new_tokens": 3}});
    let stream = server.post_json("/generate_stream", &failing).await;
    assert_eq!(stream.status(), 200);
    stream.text().await.expect("a stream");
    let spans = sent(&collector, &server).await;

    let span = named(&spans, "POST /generate");
    let said = attributes(&span.attributes);
    assert_eq!(said["http.response.status_code"], Value::IntValue(422));
    assert_eq!(said["error.type"], text("validation"));
    // What the client did is no error of the server.
    assert_eq!(
        span.status.clone().unwrap_or_default().code(),
        StatusCode::Unset
    );

    let span = named(&spans, "POST /generate_stream");
    let said = attributes(&span.attributes);
    assert_eq!(said["error.type"], text("generation"));
    let status = span.status.clone().unwrap_or_default();
    assert_eq!(
        (status.code(), status.message.as_str()),
        (StatusCode::Error, "generation")
    );
}

#[tokio::test]
async fn prompts_and_some_of_the_decodes_are_traced_without_details_in_the_log() {
    let (_collector, endpoint) = collecting().await;
    let server = Server::with_flags(&[&endpoint]).await;
    let asked = json!({"inputs": "hey", "parameters": {"max_new_tokens": 200}});
    server.good("/generate", &asked).await;
    let traced = server.mock.trace_links();
    let steps = server.mock.steps().len();
    assert!(steps >= 200, "{steps}");
    // The prompt's, and one of 64.
    assert!((4..=5).contains(&traced.len()), "{}", traced.len());
    assert!(
        traced
            .iter()
            .all(|links| *links == traced[0] && links.len() == 24)
    );
}

#[tokio::test]
async fn a_client_that_goes_ends_its_trace() {
    let (collector, endpoint) = collecting().await;
    let server = Server::with_flags(&[&endpoint]).await;
    server.mock.hold();
    let body = json!({"inputs": "hey", "parameters": {"max_new_tokens": 3}});
    let stream = server.post_json("/generate_stream", &body).await;
    drop(stream);
    server.mock.resume();
    let spans = sent(&collector, &server).await;
    let said = attributes(&named(&spans, "POST /generate_stream").attributes);
    assert_eq!(said["error.type"], text("dropped"));
}

#[tokio::test]
async fn samples_have_their_own_phases_and_share_their_prompt() {
    let (collector, endpoint) = collecting().await;
    let server = Server::with_flags(&[&endpoint]).await;
    let body = json!({"model": "m", "prompt": "hey", "max_tokens": 2, "n": 3, "temperature": 1.0});
    server.good("/v1/completions", &body).await;
    let spans = sent(&collector, &server).await;
    assert_eq!(spans.iter().filter(|span| span.name == "decode").count(), 3);
    let said = attributes(&named(&spans, "POST /v1/completions").attributes);
    assert_eq!(said["gen_ai.usage.input_tokens"], Value::IntValue(3));
    assert_eq!(said["gen_ai.usage.output_tokens"], Value::IntValue(6));
    assert_eq!(said["gen_ai.request.choice.count"], Value::IntValue(3));
}

#[tokio::test]
async fn what_its_client_does_not_sample_is_not_sent_and_probes_never_are() {
    let (collector, endpoint) = collecting().await;
    let server = Server::with_flags(&[&endpoint]).await;
    let body = json!({"inputs": "hey", "parameters": {"max_new_tokens": 1}});
    let request = server
        .post("/generate")
        .header("traceparent", format!("00-{TRACE_ID}-{SPAN_ID}-00"));
    let answer = request.json(&body).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(
        server
            .get("/health")
            .send()
            .await
            .expect("a probe")
            .status(),
        200
    );
    assert_eq!(sent(&collector, &server).await, []);
}

#[tokio::test]
async fn without_a_collector_nothing_is_traced() {
    let server = Server::start().await;
    assert!(server.state.options.tracer.is_none());
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_nobody_up_and_what_it_misses_is_counted() {
    // The listener's backlog takes the connection, and nobody reads it.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let endpoint = format!("--otlp-endpoint=http://{address}");
    let server = Server::with_flags(&[&endpoint]).await;
    let body = json!({"inputs": "hey", "parameters": {"max_new_tokens": 1}});
    server.good("/generate", &body).await;
    let begun = Instant::now();
    flush(&server).await;
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    server.good("/generate", &body).await;
    server.idle().await;
}

#[tokio::test]
async fn spans_that_no_collector_takes_are_counted() {
    let server = Server::with_flags(&["--otlp-endpoint=http://127.0.0.1:1"]).await;
    let body = json!({"inputs": "hey", "parameters": {"max_new_tokens": 1}});
    server.good("/generate", &body).await;
    server.idle().await;
    flush(&server).await;
    let metrics = server.get("/metrics").send().await.expect("metrics");
    let metrics = metrics.text().await.expect("text");
    let dropped = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tgi_trace_spans_dropped "));
    assert!(dropped.is_some_and(|count| count != "0"), "{dropped:?}");
}
