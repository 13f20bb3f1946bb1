//! Flags, environment names and defaults. Names and defaults are those of TGI.

mod config;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Parser, Subcommand, value_parser};
use text_generation_core::policy::WaitingServedRatio;
use text_generation_formats::Format;

use crate::aliases::MetricsAliases;
use crate::api_keys::KeyLines;
use crate::conversation::ParserChoice;
use crate::generation_config::GenerationConfig;
use crate::headers::X_API_KEY;
use crate::kv_events::KvEventsConfig;
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
    /// Say whether a start with these flags would work, as far as that can be told without shards. The files of the model
    /// are read where `--tokenizer-name` names their folder. No port is opened.
    Check(Box<Config>),
}

/// Everything that the operator decides.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Most requests at once; the next is answered with 429.
    #[arg(long, env, default_value_t = 128, value_parser = value_parser!(u32).range(1..))]
    pub max_concurrent_requests: u32,
    /// Largest `best_of`.
    #[arg(long, env, default_value_t = 2, value_parser = value_parser!(u32).range(1..))]
    pub max_best_of: u32,
    /// Most stop sequences of a request.
    #[arg(long, env, default_value_t = 4)]
    pub max_stop_sequences: u32,
    /// Largest `top_n_tokens`; the shards give at most 20.
    #[arg(long, env, default_value_t = 5, value_parser = value_parser!(u32).range(..=20))]
    pub max_top_n_tokens: u32,
    /// Largest `top_logprobs` of a chat and `logprobs` of a completion.
    #[arg(long, env, default_value_t = 20, value_parser = value_parser!(u32).range(..=20))]
    pub max_logprobs: u32,
    /// Most prompt tokens of a request; derived from the model when unset.
    #[arg(long, env, value_parser = value_parser!(u32).range(1..))]
    pub max_input_tokens: Option<u32>,
    /// Most tokens of a request, prompt and answer together; derived from the model when unset.
    #[arg(long, env, value_parser = value_parser!(u32).range(2..))]
    pub max_total_tokens: Option<u32>,
    /// Most prompt tokens of one step; 4096 when unset, or more where a prompt may be longer and is not cut in chunks.
    #[arg(long, env, value_parser = value_parser!(u32).range(1..))]
    pub max_batch_prefill_tokens: Option<u32>,
    /// Most tokens of all running requests together; derived from the free memory when unset.
    #[arg(long, env, value_parser = value_parser!(u32).range(1..))]
    pub max_batch_total_tokens: Option<u32>,
    /// How many requests must wait for each running one before they join: a number, or `auto`, as many as pays by what
    /// steps cost and how often requests come. With 0 they start as soon as they fit.
    #[arg(long, env, default_value_t = WaitingServedRatio::Auto)]
    pub waiting_served_ratio: WaitingServedRatio,
    /// Whether prompts are computed in chunks beside the requests that run, or whole and in their stead.
    #[arg(long, env, default_value_t = true, action = ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub prefill_chunking: bool,
    /// Milliseconds that a running stream should wait for its next token at most while prompts are computed; 0: no promise.
    /// Default: 36, and more for models so large that prompts would hardly get on.
    #[arg(long, env)]
    pub max_token_gap: Option<u32>,
    /// Whether what was computed stays for requests that begin with the same tokens: true, false, or per-key, where only
    /// requests with the same API key share it.
    #[arg(long, env, default_value = "true", value_parser = PrefixCaching::from_str)]
    pub prefix_caching: PrefixCaching,
    /// Tokens that running requests get at most before waiting ones join them, whatever the ratio.
    #[arg(long, env, default_value_t = 20)]
    pub max_waiting_tokens: u32,
    /// Most requests that run at once; as many as there may be when unset.
    #[arg(long, env, value_parser = value_parser!(u32).range(1..))]
    pub max_batch_size: Option<u32>,
    /// Seconds that a request may wait for its turn before it is refused with 429; no limit when unset.
    #[arg(long, env, value_parser = seconds)]
    pub max_queue_time: Option<Duration>,
    /// Seconds that a step of the shards may take at most; then it hangs, and the shards are started again.
    #[arg(long, env, default_value_t = 60, value_parser = value_parser!(u32).range(1..=600))]
    pub step_timeout: u32,
    /// Threads that tokenise.
    #[arg(long, env, default_value_t = 2, value_parser = value_parser!(u32).range(1..))]
    pub validation_workers: u32,
    /// Address to listen on.
    #[arg(long, env, default_value = "0.0.0.0")]
    pub hostname: String,
    /// Port to listen on.
    #[arg(long, short, env, default_value_t = 3000)]
    pub port: u16,
    /// Socket of the first shard.
    #[arg(long, env, default_value = "/tmp/text-generation-server-0")]
    pub master_shard_uds_path: PathBuf,
    /// PEM file with the certificate of this node, where shards are on other nodes.
    #[arg(long, env, requires_all = ["cluster_key", "cluster_ca"])]
    pub cluster_cert: Option<PathBuf>,
    /// PEM file with its key.
    #[arg(long, env, requires = "cluster_cert")]
    pub cluster_key: Option<PathBuf>,
    /// PEM file with the authority that all nodes trust.
    #[arg(long, env, requires = "cluster_cert")]
    pub cluster_ca: Option<PathBuf>,
    /// Folder with the tokenizer. Needed by everything but the commands.
    #[arg(long, env)]
    pub tokenizer_name: Option<PathBuf>,
    /// What was asked to be served, a name on the hub or a folder; the tokenizer folder when unset.
    #[arg(long, env)]
    pub model_id: Option<String>,
    /// Name of the model as clients see it; `--model-id` when unset. Of several the first is shown, all are known.
    #[arg(long, env, num_args = 1.., value_delimiter = ',')]
    pub served_model_name: Vec<String>,
    /// Revision of the model as `/info` shows it.
    #[arg(long, env)]
    pub revision: Option<String>,
    /// Another `tokenizer_config.json`, for its chat template and special tokens.
    #[arg(long, env)]
    pub tokenizer_config_path: Option<PathBuf>,
    /// Read special tokens in what clients put into chats as text.
    #[arg(long, env)]
    pub escape_special_tokens: bool,
    /// How tool calls of the model are read: auto, none, or the name of a format such as hermes.
    #[arg(long, env, default_value = "auto", value_parser = ParserChoice::of_calls)]
    pub tool_call_parser: ParserChoice<&'static Format>,
    /// How reasoning of the model is told from its answer: auto, none, or the name of a format such as qwen3.
    #[arg(long, env, default_value = "auto", value_parser = ParserChoice::of_reasoning)]
    pub reasoning_parser: ParserChoice<String>,
    /// Whether what requests below `/v1` leave open is as the model's `generation_config.json` says: auto or none.
    #[arg(long, env, default_value = "auto", value_parser = GenerationConfig::from_str)]
    pub generation_config: GenerationConfig,
    /// Refuse requests that ask for an answer of a form.
    #[arg(long, env)]
    pub disable_grammar_support: bool,
    /// Most prompts of one completion request.
    #[arg(long, env, default_value_t = 32, value_parser = value_parser!(u32).range(1..))]
    pub max_client_batch_size: u32,
    /// Largest request body in bytes.
    #[arg(long, env, default_value_t = 2_000_000, value_parser = value_parser!(u32).range(1..))]
    pub payload_limit: u32,
    /// Return log-probabilities of the prompt to requests that ask for them.
    #[arg(long, env)]
    pub enable_prefill_logprobs: bool,
    /// Origin whose pages may call this server; repeat for more. All when unset.
    #[arg(long, env)]
    pub cors_allow_origin: Vec<HeaderValue>,
    /// Further port for `/metrics`, `/health`, `/live` and `/ready`, without a key. None when unset.
    #[arg(long, env)]
    pub prometheus_port: Option<u16>,
    /// Address to listen on with that port; that of `--hostname` when unset.
    #[arg(long, env)]
    pub prometheus_hostname: Option<String>,
    /// Answer `/metrics` on the main port without a key too.
    #[arg(long, env)]
    pub open_metrics: bool,
    /// Show load metrics under the names of another server too: vllm.
    #[arg(long, env, value_parser = MetricsAliases::from_str)]
    pub metrics_aliases: Option<MetricsAliases>,
    /// Seconds for which requests are still taken when the server is told to stop, while it says that it is not ready.
    #[arg(long, env, default_value_t = 0, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub drain_delay: u64,
    /// Seconds that running requests have to finish when the server is told to stop.
    #[arg(long, short, env, default_value_t = 90, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub graceful_termination_timeout: u64,
    /// Stop when standard input ends, as it does when no shard is left or the launcher is gone; running requests end with an error.
    #[arg(long)]
    pub exit_on_stdin_eof: bool,
    /// Log JSON, one record a line.
    #[arg(long, env)]
    pub json_output: bool,
    /// Key that clients must send as `Authorization: Bearer <key>` or `x-api-key: <key>`; several in several lines.
    /// Better given by environment than by flag.
    #[arg(long, env, hide_env_values = true)]
    pub api_key: Option<KeyLines>,
    /// File of further keys, one a line, or `name key=... [weight=...] [max_concurrent_requests=...]
    /// [tokens_per_minute=...]`; lines that start with `#` are comments.
    #[arg(long, env)]
    pub api_key_file: Option<PathBuf>,
    /// Header in which a gateway names the tenant of a request, such as `x-gateway-inference-fairness-id`. None when
    /// unset, for clients can write headers too.
    #[arg(long, env, value_parser = gateway_header)]
    pub tenant_header: Option<HeaderName>,
    /// Header in which a gateway gives the `priority` of a request, in the place of what its body says.
    #[arg(long, env, value_parser = gateway_header)]
    pub priority_header: Option<HeaderName>,
    /// Most connections at once; the next is answered with 503 and closed.
    #[arg(long, env, default_value_t = 4096, value_parser = value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// Seconds that a client may take to send a request body, or to take in a part of an answer.
    #[arg(long, env, default_value_t = 60, value_parser = value_parser!(u32).range(1..))]
    pub client_timeout: u32,
    /// Seconds after which a silent stream sends an empty line, so that nobody takes its connection for dead.
    #[arg(long, env, default_value_t = 15, value_parser = value_parser!(u32).range(1..))]
    pub sse_keep_alive: u32,
    /// MiB of output of `/v1/responses` that are remembered, for a day at most, for clients that refer to it
    /// (`item_reference`) instead of sending it again; 0 remembers nothing.
    #[arg(long, env, default_value_t = 64)]
    pub response_memory: u32,
    /// Value of the header `x-compute-type`; number and kind of devices when unset.
    #[arg(long, env, hide = true)]
    pub compute_type: Option<HeaderValue>,
    /// Value of the header `x-router-instance` of `/health`, by which the launcher knows its own router.
    #[arg(long, env, hide = true)]
    pub router_instance: Option<HeaderValue>,
    /// Events of the prefix cache for routers, as JSON with the fields of vLLM, such as `{"enable_kv_cache_events": true,
    /// "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558", "topic": "kv@host:port@model"}`. None when unset.
    #[arg(long, env, value_parser = KvEventsConfig::from_str)]
    pub kv_events_config: Option<KvEventsConfig>,
    /// Collector that gets traces of requests, as OTLP over gRPC, such as http://localhost:4317. None when unset.
    #[arg(long, env)]
    pub otlp_endpoint: Option<String>,
    /// Name of this server in traces; that of `OTEL_SERVICE_NAME`, or text-generation-inference.router, when unset.
    #[arg(long, env)]
    pub otlp_service_name: Option<String>,
    /// Level or filter of the log.
    #[arg(long, env, hide = true, default_value = "info")]
    pub log_level: String,
}

/// A header that may go to logs: keys must not.
fn gateway_header(text: &str) -> Result<HeaderName, String> {
    let name: HeaderName = text
        .parse()
        .map_err(|_| "not a name of a header".to_owned())?;
    let secret = [header::AUTHORIZATION, header::COOKIE, X_API_KEY].contains(&name);
    if secret {
        return Err("this header holds secrets".to_owned());
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
