//! Flags about how the model is computed: the model itself, its shards, and the nodes that they are on.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, RangedU64ValueParser};
use clap::{ArgAction, value_parser};
use text_generation_process::address::ip_address;

use super::MOST_SECONDS;
use super::values::{
    Attention, DequantisedCopies, Dtype, KvCacheDtype, LoadFormat, ModelImpl, RopeScaling, quantize,
};

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
    /// Number type of weights and computation. `auto`: what the model's configuration says
    #[arg(long, env, value_enum, default_value_t = Dtype::Auto)]
    pub dtype: Dtype,
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
    #[arg(long, env, value_parser = quantize(), hide_possible_values = true)]
    pub quantize: Option<String>,
    /// Keep matrices of few bits with 16 bits as well, for steps of more than 64 tokens. `auto`: where that takes a small
    /// part of the memory and shortens no request; never with `--deterministic`
    #[arg(long, env, value_enum, default_value_t = DequantisedCopies::Auto)]
    pub dequantised_copies: DequantisedCopies,
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
    #[arg(long, env, value_parser = BoolishValueParser::new())]
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
    /// Share of each device's memory that a shard may use, from 0.01 to 1
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
    #[arg(long, env, value_parser = ip_address)]
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
