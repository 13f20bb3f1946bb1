//! Flags of the router, with environment names and defaults. Names and defaults are those of TGI.

mod adapters;
mod config;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Parser, Subcommand, value_parser};
use text_generation_core::policy::WaitingServedRatio;
use text_generation_formats::Format;
use text_generation_process::amounts::{mebibytes, tokens};

pub use self::adapters::AdapterFlags;
use crate::aliases::MetricsAliases;
use crate::api_keys::KeyLines;
use crate::generation_config::GenerationConfig;
use crate::headers::X_API_KEY;
use crate::kv_events::KvEventsConfig;
use crate::model_format::ParserChoice;
use crate::tenant::PrefixCaching;

/// Seconds of any flag at most, more than a century: a clock must be able to count to its end.
const MOST_SECONDS: u64 = u32::MAX as u64;

/// HTTP front end of the text generation server. `text-generation-launcher` starts it, with the shards that it needs.
#[derive(Debug, Parser)]
#[command(
    name = "text-generation-router",
    version,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub config: Config,
}

/// What else the command can do.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Print the OpenAPI document as JSON and exit.
    PrintSchema,
    /// Check whether a start with these flags would work, as far as possible without shards. Reads the files of the model
    /// where `--tokenizer-name` names their folder. Opens no port.
    Check(Box<Config>),
}

