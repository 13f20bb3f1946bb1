//! Server-sent events: framing, last event, errors, cancellation.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use common::{Server, header, until};
use serde_json::{Value, json};

async fn transcript(server: &Server, path: &str, body: &Value) -> String {
    let response = server.post_json(path, body).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    response.text().await.expect("a body")
}

fn ask(parameters: Value) -> Value {
    json!({"inputs": "Hi", "parameters": parameters})
}

/// The error of a text of one event.
fn only_error(text: &str) -> Value {
    let json = text.trim_end().strip_prefix("data: ").expect("an event");
    let error: Value = serde_json::from_str(json).expect("one line of JSON");
    let keys: Vec<&String> = error.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["error", "error_type", "request_id"]);
    error
}

#[tokio::test]
async fn one_event_for_each_token_and_the_text_with_the_last() {
    let server = Server::start().await;
    let body = ask(json!({"max_new_tokens": 3, "details": true, "do_sample": true, "seed": 5}));
    insta::assert_snapshot!(
        "details",
        transcript(&server, "/generate_stream", &body).await
    );
}

#[tokio::test]
async fn details_are_null_unless_asked_for_and_top_tokens_come_with_each_token() {
    let server = Server::start().await;
    let body = ask(json!({"max_new_tokens": 2, "top_n_tokens": 1}));
    insta::assert_snapshot!(
        "top_tokens",
        transcript(&server, "/generate_stream", &body).await
    );
}

#[tokio::test]
async fn the_older_route_streams_on_demand_and_repeats_the_prompt() {
    let server = Server::start().await;
    let body = json!({"inputs": "Hi ", "parameters": {"max_new_tokens": 2}, "stream": true});
    insta::assert_snapshot!("compat", transcript(&server, "/", &body).await);
}

#[tokio::test]
async fn headers_are_for_streams() {
    let server = Server::start().await;
    let response = server
        .post_json("/generate_stream", &ask(json!({"max_new_tokens": 1})))
        .await;
    assert_eq!(header(&response, "cache-control"), "no-cache");
    assert_eq!(header(&response, "x-accel-buffering"), "no");
    assert_eq!(header(&response, "x-compute-type"), "1-cpu");
    assert_eq!(header(&response, "x-compute-characters"), "2");
    assert!(!response.headers().contains_key("x-total-time"));
}

#[tokio::test]
async fn a_silent_stream_shows_that_it_lives() {
    let server = Server::with_flags(&["--sse-keep-alive=1"]).await;
    server.mock.hold();
    let body = json!({"prompt": "Hi!", "stream": true});
    let mut response = server.post_json("/v1/completions", &body).await;
    let first = response.chunk().await.expect("a stream");
    assert_eq!(first.as_deref(), Some(&b"\n\n"[..]));
    server.mock.resume();
    let rest = response.text().await.expect("a stream");
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
}

#[tokio::test]
async fn what_is_wrong_before_the_first_token_is_an_event() {
    let server = Server::start().await;
    for (parameters, message) in [
        (
            json!({"best_of": 2}),
            "`best_of` != 1 is not supported when streaming tokens",
        ),
        (
            json!({"best_of": 0}),
            "`best_of` != 1 is not supported when streaming tokens",
        ),
        (
            json!({"decoder_input_details": true}),
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
        (
            json!({"temperature": 0.0}),
            "`temperature` must be strictly positive",
        ),
    ] {
        let text = transcript(&server, "/generate_stream", &ask(parameters)).await;
        let error = only_error(&text);
        assert_eq!(error["error"], format!("Input validation error: {message}"));
        assert_eq!(error["error_type"], "validation");
    }
}

#[tokio::test]
async fn overload_is_an_event_too() {
    let server = Server::with_flags(&["--max-concurrent-requests=1"]).await;
    server.mock.hold();
    let running = server.post_json("/generate_stream", &ask(json!({}))).await;
    let text = transcript(&server, "/generate_stream", &ask(json!({}))).await;
    let error = only_error(&text);
    let message = error["error"].as_str().expect("a text");
    assert!(message.starts_with("Model is overloaded: "), "{message}");
    assert_eq!(error["error_type"], "overloaded");
    drop(running);
}

#[tokio::test]
async fn a_failure_in_mid_stream_is_the_last_event() {
    let server = Server::start().await;
    server.mock.hold();
    let mut response = server
        .post_json("/generate_stream", &ask(json!({"max_new_tokens": 20})))
        .await;
    let id = header(&response, "x-request-id").to_owned();
    server.mock.release(1);
    let first = response.chunk().await.expect("a chunk").expect("an event");
    assert!(first.starts_with(b"data: {\"index\":1,"));
    server.mock.fail_next_step("out of memory");
    server.mock.resume();
    let rest = response.text().await.expect("the end");
    let last = rest.trim_end().rsplit("\n\n").next().expect("an event");
    let error = only_error(last);
    assert_eq!(
        error["error"],
        "Request failed during generation: Server error: out of memory"
    );
    assert_eq!(error["error_type"], "generation");
    assert_eq!(error["request_id"], id.as_str());
}

#[tokio::test]
async fn tokens_arrive_one_by_one_as_the_shards_make_them() {
    let server = Server::start().await;
    server.mock.hold();
    let mut response = server
        .post_json("/generate_stream", &ask(json!({"max_new_tokens": 20})))
        .await;
    for index in 1..=3 {
        server.mock.release(1);
        let chunk = response.chunk().await.expect("a chunk").expect("an event");
        let expected = format!("data: {{\"index\":{index},");
        assert!(chunk.starts_with(expected.as_bytes()), "{chunk:?}");
        assert!(chunk.ends_with(b"\n\n"));
    }
}

#[tokio::test]
async fn a_client_that_goes_frees_its_row_and_slots() {
    let server = Server::start().await;
    server.mock.hold();
    let mut response = server
        .post_json("/generate_stream", &ask(json!({"max_new_tokens": 1000})))
        .await;
    server.mock.release(1);
    response.chunk().await.expect("a chunk").expect("an event");
    assert_eq!(server.mock.rows(), 1);
    drop(response);
    until("the router has seen that the client is gone", async || {
        server.state.infer.snapshot().permits_available == 128
    })
    .await;
    // Two steps that were on their way, and one that drops the row.
    server.mock.release(3);
    until("the row is free", async || server.mock.rows() == 0).await;
    assert_eq!(server.mock.slots(), 0);
    assert_eq!(server.mock.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn the_permit_of_a_finished_stream_does_not_wait_for_its_reader() {
    let server = Server::with_flags(&["--max-concurrent-requests=1"]).await;
    let unread = server
        .post_json("/generate_stream", &ask(json!({"max_new_tokens": 2})))
        .await;
    until("the permit is back", async || {
        server.state.infer.snapshot().permits_available == 1
    })
    .await;
    assert_eq!(
        unread
            .text()
            .await
            .expect("a body")
            .matches("data: ")
            .count(),
        2
    );
}
