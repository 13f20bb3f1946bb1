//! Flags of the launcher, with environment names and defaults. No logic: `checks` judges the values, `plan` uses them.
//!
//! Here are those about how the model is served; those about how it is computed are in `engine.rs`.

mod engine;
mod given;
mod others;
mod speculation;
mod spelling;
mod values;
mod words;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Parser, value_parser};
use text_generation_process::address::{ip_address, without_brackets};
use text_generation_process::amounts::mebibytes;
use text_generation_process::settings::Origins;

pub use self::engine::{ModelArgs, NodeArgs, ShardArgs};
pub use self::given::{Command, read};
pub use self::speculation::Method;
use self::spelling::Spelling;
pub use self::values::{Dtype, RopeScaling, Secret, TokenLimit, UsageStats};

/// Seconds of any flag at most, more than a century: a clock must be able to count to its end.
const MOST_SECONDS: u64 = u32::MAX as u64;

/// Everything that a start can be told.
#[derive(Debug, Parser)]
#[command(
    name = "text-generation-launcher",
    version,
    max_term_width = 120,
    args_override_self = true
)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub shards: ShardArgs,
    #[command(flatten)]
    pub nodes: NodeArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten)]
    pub batching: BatchingArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub logs: LogArgs,
    #[command(flatten)]
    pub compatibility: CompatibilityArgs,
    #[command(flatten)]
    pub unavailable: UnavailableArgs,
    /// Which values are from the environment.
    #[arg(skip)]
    pub origins: Origins,
    /// Which flags were typed under the names of another server.
    #[arg(skip)]
    pub spelling: Spelling,
    /// What the log should say of flags and variables that change nothing.
    #[arg(skip)]
    pub notes: Notes,
}

/// What is to be told of a command line and an environment that can be served.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// Variables that somebody may have meant otherwise.
    pub warnings: Vec<String>,
    pub without_effect: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits of requests")]
