//! Cost of the benchmark's own client: 256 streams of about 150 tokens/s from a stub, measured in the process that
//! counts.
//!
//! `make bench-client` prints JSON. The stub runs in this process, the benchmark in one of its own.

#![allow(clippy::unwrap_used, reason = "a failed measurement may panic")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Duration;

use common::{Stub, StubConfig, report, stderr};
use serde_json::json;

const STREAMS: usize = 256;
/// Timers round up to a millisecond, so a step takes a little longer.
const STEP: Duration = Duration::from_millis(6);
const TOKENS: u32 = 1000;

#[tokio::main]
async fn main() {
    let stub = Stub::start(StubConfig {
        step: STEP,
        ..StubConfig::default()
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.json");
    let output = stub
        .bench(&format!(
            "--no-tui --vocab-size 1000 --input-length 32 --output-length {TOKENS} --concurrency {STREAMS} --requests {STREAMS} --output-json {}",
            path.display()
        ))
        .await;
    assert!(output.status.success(), "{}", stderr(&output));
    let point = &report(&path).points[0];
    let result = json!({
        "command": "make bench-client",
        "streams": STREAMS,
        "tokens_per_s": point.rates["output_tokens_per_s"],
        "tokens_per_s_per_stream": point.rates["output_tokens_per_s"] / STREAMS as f64,
        "itl_ms": point.latency_ms["itl"],
        "client": point.client,
    });
    println!("{result:#}");
}
