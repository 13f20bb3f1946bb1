//! Flags about how the model is computed: the model itself, its shards, and the nodes that they are on.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, RangedU64ValueParser};
use clap::{ArgAction, value_parser};
use text_generation_process::address::ip_address;

use super::MOST_SECONDS;
use super::speculation::{MOST_DRAFTS, Method, SpeculativeConfig};
use super::values::{
    Attention, DequantisedCopies, Dtype, KvCacheDtype, LoadFormat, ModelImpl, RopeScaling,
    fraction, quantize,
};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Model to serve: its name on the Hugging Face hub, such as `HuggingFaceTB/SmolLM2-135M-Instruct`, a local folder,
    /// or `s3://bucket/prefix` in an object store.
    /// Required
    #[arg(long, env, value_name = "MODEL")]
    pub model_id: Option<String>,
    /// Name of the model in the API. Of several, answers show the first, and `/v1/models` lists all. Default: `--model-id`
    #[arg(long, env, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    pub served_model_name: Vec<String>,
    /// Branch, tag or commit of the model on the hub. Default: main
    #[arg(long, env)]
    pub revision: Option<String>,
    /// `tokenizer_config.json` to take the chat template and special tokens from. Default: the model's own
    #[arg(long, env, value_name = "FILE")]
    pub tokenizer_config_path: Option<PathBuf>,
    /// Treat special tokens such as `<|im_start|>` in chat messages of clients as plain text, so that they cannot end a turn
    #[arg(long, env)]
    pub escape_special_tokens: bool,
    /// Format in which the model writes tool calls, such as `hermes`, or `none`. Default: `auto`, detected from its files
    #[arg(long, env, value_name = "FORMAT")]
    pub tool_call_parser: Option<String>,
    /// Format in which the model marks its reasoning, such as `deepseek_r1`, or `none`. Default: `auto`, detected from its
    /// files
    #[arg(long, env, value_name = "FORMAT")]
    pub reasoning_parser: Option<String>,
    /// Take default sampling parameters for requests to `/v1` from the model's `generation_config.json` (`auto`), or not
    /// (`none`). Default: `auto`
    #[arg(long, env, value_name = "SOURCE")]
    pub generation_config: Option<String>,
    /// Refuse requests for structured output, such as JSON that follows a schema
    #[arg(long, env)]
    pub disable_grammar_support: bool,
    /// Data type of weights and computation. `auto`: the one in the model's configuration
    #[arg(long, env, value_enum, default_value_t = Dtype::Auto)]
    pub dtype: Dtype,
    /// Data type of the KV cache. `auto`: what the checkpoint asks for, or `--dtype`
    #[arg(long, env, value_enum, value_name = "DTYPE", default_value_t = KvCacheDtype::Auto)]
    pub kv_cache_dtype: KvCacheDtype,
    /// Format of the weights to load. `dummy`: random weights from the configuration alone, for benchmarks
    #[arg(long, env, value_enum, value_name = "FORMAT", default_value_t = LoadFormat::Auto)]
    pub load_format: LoadFormat,
    /// Implementation of the model: our own (`native`) or that of `transformers`. Default: `auto`, our own where it supports
    /// the model
    #[arg(long, env, value_enum, value_name = "IMPL")]
    pub model_impl: Option<ModelImpl>,
    /// Quantise 16-bit weights while they load: fp8, eetq, bitsandbytes-nf4 and others (docs/quantisation.md). Quantised
    /// checkpoints need no flag
    #[arg(long, env, value_name = "METHOD", value_parser = quantize(), hide_possible_values = true)]
    pub quantize: Option<String>,
    /// Keep 16-bit copies of 4-bit and 8-bit weights too, which makes steps of more than 64 tokens faster. `auto`: where
    /// they take little memory and shorten no request, and never with `--deterministic`
    #[arg(long, env, value_enum, value_name = "MODE", default_value_t = DequantisedCopies::Auto)]
    pub dequantised_copies: DequantisedCopies,
    /// LoRA adapter to merge into 16-bit weights while they load: a folder that PEFT has saved, id, id@revision or
    /// s3://bucket/prefix (docs/adapters.md)
    #[arg(long, env, value_name = "ADAPTER")]
    pub merge_adapter: Option<String>,
    /// LoRA adapters that requests may name, with commas between them: id, id@revision, name=folder, name=id@revision
    /// or name=s3://bucket/prefix (docs/adapters.md)
    #[arg(long, env, value_name = "ADAPTERS")]
    pub lora_adapters: Option<String>,
    /// Pages of the device for adapters, of 16 rank units each: one of rank 16 takes one. Default: what those of
    /// `--lora-adapters` need, and 32 more where others can come later
    #[arg(long, env, value_name = "PAGES", value_parser = value_parser!(u32).range(1..=65_536))]
    pub adapter_pages: Option<u32>,
    /// Folder of LoRA adapters that requests may name without anybody having loaded them: `name`, or `org/name`, is a
    /// folder below it
    #[arg(long, env, value_name = "FOLDER")]
    pub lora_dir: Option<PathBuf>,
    /// Host memory for adapters that come after the start, of all shards together. Default: 8192
    #[arg(long, env, value_name = "MIB")]
    pub adapter_host_mib: Option<u32>,
    /// Let whoever has the admin key load and unload adapters while the server runs (`/v1/load_lora_adapter`)
    #[arg(long, env)]
    pub allow_adapter_loading: bool,
    /// Convert `.bin` weights to safetensors, with a loader that runs no code from the file
    #[arg(long, env)]
    pub auto_convert: bool,
    /// Accepted, no effect: the server never runs code that comes with a model
    #[arg(long, env)]
    pub trust_remote_code: bool,
    /// Folder of the Hugging Face cache. Default: that of HF_HOME, or ~/.cache/huggingface
    #[arg(long, env, value_name = "FOLDER")]
    pub huggingface_hub_cache: Option<PathBuf>,
    /// Folder with the weights, used instead of the Hugging Face cache
    #[arg(long, env, value_name = "FOLDER")]
    pub weights_cache_override: Option<PathBuf>,
    /// Method of RoPE scaling, for contexts longer than the model was trained on. Default: linear where `--rope-factor` is
    /// set, else the model's own
    #[arg(long, env, value_enum, value_name = "METHOD")]
    pub rope_scaling: Option<RopeScaling>,
    /// Factor of RoPE scaling, from 1 to 10000. Default: 1 where `--rope-scaling` is set
    #[arg(long, env, value_name = "FACTOR")]
    pub rope_factor: Option<f32>,
    /// Fraction of the vocabulary that a watermark favours, from 0 to 1
    #[arg(long, env, value_name = "FRACTION")]
    pub watermark_gamma: Option<f32>,
    /// Amount that a watermark adds to the logits of favoured tokens
    #[arg(long, env, value_name = "LOGITS")]
    pub watermark_delta: Option<f32>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Shards")]
