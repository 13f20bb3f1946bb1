//! Peers that hold connections, read slowly, ask too often, or go at a bad moment.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use std::time::Duration;

use common::{LONG, Server, alphabet, answer, header, read_to_close, until};
use serde_json::{Value, json};
use socket2::{SockFilter, SockRef};
use text_generation_http::connection::ServerLimits;
use text_generation_mock_shard::MockConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const SHORT: Duration = Duration::from_millis(100);

fn limits() -> ServerLimits {
    ServerLimits::default()
}

fn post(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// One request runs, and another waits for its place.
async fn one_waits(server: &Server) {
    until("one runs and the other waits", async || {
        server.mock.release(1);
        let gauges = server.state.infer.snapshot();
        (gauges.running, gauges.queued) == (1, 1)
    })
    .await;
}

/// The permit of the other is back.
async fn one_is_left(server: &Server) {
    until("its permit is back", async || {
        server.state.infer.snapshot().permits_available == 127
    })
    .await;
}

#[tokio::test]
async fn a_client_that_goes_while_queued_leaves_the_queue() {
    let server = Server::with_flags(&["--max-batch-size=1"]).await;
    server.mock.hold();
    let body = json!({"inputs": "Hi", "parameters": {"max_new_tokens": 1000}});
    let running = server.post_json("/generate_stream", &body).await;
    let waiting = server.post_json("/generate_stream", &body).await;
    one_waits(&server).await;
    drop(waiting);
    one_is_left(&server).await;
    drop(running);
    server.mock.resume();
    server.idle().await;
    let prefills = server
        .mock
        .steps()
        .iter()
        .filter(|step| step.chunks > 0)
        .count();
    assert_eq!(prefills, 1, "what nobody waits for was computed");
}

/// `nc -N`, and what shuts its writing side once it has sent all.
#[tokio::test]
async fn a_client_that_ends_its_side_gets_its_answer() {
    let server = Server::start().await;
    let inputs = json!({"inputs": "Hi!", "parameters": {"max_new_tokens": 3}});
    for (path, end) in [
        ("/generate", "\"generated_text\""),
        ("/generate_stream", "\"generated_text\":\""),
        ("/tokenize", "\"stop\":3}"),
    ] {
        for ends_at_once in [true, false] {
            server.mock.hold();
            let mut client = server.connect().await;
            client.write_all(&post(path, &inputs)).await.expect("sent");
            if !ends_at_once && path != "/tokenize" {
                until("it runs", async || {
                    server.state.infer.snapshot().running == 1
                })
                .await;
            }
            client.shutdown().await.expect("one side is ended");
            server.mock.resume();
            let answer = read_to_close(&mut client).await;
            let answer = String::from_utf8_lossy(&answer);
            assert!(
                answer.starts_with("HTTP/1.1 200 OK\r\n"),
                "{path}: {answer}"
            );
            assert!(answer.contains(end), "{path}: {answer}");
        }
    }
    // Two requests in one go, and one whose body is not complete.
    let mut client = server.connect().await;
    let two = [post("/generate", &inputs), post("/tokenize", &inputs)].concat();
    client.write_all(&two).await.expect("sent");
    client.shutdown().await.expect("one side is ended");
    let answers = read_to_close(&mut client).await;
    let answers = String::from_utf8_lossy(&answers);
    assert_eq!(
        answers.matches("HTTP/1.1 200 OK\r\n").count(),
        2,
        "{answers}"
    );
    let mut client = server.connect().await;
    let sent = post("/generate", &inputs);
    client
        .write_all(&sent[..sent.len() - 5])
        .await
        .expect("sent");
    client.shutdown().await.expect("one side is ended");
    let answer = read_to_close(&mut client).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("its end"),
        "{answer}"
    );
    server.idle().await;
}

/// It looks like a client that has ended its side, until something is sent.
#[tokio::test]
async fn a_client_that_goes_without_a_stream_leaves_the_queue() {
    let server = Server::with_flags(&["--max-batch-size=1"]).await;
    server.mock.hold();
    let body = json!({"inputs": "Hi", "parameters": {"max_new_tokens": 1000}});
    let running = server.post_json("/generate_stream", &body).await;
    for (path, prompt) in [
        ("/generate", "inputs"),
        ("/v1/completions", "prompt"),
        ("/generate_stream", "inputs"),
    ] {
        let body = json!({prompt: "Hi"});
        let mut waiting = server.connect().await;
        waiting.write_all(&post(path, &body)).await.expect("sent");
        one_waits(&server).await;
        drop(waiting);
        one_is_left(&server).await;
    }
    drop(running);
    server.mock.resume();
    server.idle().await;
}

