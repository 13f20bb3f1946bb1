//! Flags of server mode.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use serde_json::{Map, Value};

use super::api::Api;
use super::arrivals::{Arrival, Ramp};
use super::images::ImageArgs;
use super::lengths::Lengths;
use super::summary::Slo;
use super::workload::Workload;
use crate::error::{BenchmarkError, Result};
use crate::floor::FloorArgs;
use crate::output::OutputArgs;

/// Drive a server over HTTP: this one, or any other with the API of TGI or OpenAI.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// Address without a path; `http://` and a `/v1` behind it are understood.
    #[arg(long, default_value = "http://127.0.0.1:3000", value_parser = server_url)]
    pub url: String,
    /// API to use.
    #[arg(long, value_enum, default_value = "openai")]
    pub api: Api,
    /// Model name in requests; asked from the server when unset.
    #[arg(long)]
    pub model: Option<String>,
    /// Bearer token.
    #[arg(long, env = "API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// tokenizer.json, or the folder with it; the folder that the server names when unset.
    #[arg(long, value_name = "PATH")]
    pub tokenizer_path: Option<PathBuf>,
    /// Draw token ids below this size when there is no tokenizer.
    #[arg(long)]
    pub vocab_size: Option<u32>,
    /// How prompts are sent; ids, which are exact, where the API takes them.
    #[arg(long, value_enum)]
    pub prompts: Option<PromptForm>,
    /// Bounds of a good request in ms, for example ttft=500,tpot=30,e2e=10000.
    #[arg(long)]
    pub slo: Option<Slo>,
    /// Most seconds of one request.
    #[arg(long, default_value_t = 600, value_parser = value_parser!(u64).range(1..))]
    pub timeout: u64,
    /// 0: greedy.
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f32,
    /// Let answers end at an end-of-sequence token instead of at --output-length.
    #[arg(long)]
    pub stop_at_eos: bool,
    /// Put the keys of this JSON object into the body of every request, over those of the benchmark itself.
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    pub extra_body: Option<Map<String, Value>>,
    /// The same seed sends the same prompts at the same times.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Worker threads of this client.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u16).range(1..))]
    pub threads: u16,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub images: ImageArgs,
    #[command(flatten)]
    pub floor: FloorArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// How prompts are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PromptForm {
    Ids,
    Text,
}

/// When requests start.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// Closed loop: so many clients, each with one request after another. A list makes one point each.
    #[arg(
        short,
        long,
        value_delimiter = ',',
        default_value = "1",
        conflicts_with = "request_rate"
    )]
    pub concurrency: Vec<usize>,
    /// Open loop: requests per second, however slow the server is. A list makes one point each.
    #[arg(short, long, value_delimiter = ',')]
    pub request_rate: Vec<f64>,
    /// Let the rate go to this one in a straight line.
    #[arg(long, requires = "request_rate", value_name = "RATE")]
    pub ramp_to: Option<f64>,
    /// How arrivals are spread.
    #[arg(long, value_enum, default_value = "poisson")]
    pub arrival: Arrival,
    /// Open loop: more requests than this wait; their latency counts from when they were due.
    #[arg(long, requires = "request_rate")]
    pub max_in_flight: Option<usize>,
    /// Requests of a point; 4 for each client, at least 16, or as many as arrive in --duration (60 s when unset).
    #[arg(short = 'n', long)]
    pub requests: Option<usize>,
    /// Start nothing after so many seconds.
    #[arg(long)]
    pub duration: Option<f64>,
    /// Requests before each point that are not measured.
    #[arg(long, default_value_t = 1)]
    pub warmup: usize,
}

/// What is asked.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// Prompt tokens: 512, uniform:MIN-MAX or lognormal:MEDIAN,SIGMA[,MIN-MAX].
    #[arg(long, default_value = "512")]
    pub input_length: Lengths,
    /// Answer tokens, written alike.
    #[arg(long, default_value = "128")]
    pub output_length: Lengths,
    /// Draw again what is longer, prompt and answer together.
    #[arg(long)]
    pub max_total_length: Option<u32>,
    /// Groups of requests whose prompts begin alike.
    #[arg(long, requires = "prefix_length", value_parser = value_parser!(u32).range(1..))]
    pub prefix_groups: Option<u32>,
    /// Tokens of such a beginning; --input-length follow it.
    #[arg(long, requires = "prefix_groups", value_parser = value_parser!(u32).range(1..))]
    pub prefix_length: Option<u32>,
    /// Turns of a chat; each sends the whole conversation so far.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u32).range(1..))]
    pub turns: u32,
    /// Prompt tokens of turns after the first; --input-length when unset.
    #[arg(long)]
    pub turn_input_length: Option<Lengths>,
    /// Mean seconds between an answer and the next turn (exponential).
    #[arg(long, default_value_t = 0.0)]
    pub think_time: f64,
    /// Take requests from a JSONL file: {"prompt": ..., "output_length": n} or {"messages": ..., "output_length": n}.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input_length", "output_length", "prefix_groups", "turns", "images"])]
    pub dataset: Option<PathBuf>,
}

