//! What bodies with images cost the router, and the streams beside them.
//!
//! `cargo bench -p text-generation-http --bench bodies` prints JSON. Clients send chats with a file of 15 MB again and
//! again, in the form of OpenAI or of Anthropic; beside them others read streams of a token every 5 ms. The file is a tiny
//! GIF with bytes behind its end, so that next to nothing of the time is decoding of pixels.

#[path = "router/mod.rs"]
mod router;

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::try_join_all;
use router::{Api, BenchResult, Router, VOCAB_SIZE, runtime, stream, word};
use serde_json::{Value, json};
use text_generation_mock_shard::{MockConfig, MockShard, MockStep};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

const GIF: &[u8] = include_bytes!("../../images/tests/oracle/pictures/one.gif");
const BYTES: usize = 15_000_000;
const SENDERS: usize = 4;
/// Of each.
const REQUESTS: usize = 8;
const STREAMS: usize = 4;
const TOKENS: u32 = 800;
const STEP: Duration = Duration::from_millis(5);

fn main() -> BenchResult<()> {
    router::run_if_asked();
    let clients = runtime(1)?;
    let shards = runtime(1)?;
    let mut file = GIF.to_vec();
    // Nothing that compresses or repeats.
    file.extend((0..BYTES as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8));
    let base64 = STANDARD.encode(&file);
    let url = format!("data:image/gif;base64,{base64}");
    let source = json!({"type": "base64", "media_type": "image/gif", "data": base64});
    let mut rows = Vec::new();
    for (path, part) in [
        (
            "/v1/chat/completions",
            json!({"type": "image_url", "image_url": {"url": url}}),
        ),
        ("/v1/messages", json!({"type": "image", "source": source})),
        ("", Value::Null),
    ] {
        let body = json!({
            "model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [part]}],
        });
        rows.push(clients.block_on(measure(&shards, path, &body.to_string()))?);
    }
    println!(
        "{:#}",
        json!({ "command": "make bench-bodies", "bytes": BYTES, "senders": SENDERS, "streams": STREAMS, "results": rows })
    );
    Ok(())
}

async fn measure(shards: &Runtime, path: &str, body: &str) -> BenchResult<Value> {
    let config = MockConfig {
        vocab_size: VOCAB_SIZE + 1,
        check_slots: false,
        step_time: Arc::new(|_: &MockStep| STEP),
        tokens: Arc::new(|row| word(row.seed, row.generated)),
        ..MockConfig::default()
    };
    let mock = {
        let _entered = shards.enter();
        MockShard::start(config.with_encoder(VOCAB_SIZE, 256))?
    };
    let router = Router::start(&mock, 64, &["--media-rows", "256"]).await?;
    let small = router.peak_memory()?;
    let before = router.cpu_time()?;
    let streams: Vec<_> = (0..STREAMS)
        .map(|seed| tokio::spawn(stream(Api::Chat, router.port, seed, TOKENS)))
        .collect();
    let mut times = Vec::new();
    if !path.is_empty() {
        let senders = (0..SENDERS).map(|_| send(router.port, path, body));
        times = try_join_all(senders).await?.concat();
    }
    let mut gaps = Vec::new();
    for stream in streams {
        let arrivals = stream.await??;
        let pairs = arrivals.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.extend(pairs.map(|gap| gap.as_secs_f64() * 1e3));
    }
    gaps.sort_by(f64::total_cmp);
    times.sort_by(f64::total_cmp);
    let cpu = (router.cpu_time()? - before).as_secs_f64() * 1e3;
    Ok(json!({
        "path": path,
        "requests": times.len(),
        "request_ms_p50": times.get(times.len() / 2),
        "router_cpu_ms": cpu,
        "gap_ms_p50": gaps[gaps.len() / 2],
        "gap_ms_p99": gaps[gaps.len() * 99 / 100],
        "gap_ms_max": gaps.last(),
        "peak_mb": (router.peak_memory()? - small) as f64 / 1e6,
    }))
}

/// Sends a body again and again; returns how long each took, in milliseconds.
async fn send(port: u16, path: &str, body: &str) -> BenchResult<Vec<f64>> {
    let mut times = Vec::new();
    for _ in 0..REQUESTS {
        let began = Instant::now();
        ask(port, path, body).await?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// Sends one body; returns once it is answered.
async fn ask(port: u16, path: &str, body: &str) -> BenchResult<()> {
    let mut head = Vec::new();
    write!(
        head,
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )?;
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await?;
    socket.write_all(&head).await?;
    socket.write_all(body.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    match answer.starts_with("HTTP/1.1 200") {
        true => Ok(()),
        false => Err(answer.into()),
    }
}