pub struct ShardArgs {
    /// Split the model over all visible GPUs (true) or use one (false). Default: one shard per visible GPU
    #[arg(long, env, value_name = "BOOL", value_parser = BoolishValueParser::new())]
    pub sharded: Option<bool>,
    /// Number of shards (tensor parallel size), per node where there are several. Default: one per visible GPU
    #[arg(long, env, value_name = "SHARDS")]
    pub num_shard: Option<usize>,
    /// Attention implementation. Default: triton on GPUs, torch on CPUs
    #[arg(long, env, value_enum, value_name = "IMPL")]
    pub attention: Option<Attention>,
    /// Use no custom GPU kernels
    #[arg(long, env)]
    pub disable_custom_kernels: bool,
    /// Fraction of the memory of each GPU that the server may use, such as 0.9 or 90%
    #[arg(long, env, value_name = "FRACTION", default_value_t = 1.0, value_parser = fraction)]
    pub cuda_memory_fraction: f32,
    /// Batch sizes for which the server captures CUDA graphs of decode steps, such as `1,2,4,8`. With `0` it uses no CUDA
    /// graphs, neither for decode steps nor for prompts. Default: sizes up to the largest batch
    #[arg(long, env, value_name = "SIZES")]
    pub cuda_graphs: Option<String>,
    /// Make answers bitwise the same whatever else runs at the time; slower
    #[arg(long, env)]
    pub deterministic: bool,
    /// Draft up to so many tokens of each answer from its own text, and check them in one step: the same answers, in fewer
    /// steps where they repeat what was written before. Default: 0, which means no drafts
    #[arg(long, env, value_name = "TOKENS", value_parser = value_parser!(u8).range(..=i64::from(MOST_DRAFTS)))]
    pub speculate: Option<u8>,
    /// The same as JSON, and which drafter takes part, with the fields of vLLM: method (ngram, suffix, eagle3, medusa, mtp,
    /// draft_model), model, revision, num_speculative_tokens (docs/speculation.md)
    #[arg(long, env, value_name = "JSON")]
    pub speculative_config: Option<SpeculativeConfig>,
    /// Host memory for earlier answers, of which new ones that say the same are drafted too. Default: 0, or 64 with the
    /// method `suffix` of `--speculative-config`
    #[arg(long, env, value_name = "MIB")]
    pub answer_index_mib: Option<u32>,
    /// Mixture of experts: give each shard whole experts instead of a slice of every expert
    #[arg(long, env)]
    pub enable_expert_parallel: bool,
    /// Latent attention (DeepSeek, Kimi): let each shard keep some positions instead of all, so that the KV pool grows with
    /// the shards; long contexts decode faster, and single short ones slower
    #[arg(long, env)]
    pub enable_context_parallel: bool,
    /// Maximum time for the shards, and then for the router, to become ready, in seconds
    #[arg(long, env, value_name = "SECONDS", default_value_t = 600, value_parser = value_parser!(u64).range(..=MOST_SECONDS))]
    pub shard_startup_timeout: u64,
    /// Path prefix of the shards' Unix sockets: shard 0 listens on `<prefix>-0`. Default: in a new private directory
    #[arg(long, env, value_name = "PREFIX")]
    pub shard_uds_path: Option<PathBuf>,
    /// Number of shard losses (a shard that dies or hangs) within `--shard-loss-window` that ends the server. After fewer,
    /// all shards restart and requests continue
    #[arg(long, env, value_name = "LOSSES", default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub max_shard_losses: usize,
    /// Time after which a shard loss no longer counts, in seconds
    #[arg(long, env, value_name = "SECONDS", default_value_t = 600, value_parser = value_parser!(u64).range(1..))]
    pub shard_loss_window: u64,
    /// Keep a second process ready for each shard. If the shard dies, it takes over, so that requests continue seconds
    /// earlier. Each takes a few hundred MiB of host memory
    #[arg(long, env, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, value_parser = BoolishValueParser::new())]
    pub standby_shards: bool,
}

