//! The command lines of the Python processes: the download step, the server's doctor and the shards.

use std::path::PathBuf;

use super::flags::{Flags, name_of};
use super::{NodeGroup, ProcessSpec, ShardGroup, Surroundings, cluster_flags};
use crate::args::{Args, Dtype, Method, ModelArgs, NodeArgs, RopeScaling, TokenLimit};
use crate::checks::max_input_tokens;

const SERVER: &str = "text-generation-server";

/// How weights are quantised while they are read; as environment variables are, an empty value is none.
fn quantize(model: &ModelArgs) -> Option<&String> {
    model.quantize.as_ref().filter(|name| !name.is_empty())
}

/// The adapter that is merged into the weights, likewise.
fn merge_adapter(model: &ModelArgs) -> Option<&String> {
    model.merge_adapter.as_ref().filter(|name| !name.is_empty())
}

/// The adapters that requests may name, likewise.
pub(super) fn lora_adapters(model: &ModelArgs) -> Option<&String> {
    model
        .lora_adapters
        .as_ref()
        .filter(|names| !names.is_empty())
}

/// A level at which children tell the launcher what it needs to know, the folder of the model and the progress of a
/// start: records of level INFO. What is not asked for it does not print.
fn talking_level(surroundings: &Surroundings) -> &str {
    match surroundings.log_level.as_str() {
        "ERROR" | "WARN" => "INFO",
        level => level,
    }
}

/// The step that finds or downloads the model for so many shards, of all nodes, and reports its folder.
pub fn download(args: &Args, surroundings: &Surroundings, shards: usize) -> ProcessSpec {
    let model = &args.model;
    let mut flags = Flags(vec!["download-weights".to_owned()]);
    flags.0.extend(model.model_id.clone());
    asked_flags(args, shards, &mut flags);
    flags.switch("--trust-remote-code", model.trust_remote_code);
    flags.switch("--exit-on-stdin-eof", true);
    flags.value("--logger-level", talking_level(surroundings));
    flags.switch("--json-output", true);
    let mut env = server_env(args, surroundings);
    env.extend(model_env(args));
    server_process("download", None, flags, env)
}

/// Asks the server's doctor about the model as `shards` shards would serve it.
pub fn doctor(args: &Args, surroundings: &Surroundings, shards: usize) -> ProcessSpec {
    let model = &args.model;
    let mut flags = Flags(vec!["doctor".to_owned()]);
    flags.0.extend(model.model_id.clone());
    asked_flags(args, shards, &mut flags);
    let mut env = server_env(args, surroundings);
    env.extend(model_env(args));
    server_process("doctor", None, flags, env)
}

/// What is asked of the model and its shards: what cannot be served is found out before weights are downloaded.
fn asked_flags(args: &Args, shards: usize, flags: &mut Flags) {
    flags.optional("--revision", args.model.revision.as_ref());
    model_flags(args, flags);
    flags.optional("--lora-adapters", lora_adapters(&args.model));
    flags.switch("--auto-convert", args.model.auto_convert);
    flags.optional("--max-input-tokens", max_input_tokens(&args.limits));
    let total = TokenLimit::tokens(args.limits.max_total_tokens);
    flags.optional("--max-total-tokens", total);
    flags.value("--num-shard", shards);
}

/// How the model is computed, as flags of every shard.
fn model_flags(args: &Args, flags: &mut Flags) {
    let dtype = Some(args.model.dtype).filter(|dtype| *dtype != Dtype::Auto);
    flags.optional("--dtype", dtype.map(name_of));
    flags.value("--load-format", name_of(args.model.load_format));
    flags.optional("--model-impl", args.model.model_impl.map(name_of));
    flags.optional("--quantize", quantize(&args.model));
    flags.value("--kv-cache-dtype", name_of(args.model.kv_cache_dtype));
    flags.value(
        "--dequantised-copies",
        name_of(args.model.dequantised_copies),
    );
    flags.optional("--merge-adapter", merge_adapter(&args.model));
    flags.optional("--attention", args.shards.attention.map(name_of));
    flags.optional("--cuda-graphs", args.shards.cuda_graphs.clone());
    flags.switch("--deterministic", args.shards.deterministic);
    let drafts = Some(args.shards.drafts()).filter(|&drafts| drafts > 0);
    flags.optional("--speculate", drafts);
    drafter_flags(args, flags);
    flags.switch(
        "--enable-expert-parallel",
        args.shards.enable_expert_parallel,
    );
    flags.switch(
        "--enable-context-parallel",
        args.shards.enable_context_parallel,
    );
}

/// Which model drafts, if any does: the one that is named, or the served one itself.
fn drafter_flags(args: &Args, flags: &mut Flags) {
    let Some(config) = &args.shards.speculative_config else {
        return;
    };
    let (model, revision) = match (config.method, &config.model) {
        (Method::Mtp, None) => (args.model.model_id.as_ref(), args.model.revision.as_ref()),
        (_, model) => (model.as_ref(), config.revision.as_ref()),
    };
    flags.optional("--drafter", model);
    flags.optional("--drafter-revision", revision);
    flags.optional("--drafter-method", config.method.of_drafter());
}

/// The same by name, with what shards are told by environment and the adapters that each node must have: what must be
/// equal on all nodes.
pub fn model_settings(args: &Args) -> Vec<(String, String)> {
    let mut flags = Flags(Vec::new());
    model_flags(args, &mut flags);
    flags.optional("--lora-adapters", lora_adapters(&args.model));
    let env = model_env(args).into_iter();
    let mut settings: Vec<_> = env.map(|(name, value)| (name.to_owned(), value)).collect();
    let mut words = flags.0.into_iter().peekable();
    while let Some(flag) = words.next() {
        let value = words.next_if(|word| !word.starts_with("--"));
        settings.push((flag, value.unwrap_or_else(|| "true".to_owned())));
    }
    settings
}

