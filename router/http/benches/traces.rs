//! Benchmark of traces at full load: the router's CPU time for a token with and without them.
//!
//! `cargo bench -p text-generation-http --bench traces` prints JSON. 64 clients ask again and again for short streams,
//! shards answer without delay, and every request is traced, sent to a collector of the client's process. Runs with and
//! without traces take turns.

#[path = "router/mod.rs"]
mod router;

use std::sync::Arc;
use std::time::Duration;

use router::{Api, BenchResult, Router, VOCAB_SIZE, runtime, stream, word};
use serde_json::json;
use text_generation_mock_collector::MockCollector;
use text_generation_mock_shard::{MockConfig, MockShard};
use tokio::runtime::Runtime;

const CLIENTS: usize = 64;
const TOKENS: u32 = 100;
/// Requests of each client in a run.
const REQUESTS: usize = 20;
const ROUNDS: usize = 5;

fn main() -> BenchResult<()> {
    router::run_if_asked();
    let cores = std::thread::available_parallelism()?.get();
    let clients = runtime(cores)?;
    let shards = runtime(1)?;
    let (collector, endpoint) = clients.block_on(MockCollector::start())?;
    let endpoint = format!("--otlp-endpoint={endpoint}");
    let mut micros = [Vec::new(), Vec::new()];
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        // Neither is always the first.
        let mut pair = [0.0, 0.0];
        for index in [round % 2, 1 - round % 2] {
            let flags: &[&str] = if index == 1 { &[&endpoint] } else { &[] };
            pair[index] = clients.block_on(measure(&shards, flags))?;
            micros[index].push(pair[index]);
        }
        eprintln!(
            "round {round}: {pair:.2?} us of the router for a token, without and with traces"
        );
        ratios.push(pair[1] / pair[0]);
    }
    let [without, with] = micros.map(median);
    let report = json!({
        "command": "make bench-traces", "machine_cores": cores, "clients": CLIENTS, "tokens": TOKENS,
        "router_us_per_token": { "without": without, "with": with },
        "spans": collector.spans().len(),
        "ratios": ratios.iter().map(|ratio| (ratio * 1e4).round() / 1e4).collect::<Vec<_>>(),
        "ratio": (median(ratios) * 1e4).round() / 1e4,
    });
    println!("{report:#}");
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2] * 1e4).round() / 1e4
}

/// Microseconds of the router's CPU time for a token, all requests and their spans included.
async fn measure(shards: &Runtime, flags: &[&str]) -> BenchResult<f64> {
    let total = TOKENS + 64;
    let config = MockConfig {
        vocab_size: VOCAB_SIZE,
        max_batch_total_tokens: total * CLIENTS as u32,
        max_input_tokens: 64,
        max_total_tokens: total,
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
    load(router.port, 1).await?;
    let before = router.cpu_time()?;
    load(router.port, REQUESTS).await?;
    // Spans are sent every five seconds: the last ones count too.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let tokens = CLIENTS * REQUESTS * TOKENS as usize;
    Ok((router.cpu_time()? - before).as_secs_f64() * 1e6 / tokens as f64)
}

/// Every client asks so many times.
async fn load(port: u16, requests: usize) -> BenchResult<()> {
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            tokio::spawn(async move {
                for request in 0..requests {
                    stream(Api::Chat, port, client * requests + request, TOKENS).await?;
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
