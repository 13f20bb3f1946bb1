//! Flags, environment names and defaults. No logic: `checks` judges the values, `plan` uses them.

mod values;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, RangedU64ValueParser};
use clap::{ArgAction, Parser, value_parser};

pub use self::values::{
    Attention, Dtype, KvCacheDtype, LoadFormat, ModelImpl, RopeScaling, Secret, UsageStats,
};

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
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Name on the Hugging Face hub, for example `HuggingFaceTB/SmolLM2-135M-Instruct`, or a local folder. Required
    #[arg(long, env)]
    pub model_id: Option<String>,
    /// Name of the model as clients see it. Of several the first is shown, all are known. Default: --model-id
    #[arg(long, env, num_args = 1.., value_delimiter = ',')]
    pub served_model_name: Vec<String>,
    /// Branch, tag or commit of the model on the hub
    #[arg(long, env)]
    pub revision: Option<String>,
    /// A `tokenizer_config.json` whose chat template and special tokens count instead of the model's
    #[arg(long, env)]
    pub tokenizer_config_path: Option<PathBuf>,
    /// Read special tokens such as `<|im_start|>` in what clients put into chats as text, not as the end of their turn
    #[arg(long, env)]
    pub escape_special_tokens: bool,
    /// How tool calls of the model are read: a format such as `hermes`, or `none`. Default: as its files show
    #[arg(long, env)]
    pub tool_call_parser: Option<String>,
    /// How reasoning is told from the answer: a format such as `deepseek_r1`, or `none`. Default: as the files show
    #[arg(long, env)]
    pub reasoning_parser: Option<String>,
    /// Whether what requests to `/v1` leave open is as the model's `generation_config.json` says: `auto` or `none`
    #[arg(long, env)]
    pub generation_config: Option<String>,
    /// Refuse requests whose answer must have a form, such as JSON
    #[arg(long, env)]
    pub disable_grammar_support: bool,
    /// Number type of weights and computation. Default: what the model's configuration says
    #[arg(long, env, value_enum)]
    pub dtype: Option<Dtype>,
    /// Number type of stored keys and values. Default: what the checkpoint wants, which is `--dtype` for most
    #[arg(long, env, value_enum, default_value_t = KvCacheDtype::Auto)]
    pub kv_cache_dtype: KvCacheDtype,
    /// How weights are read; `dummy` makes random weights from the configuration alone, for benchmarks
    #[arg(long, env, value_enum, default_value_t = LoadFormat::Auto)]
    pub load_format: LoadFormat,
    /// Code that computes the model: ours (`native`), or its class of Transformers. Default: ours where it knows the family
    #[arg(long, env, value_enum)]
    pub model_impl: Option<ModelImpl>,
    /// Quantise 16-bit weights while they are read: fp8, eetq, bitsandbytes-nf4 and others (docs/quantisation.md).
    /// Checkpoints that are quantised need no flag
    #[arg(long, env)]
    pub quantize: Option<String>,
    /// Convert `.bin` weights to safetensors, with a loader that executes no code from the file
    #[arg(long, env)]
    pub auto_convert: bool,
    /// Accepted as TGI does; has no effect, because no code that comes with a model is ever run
    #[arg(long, env)]
    pub trust_remote_code: bool,
    /// Folder of the hub cache
    #[arg(long, env)]
    pub huggingface_hub_cache: Option<PathBuf>,
    /// Folder that holds the weights, used instead of the hub cache
    #[arg(long, env)]
    pub weights_cache_override: Option<PathBuf>,
    /// Stretch the positions of a RoPE model. A factor alone means `linear`
    #[arg(long, env, value_enum)]
    pub rope_scaling: Option<RopeScaling>,
    /// Factor of `--rope-scaling`. Default with a scaling: 1.0
    #[arg(long, env)]
    pub rope_factor: Option<f32>,
    /// Share of the vocabulary that a watermark favours
    #[arg(long, env)]
    pub watermark_gamma: Option<f32>,
    /// How much a watermark adds to the favoured logits
    #[arg(long, env)]
    pub watermark_delta: Option<f32>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Shards")]
