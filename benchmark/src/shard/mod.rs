//! Shard mode: prefill and decode over the sockets of the shards, in place of a router.

pub mod args;
mod step;
mod summary;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use text_generation_client::types::{ServingLimits, ShardInfo, WarmupLimits};
use text_generation_client::{ClientError, Deadlines, ShardedClient};

use self::args::{Place, ShardArgs};
use self::step::{Run, run_once};
use self::summary::summarize;
use crate::error::{BenchmarkError, Result};
use crate::floor::Floor;
use crate::live::Live;
use crate::prompts::PromptMaker;
use crate::report::Report;

/// The reason of a call before the model is loaded, and of a second Warmup; see `docs/errors.md`.
const NOT_READY: &str = "not_ready";
/// Between questions whether the model is loaded.
const LOADING_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the grid. Results go to `report` as they come, so they are there whatever happens later.
pub async fn run(args: &ShardArgs, live: &Arc<Live>, report: &mut Option<Report>) -> Result<()> {
    let grid = args.grid()?;
    let floor = args.floor.floor(args.tokenizer_name.as_deref())?;
    let client = ShardedClient::connect_uds(&args.master_shard_uds_path, Deadlines::default())
        .await
        .map_err(|error| unreachable(args, &error))?;
    let info = loaded(&client, live).await?;
    let limits = warm_up(args, &client, &grid).await?;
    if let Some(limits) = limits {
        check(&grid, limits)?;
    }
    let maker = PromptMaker::from_vocabulary(info.vocab_size)?;
    let report = report.insert(new_report(args, &info, limits));
    for (index, place) in grid.iter().enumerate() {
        live.begin(&place.label(), index, grid.len(), args.runs.into());
        let measured = measure(args, &client, &maker, *place, live).await;
        let mut point = summarize(place, &measured.runs, measured.error.as_ref());
        if let Some(floor) = &floor {
            floors(floor, *place, &mut point);
        }
        let rate = point.rates.get("decode_tokens_per_s").copied();
        let latency = point
            .latency_ms
            .get("decode_token")
            .map(|latency| latency.p50);
        if let Some((rate, latency)) = rate.zip(latency) {
            live.end(rate, latency);
        }
        report.points.push(point);
        if live.stopped() || measured.error.as_ref().is_some_and(is_fatal) {
            break;
        }
    }
    // What the last run left behind; after a lost shard there is nobody to tell.
    let _ = client.clear_cache(None).await;
    Ok(())
}

/// What the shards serve, as soon as they have loaded it: their sockets answer before.
async fn loaded(client: &ShardedClient, live: &Live) -> Result<ShardInfo> {
    live.begin("waiting for the shards to load the model", 0, 1, 0);
    loop {
        match client.info().await {
            Err(ClientError::Shard { reason, .. }) if reason == NOT_READY && !live.stopped() => {
                tokio::time::sleep(LOADING_INTERVAL).await;
            }
            answer => return answer.map_err(|error| failed("Info", &error)),
        }
    }
}

struct Measured {
    runs: Vec<Run>,
    /// What ended the point early.
    error: Option<ClientError>,
}

/// All runs of one place of the grid.
async fn measure(
    args: &ShardArgs,
    client: &ShardedClient,
    maker: &PromptMaker,
    place: Place,
    live: &Live,
) -> Measured {
    let mut rng = StdRng::seed_from_u64(0);
    let mut measured = Measured {
        runs: Vec::new(),
        error: None,
    };
    let most = args.max_batch_prefill_tokens.unwrap_or(u32::MAX);
    for number in 0..args.warmups + args.runs {
        let batch = step::batch(place, &args.choice, maker, &mut rng);
        let result = tokio::select! {
            () = live.until_stopped() => break,
            result = run_once(client, place, batch, most, live) => result,
        };
        match result {
            Ok(_) if number < args.warmups => {}
            Ok(run) => {
                live.done.fetch_add(1, Relaxed);
                live.sample("Prefill", run.prefill.as_secs_f64() * 1e3);
                if let Some(token) = run.decode_token(place.batch_size) {
                    live.sample("Decode (token)", token.as_secs_f64() * 1e3);
                }
                measured.runs.push(run);
            }
            Err(error) => {
                live.failed.fetch_add(1, Relaxed);
                measured.error = Some(error);
                break;
            }
        }
    }
    measured
}