/// Of earlier answers, where `--speculative-config` asks for them.
const ANSWER_INDEX_MIB: u32 = 64;

impl ShardArgs {
    /// The most drafts of a request that a step checks, by either flag; 0: there are none.
    pub fn drafts(&self) -> u8 {
        let config = self.speculative_config.as_ref();
        config
            .and_then(|config| config.drafts)
            .or(self.speculate)
            .unwrap_or(0)
    }

    /// Host memory for earlier answers, where it is not the router's default.
    pub fn answer_index_mib(&self) -> Option<u32> {
        let config = self.speculative_config.as_ref();
        let asked = config.filter(|config| config.method == Method::Suffix);
        self.answer_index_mib.or(asked.map(|_| ANSWER_INDEX_MIB))
    }
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Several nodes (docs/nodes.md)")]
pub struct NodeArgs {
    /// Number of nodes that serve the model together. Start each with the same flags, except --node-rank and addresses
    #[arg(long, env, value_name = "NODES", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub nnodes: usize,
    /// Number of this node, from 0. Node 0 receives the requests
    #[arg(long, env, value_name = "RANK", default_value_t = 0)]
    pub node_rank: usize,
    /// Host name or IP address of node 0. No effect with one node
    #[arg(long, env, value_name = "HOST")]
    pub master_addr: Option<String>,
    /// Port on node 0 for the other nodes. The shards use the next ports: one, and one more per shard of all nodes
    #[arg(long, env, value_name = "PORT", default_value_t = 29500)]
    pub master_port: u16,
    /// IP address of this node for the other nodes. Default: that of the interface that reaches node 0
    #[arg(long, env, value_name = "ADDRESS", value_parser = ip_address)]
    pub local_addr: Option<IpAddr>,
    /// PEM file with the certificate of this node, which must be valid for the name `text-generation`
    #[arg(long, env, value_name = "FILE")]
    pub cluster_cert: Option<PathBuf>,
    /// PEM file with the private key of `--cluster-cert`
    #[arg(long, env, value_name = "FILE")]
    pub cluster_key: Option<PathBuf>,
    /// PEM file with the certificate authority (CA) of all nodes, which must sign nothing else
    #[arg(long, env, value_name = "FILE")]
    pub cluster_ca: Option<PathBuf>,
    /// Connect nodes without certificates: anyone who reaches their ports can use the shards
    #[arg(long, env)]
    pub cluster_insecure: bool,
}