#[tokio::test]
async fn a_request_that_waits_too_long_is_told_to_come_back() {
    let server = Server::with_flags(&["--max-batch-size=1", "--max-queue-time=0.01"]).await;
    server.mock.hold();
    let body = json!({"inputs": "Hi", "parameters": {"max_new_tokens": 1000}});
    let running = server.post_json("/generate_stream", &body).await;
    let waiting = tokio::spawn(server.post("/generate").json(&body).send());
    until("the one that waits is refused", async || {
        server.mock.release(1);
        waiting.is_finished()
    })
    .await;
    let refused = waiting.await.expect("a task").expect("an answer");
    assert_eq!(header(&refused, "retry-after"), "1");
    let (status, body) = answer(refused).await;
    assert_eq!(status, 429);
    assert_eq!(body["error_type"], "overloaded");
    server.mock.resume();
    let text = running.text().await.expect("the whole stream");
    assert!(text.contains("generated_text"), "{text}");
    server.idle().await;
}

#[tokio::test]
async fn ten_times_the_limit_is_refused_at_once_and_the_rest_is_served() {
    let server = Server::with_flags(&["--max-concurrent-requests=4"]).await;
    server.mock.hold();
    let body = json!({"inputs": "Hi!"});
    let requests = (0..40).map(|_| tokio::spawn(server.post("/generate").json(&body).send()));
    let mut waiting: Vec<_> = requests.collect();
    let mut refused = 0;
    while refused < 36 {
        let (response, _, rest) = futures::future::select_all(waiting).await;
        waiting = rest;
        let response = response.expect("a task").expect("an answer");
        assert_eq!(header(&response, "retry-after"), "1");
        assert_eq!(answer(response).await.0, 429);
        refused += 1;
    }
    assert_eq!(server.state.infer.snapshot().permits_available, 0);
    server.mock.resume();
    for response in waiting {
        let response = response.await.expect("a task").expect("an answer");
        assert_eq!(answer(response).await.0, 200);
    }
    server.idle().await;
}

/// Its answer is larger than what the sockets hold, so that the server has to wait for it.
#[tokio::test]
async fn a_reader_that_stalls_loses_its_connection_and_holds_nobody_up() {
    let model = MockConfig {
        max_total_tokens: 12_000,
        check_slots: false,
        ..alphabet()
    };
    let limits = ServerLimits {
        write: SHORT,
        ..limits()
    };
    let server = Server::over(model, &["--max-top-n-tokens=20"], limits).await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let address = server.address().parse().expect("an address");
    let mut stalled = socket.connect(address).await.expect("a connection");
    let body =
        json!({"inputs": "Hi", "parameters": {"max_new_tokens": 10_000, "top_n_tokens": 20}});
    stalled
        .write_all(&post("/generate_stream", &body))
        .await
        .expect("sent");
    let mut first = [0; 64];
    stalled
        .read_exact(&mut first)
        .await
        .expect("the start of the answer");

    let other = json!({"inputs": "Hi", "parameters": {"max_new_tokens": 20}});
    let text = server
        .post_json("/generate_stream", &other)
        .await
        .text()
        .await
        .expect("a body");
    assert_eq!(text.matches("data: ").count(), 20);

    server.idle().await;
    let rest = read_to_close(&mut stalled).await;
    let rest = String::from_utf8_lossy(&rest);
    assert!(
        !rest.contains("\"index\":10000,"),
        "the whole answer was kept for it"
    );
}

/// From now on the host of this client is gone: its kernel drops what arrives, so it acknowledges nothing.
fn vanish(client: &TcpStream) {
    const BPF_RET: u16 = 0x06;
    let accept_no_bytes = [SockFilter::new(BPF_RET, 0, 0, 0)];
    let attached = SockRef::from(client).attach_filter(&accept_no_bytes);
    attached.expect("a filter of the socket");
}