/// Everything that the operator decides.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Maximum number of requests that run or wait at once; further ones get status 429.
    #[arg(long, env, value_name = "REQUESTS", default_value_t = 128, value_parser = value_parser!(u32).range(1..))]
    pub max_concurrent_requests: u32,
    /// Maximum `best_of` of a request.
    #[arg(long, env, value_name = "N", default_value_t = 2, value_parser = value_parser!(u32).range(1..))]
    pub max_best_of: u32,
    /// Maximum number of beams of a request that asks for a beam search, at most 19; 0: no beam search.
    #[arg(long, env, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(..=19))]
    pub max_beam_width: u32,
    /// Maximum number of stop sequences per request.
    #[arg(long, env, value_name = "N", default_value_t = 4)]
    pub max_stop_sequences: u32,
    /// Maximum `top_n_tokens` of a request, at most 20.
    #[arg(long, env, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(..=20))]
    pub max_top_n_tokens: u32,
    /// Maximum `top_logprobs` of a chat and `logprobs` of a completion, at most 20.
    #[arg(long, env, value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(..=20))]
    pub max_logprobs: u32,
    /// Maximum number of input tokens per request, such as 32768, 32k (32,000) or 32K (32,768). Default: one less than
    /// `--max-total-tokens`.
    #[arg(long, env, value_name = "TOKENS", value_parser = tokens(1))]
    pub max_input_tokens: Option<u32>,
    /// Maximum number of tokens per request, input and output together. Default: the context length of the model, or as
    /// much of it as fits into memory.
    #[arg(long, env, value_name = "TOKENS", value_parser = tokens(2))]
    pub max_total_tokens: Option<u32>,
    /// Maximum number of prompt tokens computed in one step. Default: 4096, or more where a prompt may be longer and
    /// `--prefill-chunking` is false.
    #[arg(long, env, value_name = "TOKENS", value_parser = tokens(1))]
    pub max_batch_prefill_tokens: Option<u32>,
    /// Size of the KV cache: maximum number of tokens of all running requests together, input and output. Default: what
    /// fits into memory.
    #[arg(long, env, value_name = "TOKENS", value_parser = tokens(1))]
    pub max_batch_total_tokens: Option<u32>,
    /// Number of waiting requests, for each running one, at which they start, or `auto`. 0.3: with 10 running requests, 3
    /// must wait before they start; 0: requests start as soon as they fit; auto: the ratio follows from the measured cost
    /// of steps and the rate of requests.
    #[arg(long, env, value_name = "RATIO", default_value_t = WaitingServedRatio::Auto)]
    pub waiting_served_ratio: WaitingServedRatio,
    /// Compute prompts in chunks, in the same steps as running requests (true), or whole while running requests wait
    /// (false).
    #[arg(long, env, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub prefill_chunking: bool,
    /// Target for the inter-token latency of streams while prompts are computed, in milliseconds: smaller makes streams
    /// smoother and prompts slower; 0: no target. Default: 36 ms, or more for large models.
    #[arg(long, env, value_name = "MS")]
    pub max_token_gap: Option<u32>,
    /// Reuse the KV cache of requests that begin with the same tokens: true, false, or per-key (only among requests
    /// with the same API key).
    #[arg(long, env, value_name = "MODE", default_value = "true", value_parser = PrefixCaching::from_str)]
    pub prefix_caching: PrefixCaching,
    /// Upper bound of the wait that `--waiting-served-ratio` asks for: once running requests have got so many tokens, those
    /// that wait start.
    #[arg(long, env, value_name = "TOKENS", default_value_t = 20)]
    pub max_waiting_tokens: u32,
    /// Maximum number of requests that run at once; further ones wait. Default and maximum:
    /// `--max-concurrent-requests`.
    #[arg(long, env, value_name = "REQUESTS", value_parser = value_parser!(u32).range(1..))]
    pub max_batch_size: Option<u32>,
    /// Maximum time that a request waits before it starts, in seconds; then it gets status 429. Default: no limit.
    #[arg(long, env, value_name = "SECONDS", value_parser = seconds)]
    pub max_queue_time: Option<Duration>,
    /// Maximum time for one step of the model, in seconds; after that the shards count as hung and are restarted.
    #[arg(long, env, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u32).range(1..=600))]
    pub step_timeout: u32,
    /// Number of threads that tokenise and validate requests.
    #[arg(long, env, value_name = "THREADS", default_value_t = 2, value_parser = value_parser!(u32).range(1..))]
    pub validation_workers: u32,
    /// IP address to listen on, or localhost.
    #[arg(long, env, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub hostname: String,
    /// Port to listen on.
    #[arg(long, short, env, default_value_t = 3000)]
    pub port: u16,
    /// Unix socket of the first shard.
    #[arg(
        long,
        env,
        value_name = "PATH",
        default_value = "/tmp/text-generation-server-0"
    )]
    pub master_shard_uds_path: PathBuf,
    /// PEM file with the certificate of this node, for shards on other nodes.
    #[arg(long, env, value_name = "FILE", requires_all = ["cluster_key", "cluster_ca"])]
    pub cluster_cert: Option<PathBuf>,
    /// PEM file with the private key of `--cluster-cert`.
    #[arg(long, env, value_name = "FILE", requires = "cluster_cert")]
    pub cluster_key: Option<PathBuf>,
    /// PEM file with the certificate authority (CA) of all nodes.
    #[arg(long, env, value_name = "FILE", requires = "cluster_cert")]
    pub cluster_ca: Option<PathBuf>,
    /// Folder of the model, with its tokenizer. Required to serve.
    #[arg(long, env, value_name = "FOLDER")]
    pub tokenizer_name: Option<PathBuf>,
    /// Name of the model on the hub, or its folder, as answers show it. Default: `--tokenizer-name`.
    #[arg(long, env, value_name = "MODEL")]
    pub model_id: Option<String>,
    /// Name of the model in the API. Of several, answers show the first, and `/v1/models` lists all. Default:
    /// `--model-id`.
    #[arg(long, env, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    pub served_model_name: Vec<String>,
    /// Revision of the model that `/info` shows.
    #[arg(long, env)]
    pub revision: Option<String>,
    /// `tokenizer_config.json` to take the chat template and special tokens from. Default: the model's own.
    #[arg(long, env, value_name = "FILE")]
    pub tokenizer_config_path: Option<PathBuf>,
    /// Treat special tokens in chat messages of clients as plain text, so that they cannot end a turn.
    #[arg(long, env)]
    pub escape_special_tokens: bool,
    /// Format in which the model writes tool calls: auto (detected from its files), none, or a name such as hermes.
    #[arg(long, env, value_name = "FORMAT", default_value = "auto", value_parser = ParserChoice::of_calls)]
    pub tool_call_parser: ParserChoice<&'static Format>,
    /// Format in which the model marks its reasoning: auto (detected from its files), none, or a name such as qwen3.
    #[arg(long, env, value_name = "FORMAT", default_value = "auto", value_parser = ParserChoice::of_reasoning)]
    pub reasoning_parser: ParserChoice<String>,
    /// Take default sampling parameters for requests to `/v1` from the model's `generation_config.json` (auto), or not
    /// (none).
    #[arg(long, env, value_name = "SOURCE", default_value = "auto", value_parser = GenerationConfig::from_str)]
    pub generation_config: GenerationConfig,
    /// Refuse requests for structured output, such as JSON that follows a schema.
    #[arg(long, env)]
    pub disable_grammar_support: bool,
    /// Maximum number of prompts in one completion request.
    #[arg(long, env, value_name = "PROMPTS", default_value_t = 32, value_parser = value_parser!(u32).range(1..))]
    pub max_client_batch_size: u32,
    /// Maximum size of a request body in bytes; larger ones get status 413. Default: 2000000, or 32000000 where the model
    /// takes images.
    #[arg(long, env, value_name = "BYTES", value_parser = value_parser!(u32).range(1..))]
    pub payload_limit: Option<u32>,
    /// Maximum size of an image in bytes, as it is sent.
    #[arg(long, env, value_name = "BYTES", default_value_t = 20_000_000, value_parser = value_parser!(u32).range(1..))]
    pub max_image_bytes: u32,
    /// Maximum number of pixels of an image; larger ones are refused before they are decoded.
    #[arg(long, env, value_name = "PIXELS", default_value_t = 25_000_000, value_parser = value_parser!(u32).range(1..))]
    pub max_image_pixels: u32,
    /// Maximum number of images in a request. Default: as many as fit.
    #[arg(long, env, value_name = "IMAGES")]
    pub max_images_per_request: Option<u32>,
    /// Domain that images may be fetched from, such as `example.org`, `*.example.org` or `*`; repeat the flag for more, or
    /// separate them by commas. Only public addresses are asked. Default: none, images are sent as data.
    #[arg(long, env, value_name = "DOMAIN", num_args = 1.., value_delimiter = ',')]
    pub allowed_image_domains: Vec<String>,
    /// Places of the image encoder's output, which all images of running and waiting requests share; one image takes some
    /// hundreds to thousands. Default: 16384, or as many as the largest image takes.
    #[arg(long, env, value_name = "ROWS", value_parser = value_parser!(u32).range(1..))]
    pub media_rows: Option<u32>,
    /// Host memory for earlier answers: where a new one says the same as one of them, its drafts follow that one. Needs
    /// shards that draft (`--speculate`). 0: none are kept.
    #[arg(long, env, value_name = "MIB", default_value_t = 0, value_parser = mebibytes)]
    pub answer_index_mib: u32,
    #[command(flatten)]
    pub adapters: AdapterFlags,
    /// Allow requests for log-probabilities of the prompt, which need more memory.
    #[arg(long, env)]
    pub enable_prefill_logprobs: bool,
    /// Origin of web pages that may call the server; repeat the flag for more. Default: every origin.
    #[arg(long, env, value_name = "ORIGIN")]
    pub cors_allow_origin: Vec<HeaderValue>,
    /// Second port, for /metrics, /health, /live and /ready only: needs no key. Default: none.
    #[arg(long, env, value_name = "PORT")]
    pub prometheus_port: Option<u16>,
    /// IP address for `--prometheus-port`. Default: that of `--hostname`.
    #[arg(long, env, value_name = "ADDRESS")]
    pub prometheus_hostname: Option<String>,
    /// Serve /metrics on `--port` without a key too.
    #[arg(long, env)]
    pub open_metrics: bool,
    /// Export load metrics under the names of another server too: vllm.
    #[arg(long, env, value_name = "SERVER", value_parser = MetricsAliases::from_str)]
    pub metrics_aliases: Option<MetricsAliases>,
    /// After SIGTERM or SIGINT: accept new requests for this many seconds more, while /ready and /health return 503.
    #[arg(long, env, value_name = "SECONDS", default_value_t = 0, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub drain_delay: u64,
    /// After `--drain-delay`: let running requests finish for this many seconds, then end them.
    #[arg(long, short, env, value_name = "SECONDS", default_value_t = 90, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub graceful_termination_timeout: u64,
    /// Stop when standard input ends, which tells that the launcher or all shards are gone; running requests end with
    /// an error.
    #[arg(long)]
    pub exit_on_stdin_eof: bool,
    /// Write logs as JSON, one record per line.
    #[arg(long, env)]
    pub json_output: bool,
    /// Key that clients must send as `Authorization: Bearer <key>` or `x-api-key: <key>`; several keys on several
    /// lines. Prefer API_KEY, which process lists do not show. Default: no key needed.
    #[arg(long, env, value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<KeyLines>,
    /// Key for loading and unloading adapters (`--allow-adapter-loading`), sent as other keys are. Prefer ADMIN_API_KEY.
    #[arg(long, env, value_name = "KEY", hide_env_values = true)]
    pub admin_api_key: Option<KeyLines>,
    /// File with further keys, one per line: a key alone, or `name key=... [weight=...] [max_concurrent_requests=...]
    /// [tokens_per_minute=...] [adapters=...]`. Lines that start with `#` are comments.
    #[arg(long, env, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Header in which a gateway names the tenant of a request, such as `x-gateway-inference-fairness-id`. Only safe
    /// where every client comes through the gateway, as clients can send headers too.
    #[arg(long, env, value_name = "HEADER", value_parser = gateway_header)]
    pub tenant_header: Option<HeaderName>,
    /// Header in which a gateway sets the `priority` of a request; it replaces the one in the body.
    #[arg(long, env, value_name = "HEADER", value_parser = gateway_header)]
    pub priority_header: Option<HeaderName>,
    /// Maximum number of open connections; further ones get status 503.
    #[arg(long, env, value_name = "CONNECTIONS", default_value_t = 4096, value_parser = value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Maximum time that a client may take to send a request body, or to read the next part of an answer, in seconds.
    #[arg(long, env, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u32).range(1..))]
    pub client_timeout: u32,
    /// Send an empty line after this many seconds without an event of a stream, so that proxies keep the connection.
    #[arg(long, env, value_name = "SECONDS", default_value_t = 15, value_parser = value_parser!(u32).range(1..))]
    pub sse_keep_alive: u32,
    /// Memory for output items of `/v1/responses`, which clients can then refer to (`item_reference`) for up to a day,
    /// in MiB or as 64MiB or 1GiB; 0: store none.
    #[arg(long, env, value_name = "MIB", default_value_t = 64, value_parser = mebibytes)]
    pub response_memory: u32,
    /// Value of the header `x-compute-type`. Default: number and kind of devices.
    #[arg(long, env, hide = true)]
    pub compute_type: Option<HeaderValue>,
    /// Value of the header `x-router-instance` of `/health`, by which the launcher recognises its own router.
    #[arg(long, env, hide = true)]
    pub router_instance: Option<HeaderValue>,
    /// Publish prefix cache events to routers over ZeroMQ: JSON with the fields of vLLM, such as
    /// `{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic":
    /// "kv@host:port@model"}`. Default: none.
    #[arg(long, env, value_name = "JSON", value_parser = KvEventsConfig::from_str)]
    pub kv_events_config: Option<KvEventsConfig>,
    /// OpenTelemetry collector to send traces to, by OTLP over gRPC, such as http://localhost:4317. Default: none.
    #[arg(long, env, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Service name in traces. Default: OTEL_SERVICE_NAME, or text-generation-inference.router.
    #[arg(long, env, value_name = "NAME")]
    pub otlp_service_name: Option<String>,
    /// Log level, or a filter such as `info,tonic=debug`.
    #[arg(long, env, hide = true, default_value = "info")]
    pub log_level: String,
}

/// A header that may go to logs: keys must not.
fn gateway_header(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text
        .parse()
        .map_err(|_| "not a valid header name".to_owned())?;
    let secret = [header::AUTHORIZATION, header::COOKIE, X_API_KEY].contains(&name);
    if secret {
        return Err("this header holds secrets; name another one".to_owned());
    }
    Ok(name)
}

/// A number of seconds above 0.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "must be above 0".to_owned())
}

#[cfg(test)]
mod tests;
