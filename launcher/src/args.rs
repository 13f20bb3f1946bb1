//! Flags, environment names and defaults. No logic: `checks` judges the values, `plan` uses them.
//!
//! Here are those about how the model is served; those about how it is computed are in `engine.rs`.

mod engine;
mod given;
mod others;
mod values;
mod words;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Parser, value_parser};
use text_generation_process::address::{ip_address, without_brackets};
use text_generation_process::settings::Origins;

pub use self::engine::{ModelArgs, NodeArgs, ShardArgs};
pub use self::given::{Command, read};
pub use self::values::{Dtype, RopeScaling, Secret, UsageStats};

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
#[command(next_help_heading = "Limits of a request")]
pub struct LimitArgs {
    /// Requests served at once; more are answered with status 429
    #[arg(long, env, default_value_t = 128)]
    pub max_concurrent_requests: u32,
    /// Highest `best_of`
    #[arg(long, env, default_value_t = 2)]
    pub max_best_of: u32,
    /// Most stop sequences
    #[arg(long, env, default_value_t = 4)]
    pub max_stop_sequences: u32,
    /// Highest `top_n_tokens`
    #[arg(long, env, default_value_t = 5)]
    pub max_top_n_tokens: u32,
    /// Highest `top_logprobs` of a chat and `logprobs` of a completion
    #[arg(long, env, default_value_t = 20, value_parser = value_parser!(u32).range(..=20))]
    pub max_logprobs: u32,
    /// Most tokens of a prompt. Default: from the model and the memory
    #[arg(long, env)]
    pub max_input_tokens: Option<u32>,
    /// Older name of `--max-input-tokens`
    #[arg(long, env)]
    pub max_input_length: Option<u32>,
    /// Most tokens of prompt and answer together. Default: from the model and the memory
    #[arg(long, env)]
    pub max_total_tokens: Option<u32>,
    /// Most prompts in one completion request
    #[arg(long, env, default_value_t = 32)]
    pub max_client_batch_size: u32,
    /// Most bytes of a request body
    #[arg(long, env, default_value_t = 2_000_000)]
    pub payload_limit: u32,
    /// Allow log-probabilities of the prompt, which cost memory
    #[arg(long, env)]
    pub enable_prefill_logprobs: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Batching")]
pub struct BatchingArgs {
    /// How many requests must wait for each running one before they join: a number, or auto, as many as pays by what
    /// steps cost and how often requests come; 0: requests join as soon as they fit
    #[arg(long, env, default_value = "auto", ignore_case = true, value_parser = values::waiting_served_ratio)]
    pub waiting_served_ratio: String,
    /// Most prompt tokens in one step. Default: 4096, or more where a prompt may be longer and is not cut in chunks
    #[arg(long, env)]
    pub max_batch_prefill_tokens: Option<u32>,
    /// Most tokens in a batch, prompts and answers. Default: from the memory
    #[arg(long, env)]
    pub max_batch_total_tokens: Option<u32>,
    /// Whether prompts are computed in chunks beside the requests that run, or whole and in their stead
    #[arg(long, env, default_value_t = true, action = ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub prefill_chunking: bool,
    /// Milliseconds that a running stream should wait for its next token at most while prompts are computed; 0: no
    /// promise. Default: 36, and more for models so large that prompts would hardly get on
    #[arg(long, env)]
    pub max_token_gap: Option<u32>,
    /// Whether what was computed stays for requests that begin with the same tokens: true, false or per-key
    #[arg(long, env, default_value = "true", ignore_case = true, value_parser = values::PREFIX_CACHING)]
    pub prefix_caching: String,
    /// Tokens that running requests get at most before waiting ones join them, whatever the ratio
    #[arg(long, env, default_value_t = 20)]
    pub max_waiting_tokens: u32,
    /// Most requests in a batch. Default, and at most: `--max-concurrent-requests`
    #[arg(long, env)]
    pub max_batch_size: Option<u32>,
    /// Seconds that a request may wait for its turn before it is refused with 429. Default: no limit
    #[arg(long, env)]
    pub max_queue_time: Option<f32>,
    /// Most seconds that a step of the shards may be given; one that takes longer hangs, and the shards start again
    #[arg(long, env, default_value_t = 60, value_parser = value_parser!(u32).range(1..=600))]
    pub step_timeout: u32,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// IP address to listen on, or localhost. HOSTNAME is used where it holds an IP address, and ignored where it holds a
    /// name
    #[arg(long, default_value_t = hostname_from_env(), value_parser = ip_address)]
    pub hostname: IpAddr,
    /// Port to listen on
    #[arg(long, short, env, default_value_t = 3000)]
    pub port: u16,
    /// Origin that browsers may call from; can be repeated
    #[arg(long, env)]
    pub cors_allow_origin: Vec<String>,
    /// Key that clients must send as `Authorization: Bearer <key>` or `x-api-key: <key>`; several in several lines.
    /// API_KEY keeps it out of process lists
    #[arg(long, env, hide_env_values = true)]
    pub api_key: Option<Secret>,
    /// File of further keys, one a line, or `name key=... [weight=...] [max_concurrent_requests=...]
    /// [tokens_per_minute=...]`; lines that start with `#` are comments
    #[arg(long, env)]
    pub api_key_file: Option<PathBuf>,
    /// Header in which a gateway names the tenant of a request, such as `x-gateway-inference-fairness-id`; set it only
    /// where every client comes through the gateway, for clients can write headers too
    #[arg(long, env)]
    pub tenant_header: Option<String>,
    /// Header in which a gateway gives the `priority` of a request, in the place of what its body says
    #[arg(long, env)]
    pub priority_header: Option<String>,
    /// Connections at once; the next is answered with status 503 and closed
    #[arg(long, env, default_value_t = 4096)]
    pub max_connections: u32,
    /// Seconds that a client may take to send a request body, or to take in a part of an answer
    #[arg(long, env, default_value_t = 60)]
    pub client_timeout: u32,
    /// Seconds after which a silent stream sends an empty line, so that nobody takes its connection for dead
    #[arg(long, env, default_value_t = 15, value_parser = value_parser!(u32).range(1..))]
    pub sse_keep_alive: u32,
    /// MiB of output of `/v1/responses` that are remembered, for a day at most, for clients that refer to it instead of
    /// sending it again; 0 remembers nothing. Default: 64
    #[arg(long, env)]
    pub response_memory: Option<u32>,
    /// Threads that tokenise and validate
    #[arg(long, env, default_value_t = 2)]
    pub validation_workers: u32,
    /// Further port for /metrics, /health, /live and /ready, without a key and open from the first second. Default: none
    #[arg(long, env)]
    pub prometheus_port: Option<u16>,
    /// IP address of `--prometheus-port`. Default: that of `--hostname`
    #[arg(long, env, value_parser = ip_address)]
    pub prometheus_hostname: Option<IpAddr>,
    /// Answer /metrics on `--port` without a key too
    #[arg(long, env)]
    pub open_metrics: bool,
    /// Show load metrics under the names of another server too
    #[arg(long, env, value_parser = ["vllm"])]
    pub metrics_aliases: Option<String>,
    /// Events of the prefix cache for routers, over ZeroMQ: JSON with the fields of vLLM, such as
    /// `{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "topic": "kv@host:port@model"}`. Default: none
    #[arg(long, env)]
    pub kv_events_config: Option<String>,
    /// Collector that gets traces of requests, starts and losses, as OTLP over gRPC, such as http://localhost:4317.
    /// Default: none
    #[arg(long, env)]
    pub otlp_endpoint: Option<String>,
    /// Name of this server in traces. Default: OTEL_SERVICE_NAME, or text-generation-inference.router, .server for the
    /// shards and .launcher
    #[arg(long, env)]
    pub otlp_service_name: Option<String>,
    /// Seconds for which requests are still taken after SIGTERM or SIGINT, while /ready and /health answer 503
    #[arg(long, env, default_value_t = 0, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub drain_delay: u64,
    /// Seconds that running requests have to finish after that
    #[arg(long, short = 'g', env, default_value_t = 90, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub graceful_termination_timeout: u64,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Logs")]
pub struct LogArgs {
    /// Write logs as one JSON record a line
    #[arg(long, env)]
    pub json_output: bool,
    /// Print the runtime environment, then go on
    #[arg(long, short)]
    pub env: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Accepted for compatibility, without effect")]
pub struct CompatibilityArgs {
    /// Nothing is ever sent to anyone, whatever the value
    #[arg(long, env, value_enum)]
    pub usage_stats: Option<UsageStats>,
}

/// Flags of TGI whose feature does not exist yet. They parse, so that the refusal can say what to do.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Not available yet: refused when set")]
pub struct UnavailableArgs {
    /// Number of speculated tokens; 0 is accepted
    #[arg(long, env)]
    pub speculate: Option<usize>,
    /// LoRA adapters
    #[arg(long, env)]
    pub lora_adapters: Option<String>,
    /// Tunnel to ngrok
    #[arg(long, env)]
    pub ngrok: bool,
    /// ngrok token
    #[arg(long, env, hide_env_values = true)]
    pub ngrok_authtoken: Option<Secret>,
    /// ngrok edge
    #[arg(long, env)]
    pub ngrok_edge: Option<String>,
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