/// Shard `local_rank` of this node's part of `group`, serving the model in `folder`.
pub fn shard(
    args: &Args,
    surroundings: &Surroundings,
    folder: &str,
    group: &ShardGroup,
    local_rank: usize,
) -> ProcessSpec {
    let rank = group.first_rank() + local_rank;
    let mut flags = Flags(vec!["serve".to_owned(), folder.to_owned()]);
    flags.value("--uds-path", &group.uds_prefix);
    flags.switch("--socket-dir-owned", group.directory_owned);
    flags.switch("--exit-on-stdin-eof", true);
    flags.switch("--sharded", group.world_size() > 1);
    model_flags(args, &mut flags);
    flags.switch("--trust-remote-code", args.model.trust_remote_code);
    if let Some(node) = &group.node {
        node_flags(&args.nodes, node, local_rank, &mut flags);
    }
    for (flag, value) in args.server.otlp() {
        flags.optional(flag, value);
    }
    flags.value("--logger-level", talking_level(surroundings));
    flags.switch("--json-output", true);

    let mut env = server_env(args, surroundings);
    env.extend([
        // The model is in a folder, also when the shard is started again.
        ("HF_HUB_OFFLINE", "1".to_owned()),
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", group.world_size().to_string()),
        ("LOCAL_RANK", local_rank.to_string()),
        ("LOCAL_WORLD_SIZE", group.size.to_string()),
    ]);
    env.extend(model_env(args));
    env.extend(group.node.iter().flat_map(node_env));
    server_process(&format!("shard {rank}"), Some(rank), flags, env)
}

/// How a shard listens for a router on another node, or knows of shards there.
fn node_flags(args: &NodeArgs, node: &NodeGroup, local_rank: usize, flags: &mut Flags) {
    if let Some(address) = node.listen.get(local_rank) {
        flags.value("--listen", address);
        cluster_flags(args, flags);
        flags.switch("--cluster-insecure", args.cluster_insecure);
    }
    for url in node.remote_urls.iter().filter(|_| local_rank == 0) {
        flags.value("--remote-url", url);
    }
}

/// Where ranks of several nodes meet and talk. What the operator has set for gloo or NCCL counts.
fn node_env(node: &NodeGroup) -> Vec<(&'static str, String)> {
    let mut env = vec![
        ("MASTER_ADDR", node.meeting.ip().to_string()),
        ("MASTER_PORT", node.meeting.port().to_string()),
    ];
    let names = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"];
    let unset = names
        .into_iter()
        .filter(|name| std::env::var_os(name).is_none());
    env.extend(unset.filter_map(|name| Some((name, node.interface.clone()?))));
    env
}

fn server_process(
    name: &str,
    rank: Option<usize>,
    flags: Flags,
    env: Vec<(&'static str, String)>,
) -> ProcessSpec {
    // The level goes by flag; the API key is the router's alone. The rest is what schedulers of clusters set for their
    // own ranks.
    let env_remove = vec![
        "LOG_LEVEL",
        "API_KEY",
        "ADMIN_API_KEY",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    ];
    ProcessSpec {
        name: name.to_owned(),
        rank,
        program: SERVER,
        args: flags.0,
        env,
        env_remove,
        inherited: None,
    }
}

/// Environment of every Python process.
fn server_env(args: &Args, surroundings: &Surroundings) -> Vec<(&'static str, String)> {
    let path = |path: &PathBuf| path.display().to_string();
    // A progress bar is one endless line, which a log cannot show.
    let mut env = vec![("HF_HUB_DISABLE_PROGRESS_BARS", "1".to_owned())];
    let fraction = args.shards.cuda_memory_fraction;
    env.push(("CUDA_MEMORY_FRACTION", fraction.to_string()));
    env.extend(
        surroundings
            .hf_token
            .clone()
            .map(|token| ("HF_TOKEN", token)),
    );
    env.extend(
        args.model
            .huggingface_hub_cache
            .as_ref()
            .map(|cache| ("HUGGINGFACE_HUB_CACHE", path(cache))),
    );
    env.extend(
        args.model
            .weights_cache_override
            .as_ref()
            .map(|cache| ("WEIGHTS_CACHE_OVERRIDE", path(cache))),
    );
    env
}

/// Environment by which Python processes learn how the model computes.
fn model_env(args: &Args) -> Vec<(&'static str, String)> {
    let model = &args.model;
    let mut env = Vec::new();
    let rope = match (model.rope_scaling, model.rope_factor) {
        (None, None) => None,
        (scaling, factor) => Some((
            scaling.unwrap_or(RopeScaling::Linear),
            factor.unwrap_or(1.0),
        )),
    };
    if let Some((scaling, factor)) = rope {
        env.extend([
            ("ROPE_SCALING", name_of(scaling)),
            ("ROPE_FACTOR", factor.to_string()),
        ]);
    }
    env.extend(
        model
            .watermark_gamma
            .map(|gamma| ("WATERMARK_GAMMA", gamma.to_string())),
    );
    env.extend(
        model
            .watermark_delta
            .map(|delta| ("WATERMARK_DELTA", delta.to_string())),
    );
    if args.shards.disable_custom_kernels {
        env.push(("DISABLE_CUSTOM_KERNELS", "True".to_owned()));
    }
    env
}
