//! The command line of the router.

use std::time::Duration;

use super::flags::Flags;
use super::server::lora_adapters;
use super::{ProcessSpec, ShardGroup, cluster_flags, socket_path};
use crate::args::{Args, BatchingArgs, LimitArgs, ModelArgs, ServerArgs, TokenLimit};
use crate::checks::max_input_tokens;

const ROUTER: &str = "text-generation-router";

/// The router ends its own grace time first, so that it and not a SIGKILL cuts the last streams.
const ROUTER_MARGIN: Duration = Duration::from_secs(2);

/// How long the router may take to stop before it is killed.
pub fn router_grace(server: &ServerArgs) -> Duration {
    let seconds = server
        .drain_delay
        .saturating_add(server.graceful_termination_timeout);
    Duration::from_secs(seconds).saturating_add(ROUTER_MARGIN)
}

/// The router in front of the shards. It shows `instance` to whoever asks for its health.
pub fn router(
    args: &Args,
    folder: &str,
    group: &ShardGroup,
    compute_type: Option<String>,
    instance: &str,
) -> ProcessSpec {
    let mut flags = Flags(Vec::new());
    flags.value("--master-shard-uds-path", socket_path(&group.uds_prefix, 0));
    serving_flags(args, Some(folder), &mut flags);
    flags.switch("--exit-on-stdin-eof", true);
    let mut spec = router_process("router", args, flags);
    spec.env.push(("ROUTER_INSTANCE", instance.to_owned()));
    spec.env
        .extend(compute_type.map(|kind| ("COMPUTE_TYPE", kind)));
    spec
}

/// Asks the router whether it could start with these flags, and with the model in `folder` where that is there already.
pub fn router_check(args: &Args, folder: Option<&str>) -> ProcessSpec {
    let mut flags = Flags(vec!["check".to_owned()]);
    serving_flags(args, folder, &mut flags);
    let mut spec = router_process("check of the router", args, flags);
    // The folder is that of this start, or none.
    spec.env_remove.push("TOKENIZER_NAME");
    spec
}

/// Everything that the router is told of how to serve.
fn serving_flags(args: &Args, folder: Option<&str>, flags: &mut Flags) {
    if args.nodes.nnodes > 1 {
        cluster_flags(&args.nodes, flags);
    }
    flags.optional("--tokenizer-name", folder);
    model_flags(&args.model, flags);
    flags.optional("--answer-index-mib", args.shards.answer_index_mib());
    limit_flags(&args.limits, flags);
    batching_flags(&args.batching, flags);
    server_flags(&args.server, flags);
    access_flags(&args.server, flags);
    flags.switch("--json-output", true);
}

fn model_flags(model: &ModelArgs, flags: &mut Flags) {
    flags.optional("--model-id", model.model_id.as_ref());
    for name in &model.served_model_name {
        flags.value("--served-model-name", name);
    }
    flags.optional("--revision", model.revision.as_ref());
    let tokenizer_config = model.tokenizer_config_path.as_ref();
    flags.optional(
        "--tokenizer-config-path",
        tokenizer_config.map(|path| path.display()),
    );
    flags.switch("--escape-special-tokens", model.escape_special_tokens);
    flags.optional("--tool-call-parser", model.tool_call_parser.as_ref());
    flags.optional("--reasoning-parser", model.reasoning_parser.as_ref());
    flags.optional("--generation-config", model.generation_config.as_ref());
    flags.switch("--disable-grammar-support", model.disable_grammar_support);
    flags.optional("--lora-adapters", lora_adapters(model));
    flags.optional("--adapter-pages", model.adapter_pages);
    let folder = model.lora_dir.as_ref();
    let folder = folder.filter(|path| !path.as_os_str().is_empty());
    flags.optional("--lora-dir", folder.map(|path| path.display()));
    flags.optional("--adapter-host-mib", model.adapter_host_mib);
    flags.switch("--allow-adapter-loading", model.allow_adapter_loading);
}

