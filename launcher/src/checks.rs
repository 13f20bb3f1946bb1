//! Checks of the arguments that only the launcher knows, or that are for shards: combinations that cannot work, and
//! flags whose feature does not exist yet. What the router is told it judges itself, see `router_check.rs`.

mod address_space;

use std::ops::RangeInclusive;

pub use self::address_space::{check_address_space, perhaps_by_its_limit};
use crate::args::{
    Args, LimitArgs, Method, NodeArgs, ServerArgs, ShardArgs, TokenLimit, UnavailableArgs,
};
use crate::error::LauncherError;

/// Returns the first reason why these arguments cannot be served.
pub fn check(args: &Args) -> Result<(), LauncherError> {
    check_model(args)?;
    check_flags(args)?;
    check_address_space()
}

/// The same for flags without a model.
pub fn check_flags(args: &Args) -> Result<(), LauncherError> {
    check_available(args)?;
    check_positive(args)?;
    check_numbers(args)?;
    check_ports(&args.server)?;
    check_nodes(&args.nodes)?;
    check_speculation(&args.shards)?;
    check_limits(&args.limits)
}

/// An error as the log says it: with the names and variables by which its flags were given, and with a limit that may
/// be the reason.
pub fn told(args: &Args, error: &LauncherError) -> String {
    let text = args.as_given(&error.to_string());
    match error {
        LauncherError::Download { .. }
        | LauncherError::CannotStart { .. }
        | LauncherError::Died { .. }
        | LauncherError::LostTooOften { .. } => perhaps_by_its_limit(text),
        _ => text,
    }
}

/// Flags that were given and change nothing, each with the reason.
pub fn without_effect(args: &Args) -> Vec<String> {
    let notes = [
        (
            args.nodes.master_addr.is_some() && args.nodes.nnodes == 1,
            "--master-addr has no effect with one node, whose shards find each other through a file beside their sockets",
        ),
        (
            args.shards
                .speculative_config
                .as_ref()
                .is_some_and(|config| config.has_lookup),
            "prompt_lookup_min and prompt_lookup_max of --speculative-config have no effect: drafts follow the longest match of 2 to 8 tokens",
        ),
        (
            args.compatibility.usage_stats.is_some(),
            "--usage-stats has no effect: nothing is ever sent",
        ),
    ];
    let mut notes: Vec<String> = notes
        .into_iter()
        .filter(|(given, _)| *given)
        .map(|(_, note)| note.to_owned())
        .collect();
    notes.extend(args.notes.without_effect.iter().cloned());
    notes
}

/// A batch that can never be as large as was asked for.
pub fn unreachable_batch(args: &Args) -> Option<String> {
    let served = args.limits.max_concurrent_requests;
    let running = args.batching.max_batch_size?;
    (running > served).then(|| {
        format!(
            "--max-batch-size {running} is above --max-concurrent-requests {served}, which limits it: further requests \
             get status 429"
        )
    })
}

/// The limit on prompt tokens, by whichever of its two names it was given.
pub fn max_input_tokens(limits: &LimitArgs) -> Option<u32> {
    TokenLimit::tokens(limits.max_input_tokens.or(limits.max_input_length))
}

fn refuse(message: impl Into<String>) -> Result<(), LauncherError> {
    Err(LauncherError::Argument(message.into()))
}

fn check_model(args: &Args) -> Result<(), LauncherError> {
    match args.model.model_id.as_deref() {
        None | Some("") => refuse(
            "no model is given: name one with --model-id, after `serve`, or in MODEL_ID, for example \
             text-generation-launcher serve HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
        Some(id) if id.starts_with('-') => refuse(format!(
            "--model-id `{id}` looks like a flag; give the name of a model on the hub, or a local folder"
        )),
        Some(_) => Ok(()),
    }
}

fn check_available(args: &Args) -> Result<(), LauncherError> {
    let UnavailableArgs {
        ngrok,
        ngrok_authtoken,
        ngrok_edge,
    } = &args.unavailable;
    let given = |value: &Option<String>| value.as_ref().is_some_and(|text| !text.is_empty());
    let no_tunnel = "leave it out, and put a tunnel or proxy of your own in front of --port";
    let features = [
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
                "{flag} (or {variable}) is not supported yet: {remedy}"
            ))
        }
        None => Ok(()),
    }
}

fn check_positive(args: &Args) -> Result<(), LauncherError> {
    let zeros = [
        ("--num-shard", args.shards.num_shard == Some(0)),
        ("--port", args.server.port == 0),
        ("--prometheus-port", args.server.prometheus_port == Some(0)),
    ];
    match zeros.into_iter().find(|(_, zero)| *zero) {
        Some((flag, _)) => refuse(format!("{flag} must not be 0")),
        None => Ok(()),
    }
}