#[tokio::test]
async fn clients_whose_host_is_gone_are_found_out() {
    let limits = ServerLimits {
        write: Duration::from_secs(1),
        ..limits()
    };
    let server = Server::with(&[], limits).await;
    server.mock.hold();
    let body = json!({"inputs": "Hi", "parameters": {"max_new_tokens": 1000}});
    let mut streams = server.connect().await;
    let request = post("/generate_stream", &body);
    streams.write_all(&request).await.expect("sent");
    server.mock.release(1);
    let mut first = [0; 64];
    let read = streams.read_exact(&mut first).await;
    read.expect("the start of the answer");
    let mut waits = server.connect().await;
    let request = post("/generate", &body);
    waits.write_all(&request).await.expect("sent");
    let permits = || server.state.infer.snapshot().permits_available;
    until("both run or wait", async || permits() == 126).await;

    vanish(&streams);
    vanish(&waits);
    // Something to send for the one, nothing for the other.
    server.mock.release(1);
    until("both have lost their connection", async || permits() == 128).await;
    server.mock.resume();
    server.idle().await;
}

#[tokio::test]
async fn a_body_that_drips_is_cut_off() {
    let server = Server::with_flags(&["--client-timeout=1"]).await;
    let mut stream = server.connect().await;
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = [0; 12];
    let read = tokio::time::timeout(LONG, stream.read_exact(&mut answer)).await;
    read.expect("an answer in time").expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 408");
}

#[tokio::test]
async fn idle_and_dripping_connections_are_closed_and_the_server_serves_on() {
    let limits = ServerLimits {
        header: Duration::from_millis(500),
        ..limits()
    };
    let server = Server::over(alphabet(), &[], limits).await;
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(server.connect().await);
    }
    // A keep-alive connection that has been served once.
    let mut served = server.connect().await;
    served
        .write_all(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .expect("sent");
    let (mut reading, mut writing) = server.connect().await.into_split();
    let drip = tokio::spawn(async move {
        // Until the server has closed.
        for byte in b"GET /live HTTP/1.1\r\nx-a: "
            .iter()
            .chain([b'a'].iter().cycle())
        {
            if writing.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(
        server
            .get("/live")
            .send()
            .await
            .expect("an answer")
            .status(),
        200
    );
    for stream in idle.iter_mut().chain([&mut served]) {
        read_to_close(stream).await;
    }
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LONG, reading.read_to_end(&mut answer))
        .await
        .expect("closed");
    tokio::time::timeout(LONG, drip)
        .await
        .expect("closed")
        .expect("a task");
    assert_eq!(
        server
            .get("/live")
            .send()
            .await
            .expect("an answer")
            .status(),
        200
    );
}

#[tokio::test]
async fn resets_in_the_head_in_the_body_and_in_the_stream_harm_nobody() {
    let server = Server::start().await;
    let body = json!({"inputs": "Hi", "parameters": {"max_new_tokens": 1000}});
    let request = post("/generate_stream", &body);
    for sent in [5, 40, request.len() - 3, request.len()] {
        let mut stream = server.connect().await;
        stream.write_all(&request[..sent]).await.expect("sent");
        if sent == request.len() {
            stream
                .read_exact(&mut [0; 12])
                .await
                .expect("the start of the answer");
        }
        stream
            .set_zero_linger()
            .expect("a reset when it is dropped");
        drop(stream);
    }
    server.idle().await;
    assert_eq!(
        server.ask("/generate", &json!({"inputs": "Hi!"})).await.0,
        200
    );
}

const LIVE: &[u8] = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n";

/// Asks on a connection that stays open and returns the status of the answer.
async fn status_of(stream: &mut TcpStream, request: &[u8]) -> String {
    stream.write_all(request).await.expect("sent");
    let mut start = [0; 12];
    let read = tokio::time::timeout(LONG, stream.read_exact(&mut start)).await;
    read.expect("an answer in time").expect("an answer");
    String::from_utf8_lossy(&start[9..]).into_owned()
}

#[tokio::test]
async fn connections_over_the_limit_are_told_to_come_back_and_probes_are_answered() {
    let limits = ServerLimits {
        connections: 2,
        probes: 1,
        ..limits()
    };
    let server = Server::over(alphabet(), &[], limits).await;
    server.mock.hold();
    let stream = post("/generate_stream", &json!({"inputs": "Hi"}));
    let mut busy = [server.connect().await, server.connect().await];
    for connection in &mut busy {
        assert_eq!(status_of(connection, &stream).await, "200");
    }
    let mut probe = server.connect().await;
    assert_eq!(status_of(&mut probe, LIVE).await, "200");
    let mut further = server.connect().await;
    let no_place_at_all = read_to_close(&mut further).await;
    probe.write_all(&stream).await.expect("sent");
    let no_probe = read_to_close(&mut probe).await;
    for answers in [no_place_at_all, no_probe] {
        let answers = String::from_utf8_lossy(&answers);
        let refusal = answers.find("HTTP/1.1 503 ").map(|start| &answers[start..]);
        let refusal = refusal.expect("a refusal");
        assert!(refusal.contains("\r\nretry-after: 1\r\n"), "{refusal}");
        assert!(refusal.contains("\r\nconnection: close\r\n"), "{refusal}");
        let (head, body) = refusal.split_once("\r\n\r\n").expect("a body");
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{refusal}"
        );
        let body: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["error_type"], "too_many_connections");
    }
    drop(busy);
    server.mock.resume();
    until("there is a place again", async || {
        let answer = server.ask("/generate", &json!({"inputs": "Hi!"})).await;
        answer.0 == 200
    })
    .await;
    server.idle().await;
}

