//! Judges the arguments: combinations that cannot work, and flags whose feature does not exist yet.

use text_generation_limits::TokenLimits;

use crate::args::{Args, LimitArgs, NodeArgs, ServerArgs, UnavailableArgs};
use crate::error::LauncherError;

/// Alternatives to each token that a shard gives at most.
const MOST_TOP_N_TOKENS: u32 = 20;

/// Returns the first reason why these arguments cannot be served.
pub fn check(args: &Args) -> Result<(), LauncherError> {
    check_model(args)?;
    check_flags(args)
}

/// The same for flags without a model.
pub fn check_flags(args: &Args) -> Result<(), LauncherError> {
    check_text_options(args)?;
    check_available(args)?;
    check_collector(&args.server)?;
    check_events(&args.server)?;
    check_positive(args)?;
    check_numbers(args)?;
    check_server(&args.server)?;
    check_nodes(&args.nodes)?;
    check_limits(args)
}

/// Flags that were given and change nothing, each with the reason.
pub fn without_effect(args: &Args) -> Vec<&'static str> {
    let notes = [
        (
            args.nodes.master_addr.is_some() && args.nodes.nnodes == 1,
            "--master-addr has no effect with one node: its shards find each other by a file beside their sockets",
        ),
        (
            args.compatibility.usage_stats.is_some(),
            "--usage-stats has no effect: nothing is ever sent",
        ),
    ];
    notes
        .into_iter()
        .filter_map(|(given, note)| given.then_some(note))
        .collect()
}

/// The limit on prompt tokens, by whichever of its two names it was given.
pub fn max_input_tokens(limits: &LimitArgs) -> Option<u32> {
    limits.max_input_tokens.or(limits.max_input_length)
}

fn refuse(message: impl Into<String>) -> Result<(), LauncherError> {
    Err(LauncherError::Argument(message.into()))
}

