//! Server mode: load over HTTP, measured at the client.

pub mod api;
pub mod args;
pub mod arrivals;
pub mod client;
mod dataset;
mod discover;
pub mod event;
pub mod failure;
pub mod images;
pub mod lengths;
pub mod load;
pub mod sse;
pub mod summary;
pub mod workload;

use std::path::Path;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;

use self::args::{Pace, ServerArgs};
use self::client::Target;
use self::images::Images;
use self::load::{Load, Measured};
use self::workload::{Form, Session, Workload};
use crate::error::Result;
use crate::live::Live;
use crate::overhead::OverheadProbe;
use crate::prompts::PromptMaker;
use crate::report::{Point, Report};

/// Warm-up prompts must not be those that are measured: the server may remember them.
const WARMUP_SEED: u64 = 1 << 63;

/// Runs every point. Results go to `report` as they come, so they are there whatever happens later.
pub async fn run(args: &ServerArgs, live: &Arc<Live>, report: &mut Option<Report>) -> Result<()> {
    let paces = args.load.paces()?;
    let workload = args.workload.workload()?;
    let images = args.images.images(args.api)?;
    let requests = paces
        .iter()
        .map(|pace| args.load.requests_of(*pace))
        .collect::<Result<Vec<_>>>()?;
    let (target, folder) = discover::target(args).await?;
    let mut source = match &args.workload.dataset {
        Some(path) => Source::Dataset {
            sessions: dataset::read(path, args.api)?,
            sent: 0,
        },
        None => {
            let (maker, form) = discover::prompts(args, folder.as_deref())?;
            let maker = Box::new(maker);
            Source::Drawn {
                workload,
                maker,
                form,
                images,
            }
        }
    };
    let known = args.tokenizer_path.as_deref().and_then(model_folder);
    let floor = args.floor.floor(known.or(folder.as_deref()))?;
    let report = report.insert(new_report(args, &target, images));
    for (index, (pace, requests)) in paces.iter().zip(requests).enumerate() {
        let seed = args.seed.wrapping_add(index as u64);
        let sessions = source.sessions(requests, seed)?;
        warm_up(args, &target, &mut source, live, seed).await?;
        if live.stopped() {
            break;
        }
        let total = sessions
            .iter()
            .map(|session| session.turns.len() as u64)
            .sum();
        live.begin(&args.load.label(*pace), index, paces.len(), total);
        let load = Load {
            target: target.clone(),
            sessions,
            live: live.clone(),
            duration: args.load.duration(),
        };
        let mut point = measure(args, *pace, load, seed).await;
        point.notes.extend(source.repetition());
        if let Some(floor) = &floor {
            point.floor = floor.of_server(&point);
        }
        live.end(
            point
                .rates
                .get("output_tokens_per_s")
                .copied()
                .unwrap_or(0.0),
            point.latency_ms.get("ttft").map_or(0.0, |ttft| ttft.p50),
        );
        report.points.push(point);
        if live.stopped() {
            break;
        }
    }
    Ok(())
}

/// The folder beside a tokenizer, where `config.json` usually lies.
fn model_folder(tokenizer: &Path) -> Option<&Path> {
    if tokenizer.is_dir() {
        Some(tokenizer)
    } else {
        tokenizer.parent()
    }
}

async fn measure(args: &ServerArgs, pace: Pace, load: Load, seed: u64) -> Point {
    let load = Arc::new(load);
    let probe = OverheadProbe::start();
    let measured = match pace {
        Pace::Closed(clients) => load::closed(load, clients).await,
        Pace::Open(ramp) => {
            let mut rng = StdRng::seed_from_u64(seed);
            let times = arrivals::schedule(args.load.arrival, ramp, load.sessions.len(), &mut rng);
            load::open(load, times, args.load.max_in_flight).await
        }
    };
    // Who waits for a place is late by intention.
    let delays = match args.load.max_in_flight {
        Some(_) => Vec::new(),
        None => send_delays(&measured),
    };
    let client = probe.finish(usize::from(args.threads), delays).await;
    let mut point = summary::point(args.load.label(pace), &measured, args.slo.as_ref());
    point.client = Some(client);
    point
}

