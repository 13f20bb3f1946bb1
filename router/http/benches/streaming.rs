//! The router alone: streams over HTTP from a mock group of shards, measured from outside its process.
//!
//! `cargo bench -p text-generation-http --bench streaming` prints JSON. For `/generate_stream` and for
//! `/v1/chat/completions`, and for each number of streams:
//! - throughput, shards without delay: tokens per second, and per second of the router's processor time;
//! - latency, a decode step every 20 ms: time from the choice of a token in the mock to its arrival at the client.
//!
//! The router runs in a process of its own, so its processor time is read from the kernel. Mock and clients share one;
//! the mock has a thread to itself there, as the clients' tasks would hold up its steps.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use text_generation_mock_shard::{MockConfig, MockShard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

const ROUTER: &str = "as-router";
const EVENT: &[u8] = b"data:";
const VOCAB_SIZE: u32 = 4096;
const STEP: Duration = Duration::from_millis(20);

type BenchResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
/// The streams that are measured.
#[derive(Debug, Clone, Copy)]
enum Api {
    Raw,
    Chat,
}

impl Api {
    fn path(self) -> &'static str {
        match self {
            Self::Raw => "/generate_stream",
            Self::Chat => "/v1/chat/completions",
        }
    }

    fn body(self, seed: usize, tokens: u32) -> String {
        let body = match self {
            Self::Raw => json!({
                "inputs": "a b c",
                "parameters": { "do_sample": true, "seed": seed, "max_new_tokens": tokens },
            }),
            Self::Chat => json!({
                "messages": [{ "role": "user", "content": "a b c" }],
                "seed": seed,
                "max_tokens": tokens,
                "stream": true,
            }),
        };
        body.to_string()
    }

    /// Events before the first token and after the last: the role; the reason of the end and `[DONE]`.
    fn around(self) -> (usize, usize) {
        match self {
            Self::Raw => (0, 0),
            Self::Chat => (1, 2),
        }
    }
}

/// When the mock chose token `n` of the stream with seed `s`: `[s][n]`.
type Chosen = Arc<Vec<Mutex<Vec<Instant>>>>;

fn main() -> BenchResult<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|argument| argument == ROUTER) {
        let argv = std::iter::once("text-generation-router".to_owned())
            .chain(arguments.into_iter().skip(2));
        let no_tokenizer =
            Box::new(|_: &Path| Err("the benchmark brings its own tokenizer".to_owned()));
        std::process::exit(text_generation_http::main_from_args(argv, no_tokenizer));
    }
    let cores = std::thread::available_parallelism()?.get();
    let clients = runtime(cores)?;
    let shards = runtime(1)?;
    let mut rows = Vec::new();
    for (api, streams) in [Api::Raw, Api::Chat]
        .into_iter()
        .flat_map(|api| [1, 64, 256].map(|streams| (api, streams)))
    {
        // Enough for a second of a fast machine.
        let tokens = if streams == 1 {
            20_000
        } else {
            600_000 / streams
        };
        let throughput = clients.block_on(measure(
            &shards,
            api,
            streams,
            tokens as u32,
            Duration::ZERO,
        ))?;
        let latency = clients.block_on(measure(&shards, api, streams, 200, STEP))?;
        rows.push(json!({
            "path": api.path(),
            "streams": streams,
            "tokens_per_second": throughput.tokens_per_second().round(),
            "tokens_per_second_per_core": throughput.tokens_per_core_second().round(),
            "router_cores_used": throughput.router_cores(),
            "added_ms_p50": latency.added_ms(0.5),
            "added_ms_p99": latency.added_ms(0.99),
        }));
    }
    let report = json!({ "command": "make bench-router", "machine_cores": cores, "step_ms": STEP.as_millis(), "results": rows });
    println!("{report:#}");
    Ok(())
}

fn runtime(threads: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
}

/// One run: `streams` streams of `tokens` tokens each.
struct Run {
    tokens: usize,
    wall: Duration,
    router_cpu: Duration,
    /// Added time of every token, sorted.
    added: Vec<Duration>,
}

impl Run {
    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.wall.as_secs_f64()
    }

    fn tokens_per_core_second(&self) -> f64 {
        self.tokens as f64 / self.router_cpu.as_secs_f64()
    }

    fn router_cores(&self) -> f64 {
        (self.router_cpu.as_secs_f64() / self.wall.as_secs_f64() * 100.0).round() / 100.0
    }

    fn added_ms(&self, quantile: f64) -> f64 {
        let index = ((self.added.len() - 1) as f64 * quantile) as usize;
        (self.added[index].as_secs_f64() * 1e6).round() / 1e3
    }
}

