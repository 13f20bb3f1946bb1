//! Stopping in order, and connections that misbehave.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use std::time::Duration;

use common::{LONG, Server, answer, header, read_to_close, until};
use serde_json::json;
use text_generation_http::connection::ServerLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn limits(header: Duration, graceful: Duration) -> ServerLimits {
    ServerLimits {
        header,
        graceful,
        ..ServerLimits::default()
    }
}

const SHORT: Duration = Duration::from_millis(50);

#[tokio::test]
async fn running_streams_finish_and_nobody_else_is_served() {
    let server = Server::start().await;
    server.mock.hold();
    let body = json!({"inputs": "Hi", "parameters": {"max_new_tokens": 3}});
    let running = server.post_json("/generate_stream", &body).await;
    server.order_stop();
    until("the order is seen", async || server.state.is_stopping()).await;

    let response = server.post_json("/generate", &body).await;
    assert_eq!(header(&response, "retry-after"), "1");
    let (status, refused) = answer(response).await;
    assert_eq!(status, 503);
    assert_eq!(refused["error_type"], "shutting_down");
    let health = server.get("/health").send().await.expect("an answer");
    assert_eq!(answer(health).await.0, 503);
    assert!(!server.has_stopped());

    server.mock.resume();
    let text = running.text().await.expect("the whole stream");
    assert_eq!(text.matches("data: ").count(), 3);
    assert!(text.contains(r#""generated_text":"abc""#));
    server.stopped().await;
}

/// The whole answer to a generation, on a connection that the server closes after it.
async fn last_answer(peer: &mut TcpStream) -> String {
    let request = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
        content-length: 16\r\n\r\n{\"inputs\":\"Hi!\"}";
    peer.write_all(request.as_bytes()).await.expect("sent");
    let answer = String::from_utf8(read_to_close(peer).await).expect("text");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    answer
}

/// A connection that has had an answer and stays open.
async fn used_connection(server: &Server) -> TcpStream {
    let mut peer = server.connect().await;
    let request = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n";
    peer.write_all(request).await.expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        assert_ne!(peer.read_buf(&mut answer).await.expect("an answer"), 0);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    peer
}

#[tokio::test]
async fn while_the_server_leaves_every_answer_is_the_last_of_its_connection() {
    let server = Server::with_long_drain().await;
    let before = used_connection(&server).await;
    server.leave().await;
    for mut peer in [before, server.connect().await] {
        let answer = last_answer(&mut peer).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[tokio::test]
async fn a_request_that_comes_as_the_server_stops_is_refused_with_an_answer() {
    let limits = ServerLimits {
        idle: LONG,
        ..ServerLimits::default()
    };
    let server = Server::with(&[], limits).await;
    let mut kept = used_connection(&server).await;
    server.order_stop();
    // The kernel greets it; the server sees it when it has closed its port.
    let new = std::net::TcpStream::connect(server.address()).expect("a connection");
    new.set_nonblocking(true).expect("a flag");
    let mut new = TcpStream::from_std(new).expect("a socket");
    until("the order is seen", async || server.state.is_stopping()).await;
    for peer in [&mut kept, &mut new] {
        let answer = last_answer(peer).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
    server.stopped().await;
}

#[tokio::test]
async fn an_idle_server_stops_at_once_and_closes_the_port() {
    let server = Server::start().await;
    server.get("/info").send().await.expect("an answer");
    let address = server.url.replace("http://", "");
    server.order_stop();
    server.stopped().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn the_graceful_timeout_ends_what_does_not_finish() {
    let server = Server::with(&[], limits(LONG, SHORT)).await;
    server.mock.hold();
    let body = json!({"inputs": "Hi"});
    let running = server.post_json("/generate_stream", &body).await;
    let body = json!({"prompt": "Hi", "stream": true, "model": "test/model"});
    let openai = server.post_json("/v1/completions", &body).await;
    let whole = tokio::spawn(
        server
            .post("/generate")
            .json(&json!({"inputs": "Hi"}))
            .send(),
    );
    until("all run", async || {
        server.state.infer.snapshot().permits_available == 125
    })
    .await;
    server.order_stop();
    for stream in [running, openai] {
        let text = stream.text().await.expect("the whole stream");
        assert!(text.contains(r#""error_type":"shutting_down""#), "{text}");
    }
    let whole = whole.await.expect("a task").expect("an answer");
    assert_eq!(answer(whole).await.0, 503);
    server.stopped().await;
}

#[tokio::test]
async fn the_loss_of_all_shards_ends_requests_with_their_error_and_takes_no_others() {
    // Neither the drain delay nor the graceful timeout is waited for, whether or not a drain has begun.
    for drains in [false, true] {
        let server = Server::with_long_drain().await;
        server.mock.hold();
        let body = json!({"inputs": "Hi"});
        let running = server.post_json("/generate_stream", &body).await;
        if drains {
            server.leave().await;
        }
        server.order_cut();
        let text = running.text().await.expect("the whole stream");
        let last = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
        assert!(last.contains(r#""error_type":"shutting_down""#), "{text}");
        until("the port is closed", async || {
            let answer = server.post("/generate").json(&body).send().await;
            answer.map_or(true, |answer| {
                assert_eq!(answer.status(), 503);
                false
            })
        })
        .await;
        server.stopped().await;
    }
}

#[tokio::test]
async fn connections_without_a_whole_request_do_not_hold_up_the_end() {
    let limits = ServerLimits {
        idle: SHORT,
        ..limits(LONG, LONG)
    };
    let server = Server::with(&[], limits).await;
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let mut peers = Vec::new();
    for sent in [
        String::new(),
        head.to_owned(),
        format!("{head}content-length: 100\r\n\r\n{{"),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned(),
    ] {
        let mut peer = server.connect().await;
        peer.write_all(sent.as_bytes()).await.expect("sent");
        peers.push(peer);
    }
    // What was sent before this is on its way to being read.
    server.get("/info").send().await.expect("an answer");
    server.order_stop();
    let stopped = tokio::time::timeout(Duration::from_secs(5), server.stopped()).await;
    assert!(stopped.is_ok(), "still waiting for what never comes");
    let mut told = String::new();
    let read = peers[2].read_to_string(&mut told).await;
    read.expect("an answer to half a body");
    assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
    assert!(told.contains("shutting_down"), "{told}");
}

#[tokio::test]
async fn peers_that_do_not_send_a_request_are_disconnected() {
    let server = Server::with(&[], limits(SHORT, LONG)).await;
    let address = server.url.replace("http://", "");
    for sent in ["", "P", "POST /generate HTTP/1.1\r\nhost: x\r\n"] {
        let mut peer = TcpStream::connect(&address).await.expect("a connection");
        peer.write_all(sent.as_bytes()).await.expect("sent");
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(LONG, peer.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "still open after {sent:?}");
    }
}

#[tokio::test]
async fn a_connection_outlives_the_header_timeout_while_it_streams() {
    let server = Server::with(&[], limits(SHORT, LONG)).await;
    server.mock.hold();
    let mut running = server
        .post_json("/generate_stream", &json!({"inputs": "Hi!"}))
        .await;
    tokio::time::sleep(SHORT * 3).await;
    server.mock.resume();
    let mut text = Vec::new();
    while let Some(chunk) = running.chunk().await.expect("a chunk") {
        text.extend_from_slice(&chunk);
    }
    assert!(String::from_utf8_lossy(&text).contains(r#""generated_text":"abc""#));
}

#[tokio::test]
async fn a_client_that_goes_before_its_whole_answer_frees_its_permit() {
    let server = Server::start().await;
    server.mock.hold();
    let free = async || server.state.infer.snapshot().permits_available;
    let request = server.post("/generate").json(&json!({"inputs": "Hi"}));
    let asking = tokio::spawn(request.send());
    until("the request runs", async || free().await == 127).await;
    asking.abort();
    until("the permit is back", async || free().await == 128).await;
}

#[tokio::test]
async fn many_requests_with_dropped_clients_leave_nothing_behind() {
    let server = Server::start().await;
    let body = json!({"inputs": "Hi", "parameters": {"max_new_tokens": 5}});
    for round in 0..30 {
        let stream = server.post_json("/generate_stream", &body).await;
        if round % 3 == 0 {
            drop(stream);
        } else {
            stream.text().await.expect("a body");
        }
    }
    until("everything is given back", async || {
        let gauges = server.state.infer.snapshot();
        gauges.permits_available == 128 && gauges.running == 0 && gauges.slots_used == 0
    })
    .await;
    assert_eq!(server.mock.rows(), 0);
    assert_eq!(server.mock.violations(), Vec::<String>::new());
}