/// Whether the shards themselves are lost, as opposed to one place that they refuse.
fn is_fatal(error: &ClientError) -> bool {
    !matches!(error, ClientError::Shard { .. })
}

/// Sizes fresh shards for the grid; `None` when they are warm already, as under a launcher.
async fn warm_up(
    args: &ShardArgs,
    client: &ShardedClient,
    grid: &[Place],
) -> Result<Option<ServingLimits>> {
    let most = |of: fn(&Place) -> u32| grid.iter().map(of).max().unwrap_or(1);
    let prompt_tokens = most(|place| place.batch_size.saturating_mul(place.sequence_length));
    let asked = WarmupLimits {
        max_input_tokens: Some(most(|place| place.sequence_length)),
        max_total_tokens: Some(most(|place| place.slots_of_one())),
        max_batch_prefill_tokens: args.max_batch_prefill_tokens.unwrap_or(prompt_tokens),
        max_batch_total_tokens: None,
        max_batch_size: most(|place| place.batch_size),
        prefill_chunking: true,
        regained: false,
        overlapped_halves: false,
        media_rows: 0,
        max_media_pixels: 0,
        adapter_pages: 0,
        adapters_later: false,
    };
    match client.warmup(asked).await {
        Ok(warmup) => Ok(Some(warmup.limits)),
        Err(ClientError::Shard { reason, .. }) if reason == NOT_READY => Ok(None),
        Err(error) => Err(failed("Warmup", &error)),
    }
}

fn check(grid: &[Place], limits: ServingLimits) -> Result<()> {
    let largest = grid.iter().max_by_key(|place| place.slots());
    match largest {
        Some(place) if place.slots() > u64::from(limits.max_batch_total_tokens) => {
            Err(BenchmarkError::argument(
                "--batch-size",
                format!(
                    "{} needs {} KV slots and the shards have {}; lower it, --sequence-length or --decode-length",
                    place.label(),
                    place.slots(),
                    limits.max_batch_total_tokens
                ),
            ))
        }
        _ => Ok(()),
    }
}

/// The floor of both kinds of step.
fn floors(floor: &Floor, place: Place, point: &mut crate::report::Point) {
    let (batch, input) = (
        f64::from(place.batch_size),
        f64::from(place.sequence_length),
    );
    let context = input + f64::from(place.decode_length) / 2.0;
    for (name, seconds) in [
        ("prefill", floor.prefill(batch, input)),
        ("decode_token", floor.decode(batch, context)),
    ] {
        if let Some(latency) = point.latency_ms.get(name) {
            let figure = crate::floor::time_figure(latency.p50, seconds * 1e3);
            point.floor.insert(format!("{name}_p50_ms"), figure);
        }
    }
}

fn unreachable(args: &ShardArgs, error: &ClientError) -> BenchmarkError {
    BenchmarkError::Server(format!(
        "{error}. Is a shard listening at --master-shard-uds-path {}? Start one with: text-generation-server serve <folder> --uds-path /tmp/text-generation-server",
        args.master_shard_uds_path.display()
    ))
}

fn failed(call: &str, error: &ClientError) -> BenchmarkError {
    BenchmarkError::Server(format!("{call}: {error}"))
}

fn new_report(args: &ShardArgs, info: &ShardInfo, limits: Option<ServingLimits>) -> Report {
    let socket = args.master_shard_uds_path.display().to_string();
    let model = args
        .tokenizer_name
        .as_ref()
        .map_or(socket, |path| path.display().to_string());
    let mut report = Report::new("shard", model);
    let slots = limits.map_or(json!("of a warm shard"), |limits| {
        json!(limits.max_batch_total_tokens)
    });
    let settings = [
        ("runs", json!(args.runs)),
        ("warmups", json!(args.warmups)),
        ("dtype", json!(info.dtype)),
        ("device", json!(info.device_type)),
        ("shards", json!(info.world_size)),
        ("attention", json!(info.attention_impl)),
        ("slots", slots),
    ];
    report.settings = settings
        .into_iter()
        .chain(args.choice.named())
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    report
}