/// The ranges are those of the shards (`config/server.py`), which get these by environment.
fn check_numbers(args: &Args) -> Result<(), LauncherError> {
    let (model, shards) = (&args.model, &args.shards);
    check_number(
        "--cuda-memory-fraction",
        Some(shards.cuda_memory_fraction),
        0.01..=1.0,
        "; write 90 % as 0.9 or 90%",
    )?;
    check_number("--rope-factor", model.rope_factor, 1.0..=10_000.0, "")?;
    check_number("--watermark-gamma", model.watermark_gamma, 0.0..=1.0, "")?;
    check_number(
        "--watermark-delta",
        model.watermark_delta,
        -10_000.0..=10_000.0,
        "",
    )
}

fn check_number(
    flag: &str,
    given: Option<f32>,
    range: RangeInclusive<f32>,
    hint: &str,
) -> Result<(), LauncherError> {
    match given.filter(|value| !range.contains(value)) {
        Some(value) => {
            let (low, high) = range.into_inner();
            refuse(format!(
                "{flag} must be between {low} and {high}, not {value}{hint}"
            ))
        }
        None => Ok(()),
    }
}

fn check_ports(server: &ServerArgs) -> Result<(), LauncherError> {
    if server.prometheus_port == Some(server.port) {
        return refuse(
            "--prometheus-port must differ from --port, which serves /metrics too; choose another port, or leave it out",
        );
    }
    Ok(())
}

fn check_nodes(nodes: &NodeArgs) -> Result<(), LauncherError> {
    if nodes.node_rank >= nodes.nnodes {
        return refuse(format!(
            "--node-rank ({}) must be below --nnodes ({}); the first node has rank 0",
            nodes.node_rank, nodes.nnodes
        ));
    }
    let files = [&nodes.cluster_cert, &nodes.cluster_key, &nodes.cluster_ca];
    if nodes.nnodes == 1 {
        // An address may stay: Kubernetes sets it for every group.
        return match files.iter().any(|file| file.is_some()) || nodes.cluster_insecure {
            true => refuse(
                "--cluster-cert, --cluster-key, --cluster-ca and --cluster-insecure are for several nodes; add --nnodes, \
                 or leave them out",
            ),
            false => Ok(()),
        };
    }
    if nodes.master_addr.as_deref().is_none_or(str::is_empty) {
        return refuse("--nnodes above 1 needs --master-addr, the name or IP address of node 0");
    }
    match files.iter().filter(|file| file.is_some()).count() {
        0 if nodes.cluster_insecure => Ok(()),
        3 if !nodes.cluster_insecure => Ok(()),
        0 => refuse(
            "--nnodes above 1 needs --cluster-cert, --cluster-key and --cluster-ca, by which nodes authenticate each \
             other (docs/nodes.md says how to make them), or --cluster-insecure on a network that only the nodes can reach",
        ),
        3 => refuse("--cluster-insecure contradicts --cluster-cert; leave one of them out"),
        _ => refuse(
            "--cluster-cert, --cluster-key and --cluster-ca must be given together or not at all",
        ),
    }
}

/// How many drafts there are is said once, or twice the same; so is whether earlier answers are kept.
fn check_speculation(shards: &ShardArgs) -> Result<(), LauncherError> {
    let config = shards.speculative_config.as_ref();
    match (config.map(|config| config.drafts), shards.speculate) {
        (Some(None), None) => {
            return refuse(
                "--speculative-config does not say how many tokens are drafted: add `num_speculative_tokens`, such as 3",
            );
        }
        (Some(None), Some(0)) => {
            return refuse(
                "--speculate 0 contradicts --speculative-config, which asks for drafts; leave one of them out",
            );
        }
        (Some(Some(drafts)), Some(given)) if given != drafts => {
            return refuse(format!(
                "--speculate {given} contradicts --speculative-config, whose `num_speculative_tokens` is {drafts}; \
                 leave one of them out"
            ));
        }
        _ => {}
    }
    match shards.answer_index_mib {
        Some(0) if config.is_some_and(|config| config.method == Method::Suffix) => refuse(
            "--answer-index-mib 0 contradicts the method \"suffix\" of --speculative-config, which drafts from earlier \
             answers; leave --answer-index-mib out, or set `method` to \"ngram\"",
        ),
        Some(given) if given > 0 && shards.drafts() == 0 => refuse(format!(
            "--answer-index-mib {given} keeps earlier answers to draft from, and nothing is drafted; add --speculate N, \
             such as --speculate 3, or leave it out"
        )),
        _ => Ok(()),
    }
}

fn check_limits(limits: &LimitArgs) -> Result<(), LauncherError> {
    if limits.max_input_tokens.is_some() && limits.max_input_length.is_some() {
        return refuse(
            "--max-input-length is the older name of --max-input-tokens; give only --max-input-tokens",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