/// How one point starts its sessions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    Closed(usize),
    Open(Ramp),
}

impl LoadArgs {
    /// The points of the benchmark.
    pub fn paces(&self) -> Result<Vec<Pace>> {
        let positive = |flag, value: f64| {
            if value.is_finite() && value > 0.0 {
                Ok(value)
            } else {
                Err(BenchmarkError::argument(
                    flag,
                    format!("{value} is not above 0"),
                ))
            }
        };
        if let Some(duration) = self.duration {
            positive("--duration", duration)?;
            seconds("--duration", duration)?;
        }
        if self.max_in_flight == Some(0) {
            return Err(BenchmarkError::argument(
                "--max-in-flight",
                "must be at least 1",
            ));
        }
        if self.requests == Some(0) {
            return Err(BenchmarkError::argument("--requests", "must be at least 1"));
        }
        if !self.request_rate.is_empty() {
            return self
                .request_rate
                .iter()
                .map(|rate| {
                    let from = positive("--request-rate", *rate)?;
                    let to = positive("--ramp-to", self.ramp_to.unwrap_or(from))?;
                    Ok(Pace::Open(Ramp { from, to }))
                })
                .collect();
        }
        self.concurrency
            .iter()
            .map(|clients| match clients {
                0 => Err(BenchmarkError::argument(
                    "--concurrency",
                    "must be at least 1",
                )),
                clients => Ok(Pace::Closed(*clients)),
            })
            .collect()
    }

    /// Requests of one point.
    pub fn requests_of(&self, pace: Pace) -> Result<usize> {
        match (self.requests, pace, self.duration) {
            (Some(requests), ..) => Ok(requests),
            (None, Pace::Open(ramp), duration) => {
                Ok((ramp.mean() * duration.unwrap_or(60.0)).ceil() as usize)
            }
            (None, Pace::Closed(clients), None) => Ok((4 * clients).max(16)),
            (None, Pace::Closed(_), Some(_)) => Err(BenchmarkError::argument(
                "--duration",
                "with --concurrency it also needs --requests: prompts are drawn before the clock starts",
            )),
        }
    }

    pub fn duration(&self) -> Option<Duration> {
        self.duration.map(Duration::from_secs_f64)
    }

    pub fn label(&self, pace: Pace) -> String {
        let arrival = match self.arrival {
            Arrival::Poisson => "poisson",
            Arrival::Constant => "constant",
        };
        match pace {
            Pace::Closed(clients) => format!("concurrency {clients}"),
            Pace::Open(ramp) if ramp.from == ramp.to => format!("{} req/s {arrival}", ramp.from),
            Pace::Open(ramp) => format!("{} to {} req/s {arrival}", ramp.from, ramp.to),
        }
    }
}

/// A time of a flag, which may be too long for a clock.
fn seconds(flag: &'static str, value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|error| BenchmarkError::argument(flag, format!("{value}: {error}")))
}

/// The address of a server as people copy it: `localhost:3000`, `http://[::1]:3000/`, `http://host:3000/v1`.
fn server_url(text: &str) -> std::result::Result<String, String> {
    let url = match text.split_once("://") {
        None => format!("http://{text}"),
        Some(("http", _)) => text.to_owned(),
        Some(_) => {
            return Err("must start with http://, for there is no TLS in the benchmark".to_owned());
        }
    };
    let url = url.trim_end_matches('/');
    let url = url.strip_suffix("/v1").unwrap_or(url).trim_end_matches('/');
    match url {
        "http:" => Err("must name a server, such as http://127.0.0.1:3000".to_owned()),
        _ => Ok(url.to_owned()),
    }
}

/// Reads `--extra-body`.
fn json_object(text: &str) -> std::result::Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("is no JSON object: {error}"))
}

impl WorkloadArgs {
    pub fn workload(&self) -> Result<Workload> {
        if !(self.think_time >= 0.0 && self.think_time.is_finite()) {
            return Err(BenchmarkError::argument(
                "--think-time",
                "must be at least 0",
            ));
        }
        let think_time = seconds("--think-time", self.think_time)?;
        Ok(Workload {
            input: self.input_length,
            output: self.output_length,
            max_total: self.max_total_length,
            prefixes: self
                .prefix_groups
                .map(|groups| groups as usize)
                .zip(self.prefix_length),
            turns: self.turns as usize,
            turn_input: self.turn_input_length.unwrap_or(self.input_length),
            think_time,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_copy_them() {
        for (text, url) in [
            ("localhost:3000", "http://localhost:3000"),
            ("http://[::1]:3000/", "http://[::1]:3000"),
            ("http://h:1/v1/", "http://h:1"),
            ("[::1]:3000/v1", "http://[::1]:3000"),
        ] {
            assert_eq!(server_url(text).as_deref(), Ok(url));
        }
        for text in ["https://h", "ftp://h", "", "http://"] {
            assert!(server_url(text).is_err(), "{text}");
        }
    }
}