#[tokio::test]
async fn a_connection_that_does_nothing_makes_room_for_one_that_asks() {
    let limits = ServerLimits {
        connections: 3,
        probes: 0,
        idle: Duration::ZERO,
        ..limits()
    };
    let server = Server::over(alphabet(), &[], limits).await;
    server.mock.hold();
    let mut busy = server.connect().await;
    let stream = post("/generate_stream", &json!({"inputs": "Hi!"}));
    assert_eq!(status_of(&mut busy, &stream).await, "200");
    let mut silent = server.connect().await;
    let mut served = server.connect().await;
    assert_eq!(status_of(&mut served, LIVE).await, "200");

    let mut asks = server.connect().await;
    assert_eq!(status_of(&mut asks, LIVE).await, "200");
    assert!(read_to_close(&mut silent).await.is_empty());
    let mut rest = vec![0; 4096];
    let read = served.try_read(&mut rest);
    assert!(!matches!(read, Ok(0)), "the longest idle one goes first");
    server.mock.resume();
    let answer = read_until(&mut busy, "generated_text\":\"abc").await;
    assert!(answer.contains("data: "), "{answer}");
}

/// Reads until the text has come.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut all = Vec::new();
    while !String::from_utf8_lossy(&all).contains(text) {
        let read = tokio::time::timeout(LONG, stream.read_buf(&mut all)).await;
        let read = read.expect("more in time").expect("more");
        assert_ne!(read, 0, "closed after {}", String::from_utf8_lossy(&all));
    }
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test]
async fn a_request_names_its_host_once() {
    let server = Server::start().await;
    for (hosts, version, status) in [
        ("", "1.1", "400"),
        ("host: x\r\nhost: x\r\n", "1.1", "400"),
        ("host: x\r\nhost: y\r\n", "1.0", "400"),
        ("host: x\r\n", "1.1", "200"),
        ("", "1.0", "200"),
    ] {
        let request = format!("GET /live HTTP/{version}\r\n{hosts}connection: close\r\n\r\n");
        let answer = server.ask_bytes(request.as_bytes()).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{request}{answer}");
        assert_eq!(status == "400", answer.contains("`Host`"), "{answer}");
    }
}

#[tokio::test]
async fn a_body_that_is_said_to_be_too_large_is_not_asked_for() {
    let server = Server::start().await;
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
        content-length: 10000000000\r\nexpect: 100-continue\r\n\r\n";
    let answer = server.ask_bytes(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("payload_too_large"), "{answer}");
}

#[tokio::test]
async fn large_and_many_headers_are_refused_with_a_key_and_without() {
    let server = Server::with_flags(&["--api-key=Secret"]).await;
    let head = |extra: &str| {
        format!("POST /generate HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{extra}\r\n")
    };
    let many: String = (0..1000).map(|n| format!("x-{n}: 1\r\n")).collect();
    for (extra, status) in [
        (format!("x-large: {}\r\n", "x".repeat(8193)), "401"),
        (format!("x-large: {}\r\n", "x".repeat(100_000)), "431"),
        (many, "431"),
    ] {
        let answer = server.ask_bytes(head(&extra).as_bytes()).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{answer}");
    }
    assert_eq!(
        server
            .get("/live")
            .send()
            .await
            .expect("an answer")
            .status(),
        200
    );
}
