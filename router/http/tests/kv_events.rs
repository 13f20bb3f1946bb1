//! Events of the prefix cache, as subscribers get them.

#![allow(clippy::expect_used, reason = "tests may fail")]

mod common;

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::{LONG, Server, adapters, lora_adapters};
use serde_json::{Value, json};
use text_generation_http::connection::ServerLimits;
use text_generation_mock_shard::MockConfig;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const TOPIC: &str = "kv@here:80@model";

/// A port that is free and that no other caller gets.
///
/// It lies below those that the kernel gives to connections, which may take any of those at any time.
fn free_port() -> u16 {
    const FIRST: u16 = 12_000;
    const PORTS: u32 = 20_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let from = std::process::id().wrapping_mul(97);
    loop {
        let next = from.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = FIRST + u16::try_from(next).expect("below 20000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Number and events of a batch.
fn read(frames: &[Bytes]) -> (i64, Vec<Value>) {
    let frames: &[Bytes; 3] = frames.try_into().expect("three frames");
    let [topic, number, payload] = frames;
    assert_eq!(topic.as_ref(), TOPIC.as_bytes());
    let number = i64::from_be_bytes(number.as_ref().try_into().expect("eight bytes"));
    if number < 0 {
        assert!(payload.is_empty());
        return (number, Vec::new());
    }
    let batch: Value = rmp_serde::from_slice(payload).expect("MessagePack");
    assert!(batch[0].as_f64().is_some_and(|time| time > 1e9), "{batch}");
    assert_eq!(batch[2], 0, "the data parallel rank");
    (number, batch[1].as_array().expect("events").clone())
}

async fn take(socket: &mut impl SocketRecv) -> Vec<Bytes> {
    let message = timeout(LONG, socket.recv())
        .await
        .expect("a message in time");
    message.expect("a message").into_vec()
}

/// All batches from `first` on, asked for as vLLM's clients do.
async fn replayed(port: u16, first: u64) -> Vec<(i64, Vec<Value>)> {
    let mut dealer = DealerSocket::new();
    let endpoint = format!("tcp://127.0.0.1:{port}");
    dealer.connect(&endpoint).await.expect("a connection");
    let mut asked = ZmqMessage::from(Bytes::copy_from_slice(&first.to_be_bytes()));
    asked.push_front(Bytes::new());
    dealer.send(asked).await.expect("sent");
    let mut batches = Vec::new();
    loop {
        let frames = take(&mut dealer).await;
        assert!(frames[0].is_empty());
        let batch = read(&frames[1..]);
        if batch.0 < 0 {
            return batches;
        }
        batches.push(batch);
    }
}

fn of_type<'a>(batches: &'a [(i64, Vec<Value>)], kind: &str) -> Vec<&'a Value> {
    let events = batches.iter().flat_map(|(_, events)| events);
    events.filter(|event| event["type"] == kind).collect()
}

/// Events of which a client asks for earlier ones at the port `replay`.
fn replaying(replay: u16) -> Value {
    json!({
        "enable_kv_cache_events": true,
        "endpoint": format!("tcp://127.0.0.1:{}", free_port()),
        "replay_endpoint": format!("tcp://127.0.0.1:{replay}"),
        "topic": TOPIC,
    })
}

#[tokio::test]
async fn subscribers_hear_what_is_cached_and_may_ask_again() {
    let (events, replay) = (free_port(), free_port());
    let config = json!({
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        "endpoint": format!("tcp://127.0.0.1:{events}"),
        "replay_endpoint": format!("tcp://127.0.0.1:{replay}"),
        "topic": TOPIC,
    });
    let server = Server::with_flags(&["--kv-events-config", &config.to_string()]).await;
    let mut live = SubSocket::new();
    let endpoint = format!("tcp://127.0.0.1:{events}");
    live.connect(&endpoint).await.expect("a connection");
    live.subscribe("kv@").await.expect("subscribed");

    let prompt = "The same prompt, of forty characters, ok.";
    let body = json!({"inputs": prompt, "parameters": {"max_new_tokens": 1, "cache_salt": "s"}});
    server.good("/generate", &body).await;
    server.idle().await;
    let batches = replayed(replay, 0).await;
    // Whoever has known this server before forgets it.
    assert_eq!(batches[0], (0, vec![json!({"type": "AllBlocksCleared"})]));
    let stored = of_type(&batches, "BlockStored");
    let ids: Vec<u32> = prompt
        .bytes()
        .map(|byte| common::BYTES + u32::from(byte))
        .collect();
    assert_eq!(stored.len(), 1);
    let stored = stored[0];
    assert_eq!(stored["token_ids"], json!(ids[..32]));
    assert_eq!(stored["block_hashes"].as_array().map(Vec::len), Some(2));
    for (field, value) in [
        ("parent_block_hash", Value::Null),
        ("block_size", json!(16)),
        ("medium", json!("GPU")),
        ("lora_id", Value::Null),
        ("lora_name", Value::Null),
        ("extra_keys", json!([["s"], null])),
        ("group_idx", json!(0)),
        ("kv_cache_spec_kind", json!("full_attention")),
    ] {
        assert_eq!(stored[field], value, "{field}");
    }

    // The same again stores nothing; a prompt that goes on stores the rest.
    server.good("/generate", &body).await;
    let longer = format!("{prompt} And some more.");
    let parameters = json!({"max_new_tokens": 1, "cache_salt": "s"});
    let body = json!({"inputs": longer, "parameters": parameters});
    server.good("/generate", &body).await;
    server.idle().await;
    let missed = replayed(replay, 1).await;
    let stored = of_type(&missed, "BlockStored");
    assert_eq!(stored.len(), 2);
    assert_eq!(stored[1]["parent_block_hash"], stored[0]["block_hashes"][1]);
    assert_eq!(stored[1]["extra_keys"], Value::Null);

    // A subscription takes a moment to arrive: something new is cached until something is heard.
    let mut heard = None;
    for turn in 0_u32.. {
        let body =
            json!({"inputs": format!("{turn} {prompt}"), "parameters": {"max_new_tokens": 1}});
        server.good("/generate", &body).await;
        if let Ok(message) = timeout(Duration::from_millis(100), live.recv()).await {
            heard = Some(message.expect("a message").into_vec());
            break;
        }
    }
    let (number, events) = read(&heard.expect("a batch"));
    let again = replayed(replay, number.unsigned_abs()).await;
    assert_eq!(again[0], (number, events));
}

#[tokio::test]
async fn blocks_of_adapters_are_told_from_those_of_the_base() {
    let replay = free_port();
    let events = replaying(replay);
    let model = MockConfig {
        adapters: adapters(&["pirate", "sums"]),
        ..common::alphabet()
    };
    let flags = [
        "--kv-events-config",
        &events.to_string(),
        &lora_adapters(&["pirate", "sums"]),
    ];
    let server = Server::over(model, &flags, ServerLimits::default()).await;
    for adapter in [Value::Null, json!("pirate"), json!("sums")] {
        let parameters = json!({"max_new_tokens": 1, "adapter_id": adapter});
        let inputs = "The same prompt of everybody, long enough.";
        let body = json!({"inputs": inputs, "parameters": parameters});
        server.good("/generate", &body).await;
    }
    server.idle().await;
    let batches = replayed(replay, 0).await;
    let stored = of_type(&batches, "BlockStored");
    let named: Vec<_> = stored
        .iter()
        .map(|event| json!([event["lora_id"], event["lora_name"], event["extra_keys"]]))
        .collect();
    let of = |number: u32, name: &str| json!([number, name, [[name], [name]]]);
    assert_eq!(
        named,
        [json!([null, null, null]), of(1, "pirate"), of(2, "sums")]
    );
    assert_eq!(stored[0]["token_ids"], stored[1]["token_ids"]);
    assert_ne!(stored[0]["block_hashes"], stored[1]["block_hashes"]);
    assert_ne!(stored[1]["block_hashes"], stored[2]["block_hashes"]);
}

#[tokio::test]
async fn nothing_is_stored_where_nothing_is_cached() {
    for (recurrent, caching) in [(false, "false"), (true, "true")] {
        let replay = free_port();
        let events = replaying(replay);
        let caching = format!("--prefix-caching={caching}");
        let flags = ["--kv-events-config", &events.to_string(), &caching];
        let model = MockConfig {
            recurrent,
            ..common::alphabet()
        };
        let server = Server::over(model, &flags, ServerLimits::default()).await;
        let inputs = "A prompt of more than thirty-two characters.";
        let body = json!({"inputs": inputs, "parameters": {"max_new_tokens": 1}});
        server.good("/generate", &body).await;
        server.idle().await;
        let cleared = json!({"type": "AllBlocksCleared"});
        assert_eq!(replayed(replay, 0).await, [(0, vec![cleared])]);
    }
}
