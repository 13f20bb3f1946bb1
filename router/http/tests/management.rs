//! The port for probes and metrics, and a server whose end is announced before it refuses.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use std::time::Duration;

use common::{Server, answer, until};
use reqwest::Response;
use serde_json::{Value, json};
use text_generation_http::connection::ServerLimits;
use text_generation_http::management;
use tokio::net::TcpListener;

/// A further port of a server: its address.
async fn management_of(server: &Server) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(management::serve(listener, server.state.clone()));
    format!("http://{address}")
}

async fn status(server: &Server, url: String) -> u16 {
    let response = server.http.get(url).send().await;
    response.expect("an answer").status().as_u16()
}

#[tokio::test]
async fn probes_and_metrics_ask_for_no_key_there() {
    let server = Server::with_flags(&["--api-key=Secret"]).await;
    let port = management_of(&server).await;
    for path in ["/health", "/ready", "/live", "/metrics"] {
        assert_eq!(
            status(&server, format!("{port}{path}")).await,
            200,
            "{path}"
        );
    }
    let response = server.http.get(format!("{port}/metrics")).send().await;
    let page = response.expect("an answer").text().await.expect("a page");
    assert!(page.contains("tgi_kv_cache_usage "), "{page}");
    for path in ["/info", "/v1/models", "/docs"] {
        let response = server.http.get(format!("{port}{path}")).send().await;
        let (status, body) = answer(response.expect("an answer")).await;
        assert_eq!((status, &body["error_type"]), (404, &json!("not_found")));
    }
    assert_eq!(
        status(&server, format!("{}/metrics", server.url)).await,
        401
    );
}

#[tokio::test]
async fn open_metrics_opens_nothing_else() {
    let server = Server::with_flags(&["--api-key=Secret", "--open-metrics"]).await;
    for (path, expected) in [("/metrics", 200), ("/v1/models", 401), ("/info", 401)] {
        let url = format!("{}{path}", server.url);
        assert_eq!(status(&server, url).await, expected, "{path}");
    }
}

#[tokio::test]
async fn requests_are_taken_while_the_server_says_that_it_leaves() {
    let server = Server::with_long_drain().await;
    let port = management_of(&server).await;
    server.leave().await;
    assert_eq!(status(&server, format!("{port}/ready")).await, 503);
    for url in [&server.url, &port] {
        assert_eq!(status(&server, format!("{url}/health")).await, 503);
        assert_eq!(status(&server, format!("{url}/live")).await, 200);
    }
    let body = json!({"inputs": "Hi!"});
    let (taken, answer) = server.ask("/generate", &body).await;
    assert_eq!(taken, 200, "{answer}");
}

#[tokio::test]
async fn after_the_delay_requests_are_refused_and_running_ones_finish() {
    let limits = ServerLimits {
        drain_delay: Duration::from_millis(20),
        ..ServerLimits::default()
    };
    let server = Server::with(&[], limits).await;
    let port = management_of(&server).await;
    server.mock.hold();
    let body = json!({"inputs": "Hi!"});
    let running = server.post_json("/generate_stream", &body).await;
    server.order_stop();
    until("the delay is over", async || server.state.is_stopping()).await;
    assert_eq!(server.ask("/generate", &body).await.0, 503);
    assert_eq!(status(&server, format!("{port}/live")).await, 200);
    server.mock.resume();
    let text = running.text().await.expect("the whole stream");
    assert!(text.contains(r#""generated_text":"abc""#), "{text}");
    server.stopped().await;
}

#[tokio::test]
async fn a_server_that_has_lost_its_shards_lives_and_is_not_ready() {
    let server = Server::start().await;
    let port = management_of(&server).await;
    server.mock.hold();
    let body = json!({"inputs": "Hi!"});
    let running = server.post_json("/generate_stream", &body).await;
    server.mock.kill();
    until("it says so", async || {
        let response = server.http.get(format!("{port}/ready")).send().await;
        let (status, body) = answer_or_empty(response.expect("an answer")).await;
        status == 503 && body["error"] == "recovering"
    })
    .await;
    assert_eq!(status(&server, format!("{port}/live")).await, 200);
    server.mock.resume();
    server.mock.restart().expect("shards that start again");
    let text = running.text().await.expect("the whole stream");
    assert!(text.contains(r#""generated_text":"abc""#), "{text}");
    until("it is ready", async || {
        status(&server, format!("{port}/ready")).await == 200
    })
    .await;
}

/// Status and body, which is empty where all is well.
async fn answer_or_empty(response: Response) -> (u16, Value) {
    match response.status().as_u16() {
        200 => (200, Value::Null),
        _ => answer(response).await,
    }
}