fn limit_flags(limits: &LimitArgs, flags: &mut Flags) {
    flags.value("--max-concurrent-requests", limits.max_concurrent_requests);
    flags.value("--max-best-of", limits.max_best_of);
    flags.value("--max-beam-width", limits.max_beam_width);
    flags.value("--max-stop-sequences", limits.max_stop_sequences);
    flags.value("--max-top-n-tokens", limits.max_top_n_tokens);
    flags.value("--max-logprobs", limits.max_logprobs);
    flags.optional("--max-input-tokens", max_input_tokens(limits));
    flags.optional(
        "--max-total-tokens",
        TokenLimit::tokens(limits.max_total_tokens),
    );
    flags.value("--max-client-batch-size", limits.max_client_batch_size);
    flags.optional("--payload-limit", limits.payload_limit);
    flags.optional("--max-image-bytes", limits.max_image_bytes);
    flags.optional("--max-image-pixels", limits.max_image_pixels);
    flags.optional("--max-images-per-request", limits.max_images_per_request);
    for domain in &limits.allowed_image_domains {
        flags.value("--allowed-image-domains", domain);
    }
    flags.optional("--media-rows", limits.media_rows);
    flags.switch("--enable-prefill-logprobs", limits.enable_prefill_logprobs);
}

fn batching_flags(batching: &BatchingArgs, flags: &mut Flags) {
    flags.value("--waiting-served-ratio", &batching.waiting_served_ratio);
    flags.optional(
        "--max-batch-prefill-tokens",
        TokenLimit::tokens(batching.max_batch_prefill_tokens),
    );
    flags.optional(
        "--max-batch-total-tokens",
        TokenLimit::tokens(batching.max_batch_total_tokens),
    );
    flags.value("--prefill-chunking", batching.prefill_chunking);
    flags.optional("--max-token-gap", batching.max_token_gap);
    flags.value("--prefix-caching", &batching.prefix_caching);
    flags.value("--max-waiting-tokens", batching.max_waiting_tokens);
    flags.optional("--max-batch-size", batching.max_batch_size);
    flags.optional("--max-queue-time", batching.max_queue_time);
    flags.value("--step-timeout", batching.step_timeout);
}

/// Where and how connections are served, and what is told of it.
fn server_flags(server: &ServerArgs, flags: &mut Flags) {
    flags.value("--hostname", server.hostname);
    flags.value("--port", server.port);
    flags.value("--validation-workers", server.validation_workers);
    flags.value("--max-connections", server.max_connections);
    flags.value("--client-timeout", server.client_timeout);
    flags.value("--sse-keep-alive", server.sse_keep_alive);
    flags.optional("--response-memory", server.response_memory);
    flags.optional("--prometheus-port", server.prometheus_port);
    flags.optional("--prometheus-hostname", server.prometheus_hostname);
    flags.switch("--open-metrics", server.open_metrics);
    flags.optional("--metrics-aliases", server.metrics_aliases.as_ref());
    let kv_events = server.kv_events_config.as_ref();
    flags.optional(
        "--kv-events-config",
        kv_events.filter(|text| !text.is_empty()),
    );
    for (flag, value) in server.otlp() {
        flags.optional(flag, value);
    }
    flags.value("--drain-delay", server.drain_delay);
    flags.value(
        "--graceful-termination-timeout",
        server.graceful_termination_timeout,
    );
}

/// Who may call, and as whom.
fn access_flags(server: &ServerArgs, flags: &mut Flags) {
    for origin in &server.cors_allow_origin {
        flags.value("--cors-allow-origin", origin);
    }
    let keys = server.api_key_file.as_ref();
    flags.optional("--api-key-file", keys.map(|file| file.display()));
    flags.optional("--tenant-header", server.tenant_header.as_ref());
    flags.optional("--priority-header", server.priority_header.as_ref());
}

/// Limits that the launcher passes by flag or, where they are `auto`, leaves to the router: their variables may hold
/// what a flag of the launcher has replaced.
const LIMITS: [&str; 4] = [
    "MAX_INPUT_TOKENS",
    "MAX_TOTAL_TOKENS",
    "MAX_BATCH_PREFILL_TOKENS",
    "MAX_BATCH_TOTAL_TOKENS",
];

/// Keys go by environment, which no list of processes shows.
fn router_process(name: &str, args: &Args, flags: Flags) -> ProcessSpec {
    let server = &args.server;
    let keys = [
        ("API_KEY", &server.api_key),
        ("ADMIN_API_KEY", &server.admin_api_key),
    ];
    let keys = keys.into_iter();
    let keys = keys.filter_map(|(name, key)| Some((name, key.clone()?.0)));
    ProcessSpec {
        name: name.to_owned(),
        rank: None,
        program: ROUTER,
        args: flags.0,
        env: keys.collect(),
        env_remove: LIMITS.to_vec(),
        inherited: None,
    }
}