pub struct ShardArgs {
    /// Spread the model over all visible devices (true), or not (false). Default: as many shards as visible devices
    #[arg(long, env)]
    pub sharded: Option<bool>,
    /// Number of shards, of each node where there are several
    #[arg(long, env)]
    pub num_shard: Option<usize>,
    /// Attention implementation. Default: triton on GPUs, torch on CPUs
    #[arg(long, env, value_enum)]
    pub attention: Option<Attention>,
    /// Use no custom GPU kernels
    #[arg(long, env)]
    pub disable_custom_kernels: bool,
    /// Share of each device's memory that a shard may use, above 0 and up to 1
    #[arg(long, env, default_value_t = 1.0)]
    pub cuda_memory_fraction: f32,
    /// Batch sizes of decode that get a CUDA graph, such as `1,2,4,8`; `0`: none, and none for prompts. Default: up to the largest batch
    #[arg(long, env)]
    pub cuda_graphs: Option<String>,
    /// Give each request bitwise the same result whatever else runs; slower
    #[arg(long, env)]
    pub deterministic: bool,
    /// Give each shard some of a mixture's experts whole, instead of a part of each
    #[arg(long, env)]
    pub enable_expert_parallel: bool,
    /// Seconds until every shard, and then the router, must be ready
    #[arg(long, env, default_value_t = 600, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub shard_startup_timeout: u64,
    /// Prefix of the shards' sockets; shard r listens on `<prefix>-<r>`. Default: in a new private directory
    #[arg(long, env)]
    pub shard_uds_path: Option<PathBuf>,
    /// Losses of shards within `--shard-loss-window` that end the server; after fewer all shards start again, and
    /// requests go on
    #[arg(long, env, default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub max_shard_losses: usize,
    /// Seconds after which a loss of shards is forgotten
    #[arg(long, env, default_value_t = 600, value_parser = value_parser!(u64).range(1..))]
    pub shard_loss_window: u64,
    /// Keep a process for each shard that has its code loaded and takes over when shards are lost: they start again
    /// seconds earlier, for a few hundred MiB of memory of the host each
    #[arg(long, env, default_value_t = true, action = ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub standby_shards: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Several nodes (docs/nodes.md)")]
pub struct NodeArgs {
    /// Nodes that serve the model together; each is started with the same flags, but for its own addresses and rank
    #[arg(long, env, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub nnodes: usize,
    /// Which of the nodes this is; node 0 takes requests
    #[arg(long, env, default_value_t = 0)]
    pub node_rank: usize,
    /// Name or IP address of node 0. Without effect for one node
    #[arg(long, env)]
    pub master_addr: Option<String>,
    /// Port of node 0 for the other nodes. Shards use those above it: 1 and one more for each shard of all nodes
    #[arg(long, env, default_value_t = 29500)]
    pub master_port: u16,
    /// IP address of this node on the network of the nodes. Default: the one by which it reaches node 0
    #[arg(long, env)]
    pub local_addr: Option<IpAddr>,
    /// PEM file with the certificate of this node, which must be for the name `text-generation`
    #[arg(long, env)]
    pub cluster_cert: Option<PathBuf>,
    /// PEM file with the key of that certificate
    #[arg(long, env)]
    pub cluster_key: Option<PathBuf>,
    /// PEM file with the authority that has signed the certificates of all nodes, and nothing else
    #[arg(long, env)]
    pub cluster_ca: Option<PathBuf>,
    /// Connect nodes without certificates: whoever reaches their ports may use the shards
    #[arg(long, env)]
    pub cluster_insecure: bool,
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
    /// Ratio of waiting to running requests at which waiting ones are let in; 0: as soon as they fit
    #[arg(long, env, default_value_t = 0.0)]
    pub waiting_served_ratio: f32,
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
    #[arg(long, env, default_value = "true", ignore_case = true, value_parser = ["true", "false", "1", "0", "per-key"])]
    pub prefix_caching: String,
    /// Steps without prompts that a waiting request can be made to wait while others run
    #[arg(long, env, default_value_t = 20)]
    pub max_waiting_tokens: u32,
    /// Most requests in a batch. Default: no limit
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
    /// IP address to listen on. HOSTNAME is used where it holds an IP address, and ignored where it holds a name
    #[arg(long, default_value_t = hostname_from_env())]
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
    /// Threads that tokenise and validate
    #[arg(long, env, default_value_t = 2)]
    pub validation_workers: u32,
    /// Further port for /metrics, /health, /live and /ready, without a key and open from the first second. Default: none
    #[arg(long, env)]
    pub prometheus_port: Option<u16>,
    /// IP address of `--prometheus-port`. Default: that of `--hostname`
    #[arg(long, env)]
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
        .and_then(|text| text.parse().ok())
        .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
}
