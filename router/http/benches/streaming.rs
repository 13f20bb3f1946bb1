//! The router alone: streams over HTTP from a mock group of shards, measured from outside its process.
//!
//! `cargo bench -p text-generation-http --bench streaming` prints JSON. For `/generate_stream` and for
//! `/v1/chat/completions`, and for each number of streams:
//! - throughput, shards without delay: tokens per second, and per second of the router's CPU time;
//! - latency, a decode step every 20 ms: time from the choice of a token in the mock to its arrival at the client.
//!
//! The router runs in a process of its own, so its CPU time is read from the kernel. Mock and clients share one;
//! the mock has a thread to itself there, as the clients' tasks would hold up its steps.

#[path = "router/mod.rs"]
mod router;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use router::{Api, BenchResult, Router, VOCAB_SIZE, runtime, stream, word};
use serde_json::json;
use text_generation_mock_shard::{MockConfig, MockShard};
use tokio::runtime::Runtime;

const STEP: Duration = Duration::from_millis(20);

/// When the mock chose token `n` of the stream with seed `s`: `[s][n]`.
type Chosen = Arc<Vec<Mutex<Vec<Instant>>>>;

fn main() -> BenchResult<()> {
    router::run_if_asked();
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
    let router = Router::start(&mock, streams, &[]).await?;

    let cpu_before = router.cpu_time()?;
    let start = Instant::now();
    let clients: Vec<_> = (0..streams)
        .map(|seed| tokio::spawn(stream(api, router.port, seed, tokens)))
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
            word(row.seed, row.generated)
        }),
        ..MockConfig::default()
    }
}