pub struct LimitArgs {
    /// Maximum number of requests that run or wait at once; further ones get status 429
    #[arg(long, env, value_name = "REQUESTS", default_value_t = 128)]
    pub max_concurrent_requests: u32,
    /// Maximum `best_of` of a request
    #[arg(long, env, value_name = "N", default_value_t = 2)]
    pub max_best_of: u32,
    /// Maximum number of beams of a request that asks for a beam search, at most 19; 0: no beam search
    #[arg(long, env, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(..=19))]
    pub max_beam_width: u32,
    /// Maximum number of stop sequences per request
    #[arg(long, env, value_name = "N", default_value_t = 4)]
    pub max_stop_sequences: u32,
    /// Maximum `top_n_tokens` of a request, at most 20
    #[arg(long, env, value_name = "N", default_value_t = 5)]
    pub max_top_n_tokens: u32,
    /// Maximum `top_logprobs` of a chat and `logprobs` of a completion, at most 20
    #[arg(long, env, value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(..=20))]
    pub max_logprobs: u32,
    /// Maximum number of input tokens per request. Default: `auto`, one less than `--max-total-tokens`
    #[arg(long, env, value_name = "TOKENS")]
    pub max_input_tokens: Option<TokenLimit>,
    /// Old name of `--max-input-tokens`
    #[arg(long, env, value_name = "TOKENS")]
    pub max_input_length: Option<TokenLimit>,
    /// Maximum number of tokens per request, input and output together. Default: `auto`, the context length of the
    /// model, or as much of it as fits into memory
    #[arg(long, env, value_name = "TOKENS")]
    pub max_total_tokens: Option<TokenLimit>,
    /// Maximum number of prompts in one completion request
    #[arg(long, env, value_name = "PROMPTS", default_value_t = 32)]
    pub max_client_batch_size: u32,
    /// Maximum size of a request body in bytes; larger ones get status 413. Default: 2000000, or 32000000 where the model
    /// takes images
    #[arg(long, env, value_name = "BYTES")]
    pub payload_limit: Option<u32>,
    /// Maximum size of an image in bytes, as it is sent. Default: 20000000
    #[arg(long, env, value_name = "BYTES")]
    pub max_image_bytes: Option<u32>,
    /// Maximum number of pixels of an image; larger ones are refused before they are decoded. Default: 25000000
    #[arg(long, env, value_name = "PIXELS")]
    pub max_image_pixels: Option<u32>,
    /// Maximum number of images in a request. Default: as many as fit
    #[arg(long, env, value_name = "IMAGES")]
    pub max_images_per_request: Option<u32>,
    /// Domain that images may be fetched from, such as `example.org`, `*.example.org` or `*`; repeat the flag for more, or
    /// separate them by commas. Only public addresses are asked. Default: none, images are sent as data
    #[arg(long, env, value_name = "DOMAIN", num_args = 1.., value_delimiter = ',')]
    pub allowed_image_domains: Vec<String>,
    /// Places of the image encoder's output, which all images of running and waiting requests share; one image takes some
    /// hundreds to thousands. Default: 16384, or as many as the largest image takes
    #[arg(long, env, value_name = "ROWS")]
    pub media_rows: Option<u32>,
    /// Allow requests for log-probabilities of the prompt, which need more memory
    #[arg(long, env)]
    pub enable_prefill_logprobs: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Batching")]
pub struct BatchingArgs {
    /// Number of waiting requests, for each running one, at which they start, or `auto`. 0.3: with 10 running requests, 3
    /// must wait before they start; 0: requests start as soon as they fit; auto: the ratio follows from the measured cost
    /// of steps and the rate of requests
    #[arg(long, env, value_name = "RATIO", default_value = "auto", value_parser = values::waiting_served_ratio)]
    pub waiting_served_ratio: String,
    /// Maximum number of prompt tokens computed in one step. Default: `auto`, 4096, or more where a prompt may be
    /// longer and `--prefill-chunking` is false
    #[arg(long, env, value_name = "TOKENS")]
    pub max_batch_prefill_tokens: Option<TokenLimit>,
    /// Size of the KV cache: maximum number of tokens of all running requests together, input and output. Default:
    /// `auto`, what fits into memory
    #[arg(long, env, value_name = "TOKENS")]
    pub max_batch_total_tokens: Option<TokenLimit>,
    /// Compute prompts in chunks, in the same steps as running requests (true), or whole while running requests wait
    /// (false)
    #[arg(long, env, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub prefill_chunking: bool,
    /// Target for the inter-token latency of streams while prompts are computed, in milliseconds: smaller makes streams
    /// smoother and prompts slower; 0: no target. Default: 36 ms, or more for large models
    #[arg(long, env, value_name = "MS")]
    pub max_token_gap: Option<u32>,
    /// Reuse the KV cache of requests that begin with the same tokens: true, false, or per-key (only among requests with
    /// the same API key)
    #[arg(long, env, value_name = "MODE", default_value = "true", ignore_case = true, value_parser = values::prefix_caching(), hide_possible_values = true)]
    pub prefix_caching: String,
    /// Upper bound of the wait that `--waiting-served-ratio` asks for: once running requests have got so many tokens, those
    /// that wait start
    #[arg(long, env, value_name = "TOKENS", default_value_t = 20)]
    pub max_waiting_tokens: u32,
    /// Maximum number of requests that run at once; further ones wait. Default and maximum: `--max-concurrent-requests`
    #[arg(long, env, value_name = "REQUESTS")]
    pub max_batch_size: Option<u32>,
    /// Maximum time that a request waits before it starts, in seconds; then it gets status 429. Default: no limit
    #[arg(long, env, value_name = "SECONDS")]
    pub max_queue_time: Option<f32>,
    /// Maximum time for one step of the model, in seconds; after that the shards count as hung and are restarted
    #[arg(long, env, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u32).range(1..=600))]
    pub step_timeout: u32,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// IP address to listen on, or localhost. HOSTNAME sets it only where it holds an IP address
    #[arg(long, value_name = "ADDRESS", default_value_t = hostname_from_env(), value_parser = ip_address)]
    pub hostname: IpAddr,
    /// Port to listen on
    #[arg(long, short, env, default_value_t = 3000)]
    pub port: u16,
    /// Origin of web pages that may call the server; repeat the flag for more. Default: every origin
    #[arg(long, env, value_name = "ORIGIN")]
    pub cors_allow_origin: Vec<String>,
    /// Key that clients must send as `Authorization: Bearer <key>` or `x-api-key: <key>`; several keys on several lines.
    /// Prefer API_KEY, which process lists do not show. Default: no key needed
    #[arg(long, env, value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<Secret>,
    /// Key for loading and unloading adapters (`--allow-adapter-loading`), sent as other keys are. Prefer ADMIN_API_KEY
    #[arg(long, env, value_name = "KEY", hide_env_values = true)]
    pub admin_api_key: Option<Secret>,
    /// File with further keys, one per line: a key alone, or `name key=... [weight=...] [max_concurrent_requests=...]
    /// [tokens_per_minute=...] [adapters=...]`. Lines that start with `#` are comments
    #[arg(long, env, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Header in which a gateway names the tenant of a request, such as `x-gateway-inference-fairness-id`. Only safe where
    /// every client comes through the gateway, as clients can send headers too
    #[arg(long, env, value_name = "HEADER")]
    pub tenant_header: Option<String>,
    /// Header in which a gateway sets the `priority` of a request; it replaces the one in the body
    #[arg(long, env, value_name = "HEADER")]
    pub priority_header: Option<String>,
    /// Maximum number of open connections; further ones get status 503
    #[arg(long, env, value_name = "CONNECTIONS", default_value_t = 4096)]
    pub max_connections: u32,
    /// Maximum time that a client may take to send a request body, or to read the next part of an answer, in seconds
    #[arg(long, env, value_name = "SECONDS", default_value_t = 60)]
    pub client_timeout: u32,
    /// Send an empty line after this many seconds without an event of a stream, so that proxies keep the connection
    #[arg(long, env, value_name = "SECONDS", default_value_t = 15, value_parser = value_parser!(u32).range(1..))]
    pub sse_keep_alive: u32,
    /// Memory for output items of `/v1/responses`, which clients can then refer to for up to a day, in MiB or as 64MiB or
    /// 1GiB; 0: store none. Default: 64
    #[arg(long, env, value_name = "MIB", value_parser = mebibytes)]
    pub response_memory: Option<u32>,
    /// Number of threads that tokenise and validate requests
    #[arg(long, env, value_name = "THREADS", default_value_t = 2)]
    pub validation_workers: u32,
    /// Second port, for /metrics, /health, /live and /ready only: needs no key, and is open while the model loads. Default:
    /// none
    #[arg(long, env, value_name = "PORT")]
    pub prometheus_port: Option<u16>,
    /// IP address for `--prometheus-port`. Default: that of `--hostname`
    #[arg(long, env, value_name = "ADDRESS", value_parser = ip_address)]
    pub prometheus_hostname: Option<IpAddr>,
    /// Serve /metrics on `--port` without a key too
    #[arg(long, env)]
    pub open_metrics: bool,
    /// Export load metrics under the names of another server too
    #[arg(long, env, value_name = "SERVER", value_parser = ["vllm"])]
    pub metrics_aliases: Option<String>,
    /// Publish prefix cache events to routers over ZeroMQ: JSON with the fields of vLLM, such as
    /// `{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "topic": "kv@host:port@model"}`. Default: none
    #[arg(long, env, value_name = "JSON")]
    pub kv_events_config: Option<String>,
    /// OpenTelemetry collector to send traces to, by OTLP over gRPC, such as http://localhost:4317. Default: none
    #[arg(long, env, value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Service name in traces. Default: OTEL_SERVICE_NAME, or text-generation-inference.router, .server (the shards) and
    /// .launcher
    #[arg(long, env, value_name = "NAME")]
    pub otlp_service_name: Option<String>,
    /// After SIGTERM or SIGINT: accept new requests for this many seconds more, while /ready and /health return 503
    #[arg(long, env, value_name = "SECONDS", default_value_t = 0, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub drain_delay: u64,
    /// After `--drain-delay`: let running requests finish for this many seconds, then end them
    #[arg(long, short = 'g', env, value_name = "SECONDS", default_value_t = 90, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub graceful_termination_timeout: u64,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Logs")]
pub struct LogArgs {
    /// Write logs as JSON, one record per line
    #[arg(long, env)]
    pub json_output: bool,
    /// Log the runtime environment (version, CPUs, GPUs) at the start
    #[arg(long, short)]
    pub env: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Accepted for compatibility with TGI, no effect")]
pub struct CompatibilityArgs {
    /// The server never sends usage statistics, whatever the value
    #[arg(long, env, value_enum)]
    pub usage_stats: Option<UsageStats>,
}

/// Flags of TGI whose feature does not exist yet. They parse, so that the refusal can say what to do.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Not supported yet, refused when set")]
pub struct UnavailableArgs {
    /// Tunnel through ngrok
    #[arg(long, env)]
    pub ngrok: bool,
    /// Token for ngrok
    #[arg(long, env, value_name = "TOKEN", hide_env_values = true)]
    pub ngrok_authtoken: Option<Secret>,
    /// Edge of ngrok
    #[arg(long, env, value_name = "EDGE")]
    pub ngrok_edge: Option<String>,
}

impl Args {
    /// A message about flags, and behind it how they were given: by the name of another server, or in a variable.
    pub fn as_given(&self, message: &str) -> String {
        self.origins.named_in(&self.spelling.named_in(message))
    }
}

impl ServerArgs {
    /// The collector of traces and the name that this server has there, as flags of router and shards. An empty value is
    /// none, as where a variable is set to nothing.
    pub fn otlp(&self) -> [(&'static str, Option<&str>); 2] {
        [
            ("--otlp-endpoint", &self.otlp_endpoint),
            ("--otlp-service-name", &self.otlp_service_name),
        ]
        .map(|(flag, value)| (flag, value.as_deref().filter(|text| !text.is_empty())))
    }

    /// Where probes and metrics are answered from the first second on, if anywhere.
    pub fn management_address(&self) -> Option<SocketAddr> {
        let hostname = self.prometheus_hostname.unwrap_or(self.hostname);
        Some(SocketAddr::new(hostname, self.prometheus_port?))
    }
}

/// Container runtimes set HOSTNAME to a name that nobody chose, so only an address counts.
fn hostname_from_env() -> IpAddr {
    let value = std::env::var("HOSTNAME").ok();
    value
        .and_then(|text| without_brackets(&text).parse().ok())
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}