async fn measure(
    shards: &Runtime,
    api: Api,
    streams: usize,
    tokens: u32,
    step: Duration,
) -> BenchResult<Run> {
    let chosen: Chosen = Arc::new((0..streams).map(|_| Mutex::default()).collect());
    let mock = {
        let _entered = shards.enter();
        MockShard::start(mock_config(streams, tokens, step, chosen.clone()))?
    };
    let folder = tempfile::tempdir()?;
    write_tokenizer(folder.path())?;
    std::fs::write(
        folder.path().join("chat_template.jinja"),
        "{{ messages[0].content }}",
    )?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let router = Router::start(&mock, folder.path(), port, streams)?;
    router.wait_ready(port).await?;

    let cpu_before = router.cpu_time()?;
    let start = Instant::now();
    let clients: Vec<_> = (0..streams)
        .map(|seed| tokio::spawn(stream(api, port, seed, tokens)))
        .collect();
    let mut added = Vec::new();
    for (seed, client) in clients.into_iter().enumerate() {
        let arrivals = client.await??;
        let chosen = chosen[seed].lock().unwrap_or_else(PoisonError::into_inner);
        added.extend(
            arrivals
                .iter()
                .zip(chosen.iter())
                .map(|(arrival, chosen)| *arrival - *chosen),
        );
    }
    let wall = start.elapsed();
    let router_cpu = router.cpu_time()? - cpu_before;
    let violations = mock.violations();
    if !violations.is_empty() {
        return Err(format!("the router broke the contract: {violations:?}").into());
    }
    added.sort_unstable();
    Ok(Run {
        tokens: added.len(),
        wall,
        router_cpu,
        added,
    })
}

fn mock_config(streams: usize, tokens: u32, step: Duration, chosen: Chosen) -> MockConfig {
    let total = tokens + 64;
    MockConfig {
        vocab_size: VOCAB_SIZE,
        max_batch_total_tokens: total * streams as u32,
        max_input_tokens: 64,
        max_total_tokens: total,
        step_time: Arc::new(move |computed| match computed.chunks {
            0 => step,
            _ => Duration::ZERO,
        }),
        check_slots: false,
        tokens: Arc::new(move |row| {
            let mut times = chosen[row.seed as usize]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            times.push(Instant::now());
            // Ids of words; the first 256 are bytes.
            256 + (row.seed as u32 * 31 + row.generated * 7) % (VOCAB_SIZE - 256 - 1)
        }),
        ..MockConfig::default()
    }
}

/// A byte-level tokenizer with words of two to five letters beside the bytes, as decoding cost depends on its kind.
fn write_tokenizer(folder: &Path) -> io::Result<()> {
    let bytes = (0u32..256).map(|byte| {
        let shift = match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => {
                return char::from_u32(byte).unwrap_or(' ').to_string();
            }
            0..=0x20 => 0x100 + byte,
            0x7f..=0xa0 => 0x121 + byte - 0x7f,
            _ => 0x143,
        };
        char::from_u32(shift).unwrap_or(' ').to_string()
    });
    let letters: Vec<char> = ('a'..='z').collect();
    let words = (256..VOCAB_SIZE).map(|id| {
        let letter = |n: u32| letters[(id / 26u32.pow(n) % 26) as usize];
        format!("Ġ{}{}{}", letter(2), letter(1), letter(0))
    });
    let vocab: serde_json::Map<String, serde_json::Value> = bytes
        .chain(words)
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string())
}

/// The router in a process of its own; killed on drop.
struct Router(Child);

impl Router {
    fn start(mock: &MockShard, folder: &Path, port: u16, streams: usize) -> io::Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .arg(ROUTER)
            .args([
                "--master-shard-uds-path",
                &mock.path().display().to_string(),
            ])
            .args(["--tokenizer-name", &folder.display().to_string()])
            .args(["--hostname", "127.0.0.1", "--port", &port.to_string()])
            .args(["--max-concurrent-requests", &streams.to_string()])
            .args(["--max-waiting-tokens", "1", "--waiting-served-ratio", "0"])
            .env("LOG_LEVEL", "warn")
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }

    async fn wait_ready(&self, port: u16) -> BenchResult<()> {
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if Instant::now() > end {
                return Err("the router did not start within 30 s".into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// User and system time so far (proc(5), fields 14 and 15, in ticks of 10 ms).
    fn cpu_time(&self) -> BenchResult<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let (_, fields) = stat.rsplit_once(") ").ok_or("unexpected /proc stat")?;
        let ticks = fields
            .split(' ')
            .skip(11)
            .take(2)
            .map(str::parse::<u64>)
            .sum::<Result<u64, _>>()?;
        Ok(Duration::from_millis(ticks * 10))
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads one stream to its end; returns when each token arrived.
async fn stream(api: Api, port: u16, seed: usize, tokens: u32) -> BenchResult<Vec<Instant>> {
    let body = api.body(seed, tokens);
    let mut request = Vec::new();
    write!(
        request,
        "POST {} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        api.path(),
        body.len()
    )?;
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await?;
    socket.write_all(&request).await?;
    let mut arrivals = Vec::with_capacity(tokens as usize);
    let mut buffer = vec![0; 1 << 16];
    let mut kept = 0;
    loop {
        let read = socket.read(&mut buffer[kept..]).await?;
        let now = Instant::now();
        if read == 0 {
            break;
        }
        let end = kept + read;
        arrivals.extend(
            buffer[..end]
                .windows(EVENT.len())
                .filter(|window| *window == EVENT)
                .map(|_| now),
        );
        // An event's mark may be cut by the end of the buffer.
        kept = (EVENT.len() - 1).min(end);
        buffer.copy_within(end - kept..end, 0);
    }
    let (before, after) = api.around();
    let expected = before + tokens as usize + after;
    if arrivals.len() != expected {
        let got = arrivals.len();
        return Err(format!("stream {seed}: {got} events instead of {expected}").into());
    }
    Ok(arrivals[before..expected - after].to_vec())
}
