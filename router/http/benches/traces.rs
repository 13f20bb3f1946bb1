//! What traces cost the router: its processor time for a request, with and without them.
//!
//! `cargo bench -p text-generation-http --bench traces` prints JSON. 64 clients ask again and again, every request is traced,
//! and its spans go to a collector of the clients' process. Runs with and without traces take turns. Short answers show the
//! cost of a trace, which no token adds to; long ones show what share of the router's time that is: with shards that answer
//! at once, and with shards as fast as a GPU with a model of 8 billion parameters.

#[path = "../tests/common/collector.rs"]
mod collector;
#[path = "router/mod.rs"]
mod router;

use std::sync::Arc;
use std::time::{Duration, Instant};

use collector::{Collector, spans};
use router::{Api, BenchResult, Router, VOCAB_SIZE, runtime, stream, word};
use serde_json::{Value, json};
use text_generation_mock_shard::{MockConfig, MockShard};
use tokio::runtime::Runtime;

const CLIENTS: usize = 64;
/// A request and its queue, prefill and decode.
const SPANS: usize = 4;
/// 64 streams of 7,000 tokens a second together.
const GPU_STEP: Duration = Duration::from_micros(9_140);

/// What clients ask for.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// Of each answer.
    tokens: u32,
    /// Of each client in a run.
    requests: usize,
    /// What a step takes.
    step: Duration,
    rounds: usize,
}

const LOADS: [Load; 4] = [
    Load {
        tokens: 2,
        requests: 50,
        step: Duration::ZERO,
        rounds: 9,
    },
    Load {
        tokens: 128,
        requests: 20,
        step: Duration::ZERO,
        rounds: 9,
    },
    Load {
        tokens: 256,
        requests: 10,
        step: Duration::ZERO,
        rounds: 9,
    },
    Load {
        tokens: 128,
        requests: 4,
        step: GPU_STEP,
        rounds: 5,
    },
];

fn main() -> BenchResult<()> {
    router::run_if_asked();
    let cores = std::thread::available_parallelism()?.get();
    let clients = runtime(cores)?;
    let shards = runtime(1)?;
    let (collector, endpoint) = clients.block_on(Collector::start())?;
    let mut rows = Vec::new();
    for load in LOADS {
        rows.push(compare(load, &clients, &shards, &collector, &endpoint)?);
    }
    let report = json!({
        "command": "make bench-traces", "machine_cores": cores, "clients": CLIENTS, "path": Api::Chat.path(),
        "results": rows,
    });
    println!("{report:#}");
    Ok(())
}

/// The rounds of one load, without and with traces.
fn compare(
    load: Load,
    clients: &Runtime,
    shards: &Runtime,
    collector: &Collector,
    endpoint: &str,
) -> BenchResult<Value> {
    let mut micros = [Vec::new(), Vec::new()];
    let mut costs = Vec::new();
    for round in 0..load.rounds {
        // Neither is always the first.
        for traced in [round % 2, 1 - round % 2] {
            let flags: &[&str] = if traced == 1 { &[endpoint] } else { &[] };
            let cpu = clients.block_on(measure(load, shards, flags, collector))?;
            micros[traced].push(cpu);
        }
        let cost = micros[1][round] - micros[0][round];
        eprintln!(
            "{} tokens, {:?} a step: a request takes {:.1} us of the router, {cost:.1} more with its trace",
            load.tokens, load.step, micros[0][round]
        );
        costs.push(cost);
    }
    let [without, with] = micros.map(median);
    let rounded: Vec<f64> = costs.iter().copied().map(tenth).collect();
    Ok(json!({
        "tokens": load.tokens,
        "step_ms": load.step.as_secs_f64() * 1e3,
        "router_us_per_request": { "without": tenth(without), "with": tenth(with) },
        "trace_us": { "median": tenth(median(costs)), "rounds": rounded },
    }))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Microseconds of the router's processor time for a request of `load`, its spans included where `flags` ask for them.
async fn measure(
    load: Load,
    shards: &Runtime,
    flags: &[&str],
    collector: &Collector,
) -> BenchResult<f64> {
    let total = load.tokens + 64;
    let config = MockConfig {
        vocab_size: VOCAB_SIZE,
        max_batch_total_tokens: total * CLIENTS as u32,
        max_input_tokens: 64,
        max_total_tokens: total,
        step_time: Arc::new(move |computed| match computed.chunks {
            0 => load.step,
            _ => Duration::ZERO,
        }),
        check_slots: false,
        tokens: Arc::new(|row| word(row.seed, row.generated)),
        ..MockConfig::default()
    };
    let mock = {
        let _entered = shards.enter();
        MockShard::start(config)?
    };
    let router = Router::start(&mock, CLIENTS, flags).await?;
    // What happens once, such as the connection to the collector, is not measured.
    run(load.tokens, 1, router.port).await?;
    let traced = if flags.is_empty() { 0 } else { SPANS * CLIENTS };
    collected(collector, traced).await?;
    let before = router.cpu_time()?;
    run(load.tokens, load.requests, router.port).await?;
    collected(collector, traced * load.requests).await?;
    let requests = CLIENTS * load.requests;
    Ok((router.cpu_time()? - before).as_secs_f64() * 1e6 / requests as f64)
}

/// Waits until the collector has got so many spans since the last time.
async fn collected(collector: &Collector, expected: usize) -> BenchResult<()> {
    let limit = Instant::now() + Duration::from_secs(30);
    let mut got = 0;
    while got < expected {
        if Instant::now() > limit {
            return Err(format!("{got} spans instead of {expected} came").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        got += spans(collector.take()).count();
    }
    Ok(())
}

/// Every client asks so many times.
async fn run(tokens: u32, requests: usize, port: u16) -> BenchResult<()> {
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            tokio::spawn(async move {
                for request in 0..requests {
                    stream(Api::Chat, port, client * requests + request, tokens).await?;
                }
                BenchResult::Ok(())
            })
        })
        .collect();
    for client in clients {
        client.await??;
    }
    Ok(())
}