fn check_model(args: &Args) -> Result<(), LauncherError> {
    match args.model.model_id.as_deref() {
        None | Some("") => refuse(
            "--model-id is required, for example: \
             text-generation-launcher --model-id HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
        Some(id) if id.starts_with('-') => refuse(format!(
            "--model-id `{id}` looks like a flag; it must name a model"
        )),
        Some(_) => Ok(()),
    }
}

/// The router would find out, but only after the model was loaded.
fn check_text_options(args: &Args) -> Result<(), LauncherError> {
    match args.model.generation_config.as_deref() {
        None | Some("auto" | "none" | "vllm") => {}
        Some(other) => {
            return refuse(format!(
                "--generation-config (or GENERATION_CONFIG) must be auto or none. Given: {other}"
            ));
        }
    }
    match args.model.tokenizer_config_path.as_deref() {
        Some(path) if !path.is_file() => refuse(format!(
            "--tokenizer-config-path (or TOKENIZER_CONFIG_PATH) {} is not a file; \
             give a tokenizer_config.json, or leave it out to use the model's",
            path.display()
        )),
        _ => Ok(()),
    }
}

/// The router would find out, but only after the model was loaded.
fn check_collector(server: &ServerArgs) -> Result<(), LauncherError> {
    let [(flag, endpoint), _] = server.otlp();
    match endpoint.map(text_generation_traces::check) {
        Some(Err(error)) => refuse(format!("{flag} (or OTLP_ENDPOINT) {error}")),
        _ => Ok(()),
    }
}

/// Likewise; the router knows the fields.
fn check_events(server: &ServerArgs) -> Result<(), LauncherError> {
    // As of every variable, an empty value is none.
    let given = server
        .kv_events_config
        .as_deref()
        .filter(|text| !text.is_empty());
    let object = |text| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
    match given.map(object) {
        Some(Err(error)) => refuse(format!(
            "--kv-events-config (or KV_EVENTS_CONFIG) must be a JSON object such as \
             {{\"enable_kv_cache_events\": true}}: {error}"
        )),
        _ => Ok(()),
    }
}

fn check_available(args: &Args) -> Result<(), LauncherError> {
    let UnavailableArgs {
        speculate,
        lora_adapters,
        ngrok,
        ngrok_authtoken,
        ngrok_edge,
    } = &args.unavailable;
    let given = |value: &Option<String>| value.as_ref().is_some_and(|text| !text.is_empty());
    let no_tunnel = "leave it out and put a tunnel or proxy of your own in front of --port";
    let features = [
        (
            "--speculate",
            speculate.is_some_and(|tokens| tokens > 0),
            "leave it out or set it to 0",
        ),
        (
            "--lora-adapters",
            given(lora_adapters),
            "leave it out, or merge the adapter into the model beforehand",
        ),
        ("--ngrok", *ngrok, no_tunnel),
        ("--ngrok-authtoken", ngrok_authtoken.is_some(), no_tunnel),
        ("--ngrok-edge", given(ngrok_edge), no_tunnel),
    ];
    match features.into_iter().find(|(_, set, _)| *set) {
        Some((flag, _, remedy)) => {
            let variable = flag
                .trim_start_matches('-')
                .replace('-', "_")
                .to_uppercase();
            refuse(format!(
                "{flag} (or {variable}) asks for something that is not available yet: {remedy}"
            ))
        }
        None => Ok(()),
    }
}

fn check_positive(args: &Args) -> Result<(), LauncherError> {
    let (limits, batching, server) = (&args.limits, &args.batching, &args.server);
    let zeros = [
        ("--num-shard", args.shards.num_shard == Some(0)),
        ("--port", server.port == 0),
        ("--prometheus-port", server.prometheus_port == Some(0)),
        ("--validation-workers", server.validation_workers == 0),
        ("--max-connections", server.max_connections == 0),
        ("--client-timeout", server.client_timeout == 0),
        (
            "--max-concurrent-requests",
            limits.max_concurrent_requests == 0,
        ),
        ("--max-best-of", limits.max_best_of == 0),
        ("--max-client-batch-size", limits.max_client_batch_size == 0),
        ("--payload-limit", limits.payload_limit == 0),
        ("--max-input-tokens", max_input_tokens(limits) == Some(0)),
        ("--max-total-tokens", limits.max_total_tokens == Some(0)),
        (
            "--max-batch-prefill-tokens",
            batching.max_batch_prefill_tokens == Some(0),
        ),
        (
            "--max-batch-total-tokens",
            batching.max_batch_total_tokens == Some(0),
        ),
        ("--max-batch-size", batching.max_batch_size == Some(0)),
    ];
    if let Some((flag, _)) = zeros.into_iter().find(|(_, zero)| *zero) {
        return refuse(format!("{flag} must not be 0"));
    }
    match limits.max_total_tokens {
        Some(1) => refuse("--max-total-tokens must be at least 2: a prompt and an answer"),
        _ => Ok(()),
    }
}

fn check_numbers(args: &Args) -> Result<(), LauncherError> {
    let (model, shards, batching) = (&args.model, &args.shards, &args.batching);
    check_number(
        "--cuda-memory-fraction",
        Some(shards.cuda_memory_fraction),
        "above 0 and at most 1",
        |fraction| fraction > 0.0 && fraction <= 1.0,
    )?;
    check_number(
        "--waiting-served-ratio",
        Some(batching.waiting_served_ratio),
        "0 or more",
        |ratio| ratio.is_finite() && ratio >= 0.0,
    )?;
    check_number(
        "--max-queue-time",
        batching.max_queue_time,
        "above 0",
        |seconds| seconds.is_finite() && seconds > 0.0,
    )?;
    check_number("--rope-factor", model.rope_factor, "1 or more", |factor| {
        factor.is_finite() && factor >= 1.0
    })?;
    check_number(
        "--watermark-gamma",
        model.watermark_gamma,
        "between 0 and 1",
        |gamma| gamma > 0.0 && gamma < 1.0,
    )?;
    check_number(
        "--watermark-delta",
        model.watermark_delta,
        "a finite number",
        f32::is_finite,
    )
}

fn check_number(
    flag: &str,
    given: Option<f32>,
    range: &str,
    is_in_range: impl Fn(f32) -> bool,
) -> Result<(), LauncherError> {
    match given.filter(|value| !is_in_range(*value)) {
        Some(value) => refuse(format!("{flag} must be {range}, not {value}")),
        None => Ok(()),
    }
}

fn check_server(server: &ServerArgs) -> Result<(), LauncherError> {
    if server.prometheus_port == Some(server.port) {
        return refuse(
            "--prometheus-port (or PROMETHEUS_PORT) must be another port than --port, which has /metrics as well",
        );
    }
    check_keys(server)
}

/// What is wrong with the keys themselves is for the router to say.
fn check_keys(server: &ServerArgs) -> Result<(), LauncherError> {
    if server
        .api_key
        .as_ref()
        .is_some_and(|key| key.0.trim().is_empty())
    {
        return refuse(
            "--api-key (or API_KEY) must not be empty; leave it out to serve without a key",
        );
    }
    // Known before minutes of download and warm-up.
    match &server.api_key_file {
        Some(file) if !file.is_file() => refuse(format!(
            "--api-key-file (or API_KEY_FILE) is not a file: {}",
            file.display()
        )),
        _ => Ok(()),
    }
}

fn check_nodes(nodes: &NodeArgs) -> Result<(), LauncherError> {
    if nodes.node_rank >= nodes.nnodes {
        return refuse(format!(
            "--node-rank ({}) must be below --nnodes ({}); the first node has rank 0",
            nodes.node_rank, nodes.nnodes
        ));
    }
    if nodes.nnodes == 1 {
        return Ok(());
    }
    if nodes.master_addr.as_deref().is_none_or(str::is_empty) {
        return refuse("--nnodes above 1 needs --master-addr, the name or IP address of node 0");
    }
    let files = [&nodes.cluster_cert, &nodes.cluster_key, &nodes.cluster_ca];
    match files.iter().filter(|file| file.is_some()).count() {
        0 if nodes.cluster_insecure => Ok(()),
        3 if !nodes.cluster_insecure => Ok(()),
        0 => refuse(
            "--nnodes above 1 needs --cluster-cert, --cluster-key and --cluster-ca, by which nodes know each other \
             (docs/nodes.md says how to make them), or --cluster-insecure on a network of the nodes alone",
        ),
        3 => refuse("--cluster-insecure contradicts --cluster-cert; leave one of them out"),
        _ => refuse(
            "--cluster-cert, --cluster-key and --cluster-ca are given together or not at all",
        ),
    }
}

fn check_limits(args: &Args) -> Result<(), LauncherError> {
    let limits = &args.limits;
    if limits.max_input_tokens.is_some() && limits.max_input_length.is_some() {
        return refuse(
            "--max-input-length is the older name of --max-input-tokens; give only --max-input-tokens",
        );
    }
    let keys = args.server.api_key.is_some() || args.server.api_key_file.is_some();
    if args.batching.prefix_caching.eq_ignore_ascii_case("per-key") && !keys {
        return refuse(
            "--prefix-caching per-key needs keys to keep apart: set --api-key-file (or API_KEY), or leave it out",
        );
    }
    if limits.max_top_n_tokens > MOST_TOP_N_TOKENS {
        return refuse(format!(
            "--max-top-n-tokens ({}) must be at most {MOST_TOP_N_TOKENS}: shards give no more alternatives",
            limits.max_top_n_tokens
        ));
    }
    let tokens = TokenLimits {
        max_input_tokens: max_input_tokens(limits),
        max_total_tokens: limits.max_total_tokens,
        max_batch_prefill_tokens: args.batching.max_batch_prefill_tokens,
        max_batch_total_tokens: args.batching.max_batch_total_tokens,
        prefill_chunking: args.batching.prefill_chunking,
    };
    tokens
        .check()
        .map_err(|conflict| LauncherError::Argument(conflict.to_string()))
}

#[cfg(test)]
mod tests;
