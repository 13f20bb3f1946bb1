//! HTTP/2 peers that misbehave, frame by frame.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use std::time::Duration;

use common::{BYTES, LONG, Server, read_to_close, until};
use serde_json::json;
use text_generation_http::connection::ServerLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SHORT: Duration = Duration::from_millis(100);

/// A frame of HTTP/2 (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .expect("a small payload")
        .to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_HEADERS: u8 = 4;
/// `POST http://x/`, from the static table of HPACK but for the host.
const REQUEST: [u8; 6] = [0x83, 0x86, 0x84, 0x41, 0x01, b'x'];

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PING: u8 = 6;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
/// Bytes of a frame.
const MOST_DATA: usize = 16_384;
/// Bytes of a stream that the peer takes before it says that it takes more.
const INITIAL_WINDOW_SIZE: u16 = 4;

/// `POST /generate_stream` of one HTTP/2 stream.
fn http2_generation(stream: u32) -> Vec<u8> {
    http2_post(stream, "/generate_stream", br#"{"inputs":"Hi!"}"#)
}

/// A request of one HTTP/2 stream, in literals of HPACK (RFC 7541, 6.2.2).
fn http2_post(stream: u32, path: &str, body: &[u8]) -> Vec<u8> {
    let literal = |index: &[u8], value: &str| {
        let length = u8::try_from(value.len()).expect("a short value");
        [index, &[length], value.as_bytes()].concat()
    };
    let head = [
        vec![0x83, 0x86],
        literal(&[0x04], path),
        literal(&[0x01], "x"),
        literal(&[0x0f, 0x10], "application/json"),
    ];
    let mut frames = frame(HEADERS, END_HEADERS, stream, &head.concat());
    for part in body.chunks(MOST_DATA) {
        frames.extend(frame(DATA, 0, stream, part));
    }
    frames.extend(frame(DATA, END_STREAM, stream, &[]));
    frames
}

/// What a client sends first that takes `window` bytes of each stream.
fn preface(window: u32) -> Vec<u8> {
    let setting = [
        &INITIAL_WINDOW_SIZE.to_be_bytes()[..],
        &window.to_be_bytes(),
    ]
    .concat();
    [PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat()
}

/// Kind and stream of each whole frame.
fn frames(mut received: &[u8]) -> Vec<(u8, u32)> {
    let mut frames = Vec::new();
    while let [high, middle, low, kind, _, a, b, c, d, ..] = *received {
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        frames.push((kind, u32::from_be_bytes([a, b, c, d])));
        received = received.get(9 + length..).unwrap_or_default();
    }
    frames
}

/// Reads until `enough` of what was received.
async fn read_until(client: &mut TcpStream, enough: impl Fn(&[u8]) -> bool) {
    let mut received = Vec::new();
    while !enough(&received) {
        let read = tokio::time::timeout(LONG, client.read_buf(&mut received)).await;
        assert_ne!(read.expect("more in time").expect("more"), 0, "closed");
    }
}

/// A body of ids that take `bytes` bytes as text: four times as many, of which a server takes 65,535 from a connection until it says more.
fn detokenization(bytes: usize) -> Vec<u8> {
    let id = BYTES + u32::from(b'a');
    json!({ "ids": vec![id; bytes] }).to_string().into_bytes()
}

#[tokio::test]
async fn http2_answers_that_are_not_taken_count_until_their_connection_ends() {
    const ANSWER: usize = 3_500;
    for window in [0, 1, 1_000] {
        let server = Server::start().await;
        let memory = server.state.options.memory.clone();
        let mut client = server.connect().await;
        client.write_all(&preface(window)).await.expect("sent");
        for n in 0..4 {
            let request = http2_post(2 * n + 1, "/detokenize", &detokenization(ANSWER));
            client.write_all(&request).await.expect("sent");
        }
        until("all answers are counted", async || {
            memory.held() >= 4 * ANSWER
        })
        .await;
        // Taken in part, and asked for no more.
        assert_eq!(server.ask("/health", &json!({})).await.0, 405);
        assert!(memory.held() >= 4 * ANSWER, "{}", memory.held());
        drop(client);
        until("all are given back", async || memory.held() == 0).await;
    }
}

#[tokio::test]
async fn http2_answers_that_are_not_taken_are_reset_without_a_word_of_the_client() {
    let limits = ServerLimits {
        write: SHORT,
        ..ServerLimits::default()
    };
    for window in [0, 1, 1_000] {
        let server = Server::with(&[], limits).await;
        let mut client = server.connect().await;
        let whole = http2_post(1, "/detokenize", &detokenization(3_500));
        let short = http2_post(3, "/generate", br#"{"inputs":"Hi!"}"#);
        let streamed = http2_generation(5);
        let last = http2_post(7, "/detokenize", &detokenization(3_500));
        let start = [preface(window), whole, short, streamed, last].concat();
        client.write_all(&start).await.expect("sent");
        let unread: &[u32] = if window < 2 { &[1, 3, 5, 7] } else { &[1, 7] };
        read_until(&mut client, |received| {
            let frames = frames(received);
            unread
                .iter()
                .all(|&stream| frames.contains(&(RST_STREAM, stream)))
        })
        .await;
        assert_eq!(server.state.options.memory.held(), 0);
        server.idle().await;
        // Others on the connection are served, to their end.
        let empty = http2_post(9, "/detokenize", br#"{"ids":[]}"#);
        let window = frame(WINDOW_UPDATE, 0, 9, &1000u32.to_be_bytes());
        client
            .write_all(&[empty, window].concat())
            .await
            .expect("sent");
        read_until(&mut client, |received| {
            received.windows(4).any(|part| part == b"text")
        })
        .await;
    }
}

#[tokio::test]
async fn http2_answers_that_are_taken_slowly_arrive_whole() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let request = http2_post(1, "/detokenize", &detokenization(3_500));
    client
        .write_all(&[preface(1), request].concat())
        .await
        .expect("sent");
    let mut received = Vec::new();
    let ended = |received: &[u8]| {
        let end = [0, 0, 0, DATA, END_STREAM, 0, 0, 0, 1];
        received.windows(end.len()).any(|part| part == end)
    };
    while !ended(&received) {
        let more = frame(WINDOW_UPDATE, 0, 1, &1000u32.to_be_bytes());
        client.write_all(&more).await.expect("sent");
        let read = tokio::time::timeout(LONG, client.read_buf(&mut received)).await;
        assert_ne!(read.expect("more in time").expect("more"), 0, "closed");
    }
    let taken = received.iter().filter(|byte| **byte == b'a').count();
    assert!(taken >= 3_500, "{taken}");
    until("all is given back", async || {
        server.state.options.memory.held() == 0
    })
    .await;
}

#[tokio::test]
async fn http2_streams_that_are_not_taken_end_and_their_connection_lives_on() {
    let limits = ServerLimits {
        write: SHORT,
        ..ServerLimits::default()
    };
    let server = Server::with(&["--max-concurrent-requests=4"], limits).await;
    let mut client = server.connect().await;
    let mut start = preface(0);
    for n in 0..4 {
        start.extend(http2_generation(2 * n + 1));
    }
    client.write_all(&start).await.expect("sent");
    until("every permit is taken", async || {
        server.state.infer.snapshot().permits_available == 0
    })
    .await;
    server.idle().await;
    assert_eq!(
        server.ask("/generate", &json!({"inputs": "Hi!"})).await.0,
        200
    );
    let ping = frame(PING, 0, 0, b"alive?  ");
    client.write_all(&ping).await.expect("sent");
    let pong = frame(PING, ACK, 0, b"alive?  ");
    let mut received = Vec::new();
    while !received.windows(pong.len()).any(|bytes| bytes == pong) {
        let read = tokio::time::timeout(LONG, client.read_buf(&mut received)).await;
        assert_ne!(read.expect("more in time").expect("more"), 0, "closed");
    }
}

/// It answers every ping of the server, and so lives for ever.
#[tokio::test]
async fn an_http2_connection_without_a_request_is_closed() {
    let limits = ServerLimits {
        header: SHORT,
        idle: SHORT,
        ..ServerLimits::default()
    };
    let server = Server::with(&[], limits).await;
    let mut client = server.connect().await;
    let start = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    client.write_all(&start).await.expect("sent");
    let ended = tokio::time::timeout(Duration::from_secs(10), read_to_close(&mut client)).await;
    let goaway = ended.expect("closed without a request");
    assert!(goaway.windows(5).any(|bytes| bytes[3] == GOAWAY));
}

#[tokio::test]
async fn http2_peers_that_ask_a_server_that_leaves_are_told_to_go() {
    let server = Server::with_long_drain().await;
    server.leave().await;
    let mut client = server.connect().await;
    let start = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &http2_generation(1)].concat();
    client.write_all(&start).await.expect("sent");
    let text = b"\"generated_text\":\"abc\"";
    let mut received = Vec::new();
    let has = |received: &[u8], part: &[u8]| received.windows(part.len()).any(|at| at == part);
    while !has(&received, text) {
        let read = tokio::time::timeout(LONG, client.read_buf(&mut received)).await;
        assert_ne!(read.expect("more in time").expect("more"), 0, "closed");
    }
    // On stream 0, for all streams that the peer could have opened.
    let goaway = [GOAWAY, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff];
    assert!(has(&received, &goaway));
}

/// Sends frames until the server has closed the connection; returns the kinds of frames that it sent.
async fn flood(
    server: &Server,
    start: Vec<u8>,
    more: impl Fn(u32) -> Vec<u8> + Send + 'static,
) -> Vec<u8> {
    let (mut reading, mut writing) = server.connect().await.into_split();
    let sending = tokio::spawn(async move {
        let start = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &start].concat();
        writing.write_all(&start).await.expect("sent");
        for n in 0..1_000_000 {
            if writing.write_all(&more(n)).await.is_err() {
                return true;
            }
        }
        false
    });
    let mut received = Vec::new();
    let _ = tokio::time::timeout(LONG, reading.read_to_end(&mut received))
        .await
        .expect("closed");
    assert!(
        sending.await.expect("a task"),
        "the server took every frame"
    );
    frames(&received)
        .into_iter()
        .map(|(kind, _)| kind)
        .collect()
}

#[tokio::test]
async fn http2_streams_that_are_reset_at_once_end_their_connection() {
    let server = Server::start().await;
    let kinds = flood(&server, Vec::new(), |n| {
        let stream = 2 * n + 1;
        let reset = frame(RST_STREAM, 0, stream, &8u32.to_be_bytes());
        [frame(HEADERS, END_HEADERS, stream, &REQUEST), reset].concat()
    })
    .await;
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");
    assert_eq!(
        server.ask("/generate", &json!({"inputs": "Hi!"})).await.0,
        200
    );
    server.idle().await;
}

#[tokio::test]
async fn http2_frames_without_data_end_their_connection() {
    let server = Server::start().await;
    let request = frame(HEADERS, END_HEADERS, 1, &REQUEST);
    let kinds = flood(&server, request, |_| frame(DATA, 0, 1, &[]).repeat(100)).await;
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");
    assert_eq!(
        server.ask("/generate", &json!({"inputs": "Hi!"})).await.0,
        200
    );
    server.idle().await;
}