fn send_delays(measured: &Measured) -> Vec<f64> {
    let delays = measured.outcomes.iter();
    delays
        .map(|outcome| (outcome.sent - outcome.scheduled).as_secs_f64() * 1e3)
        .collect()
}

/// Where sessions come from.
enum Source {
    Drawn {
        workload: Workload,
        maker: Box<PromptMaker>,
        form: Form,
        images: Option<Images>,
    },
    Dataset {
        sessions: Vec<Session>,
        /// Over all points and warm-ups.
        sent: usize,
    },
}

impl Source {
    /// Sessions with `requests` requests together, rounded up to whole sessions. Lines of a dataset come in turn.
    fn sessions(&mut self, requests: usize, seed: u64) -> Result<Vec<Session>> {
        match self {
            Self::Drawn {
                workload,
                maker,
                form,
                images,
            } => {
                let count = requests.div_ceil(workload.turns);
                let mut sessions = workload.sessions(maker, *form, count, seed)?;
                if let Some(images) = images {
                    images.add_to(&mut sessions, seed)?;
                }
                Ok(sessions)
            }
            Self::Dataset { sessions, sent } => {
                let lines = sessions.iter().cycle().skip(*sent % sessions.len());
                *sent += requests;
                Ok(lines.take(requests).cloned().collect())
            }
        }
    }

    /// A note for the report once lines of a dataset were sent more than once.
    fn repetition(&self) -> Option<String> {
        match self {
            Self::Dataset { sessions, sent } if *sent > sessions.len() => Some(format!(
                "The dataset has {} lines, and {sent} requests were made of it up to here: a prefix cache may know some.",
                sessions.len()
            )),
            _ => None,
        }
    }
}

/// Sends a few requests whose times are thrown away.
async fn warm_up(
    args: &ServerArgs,
    target: &Target,
    source: &mut Source,
    live: &Arc<Live>,
    seed: u64,
) -> Result<()> {
    if args.load.warmup == 0 {
        return Ok(());
    }
    let sessions = source.sessions(args.load.warmup, seed ^ WARMUP_SEED)?;
    live.begin("warm-up", 0, 1, args.load.warmup as u64);
    let load = Arc::new(Load {
        target: target.clone(),
        sessions,
        live: live.clone(),
        duration: None,
    });
    let measured = load::closed(load, args.load.warmup).await;
    let failed = measured
        .outcomes
        .iter()
        .find_map(|outcome| outcome.failure.as_ref());
    match failed {
        None => Ok(()),
        Some(failure) => Err(crate::error::BenchmarkError::Server(format!(
            "a warm-up request failed ({}): {}",
            failure.kind, failure.message
        ))),
    }
}

fn new_report(args: &ServerArgs, target: &Target, images: Option<Images>) -> Report {
    let mut report = Report::new("server", target.model().to_owned());
    let workload = &args.workload;
    let mut set = |name: &str, value| report.settings.insert(name.to_owned(), value);
    set("url", json!(args.url));
    set("api", json!(target.api().path()));
    set("seed", json!(args.seed));
    set("temperature", json!(args.temperature));
    set("ignore_eos", json!(!args.stop_at_eos));
    if let Some(extra) = &args.extra_body {
        set("extra_body", json!(extra));
    }
    match &workload.dataset {
        Some(path) => {
            set("dataset", json!(path.display().to_string()));
        }
        None => {
            set("input_length", json!(workload.input_length.to_string()));
            set("output_length", json!(workload.output_length.to_string()));
        }
    }
    if let Some((groups, length)) = workload.prefix_groups.zip(workload.prefix_length) {
        set(
            "prefixes",
            json!(format!("{groups} groups of {length} tokens")),
        );
    }
    if let Some(images) = images {
        set("images", json!(images.to_string()));
    }
    if workload.turns > 1 {
        set("turns", json!(workload.turns));
        set("think_time_s", json!(workload.think_time));
    }
    if let Some(slo) = &args.slo {
        set("slo", json!(slo.to_string()));
    }
    report
}
