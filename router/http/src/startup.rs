//! From flags to a server that can answer, step by step. Every failure is one line that says what to change.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use axum::http::HeaderValue;
use text_generation_client::types::{ServingLimits, ShardInfo, WarmupLimits};
use text_generation_client::{Deadlines, ShardedClient};
use text_generation_core::infer::Infer;
use text_generation_core::tokenize::{TextTokenizer, TokenizerPool};
use text_generation_core::types::{BatchLimits, ValidationLimits};
use text_generation_core::validation::Validator;
use tokio::net::{TcpListener, TcpSocket};

use crate::args::{Config, TokenLimits};
use crate::metrics;
use crate::middleware::HttpOptions;
use crate::schema::Info;
use crate::state::AppState;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Prompt tokens of a prefill when the operator leaves it open.
const DEFAULT_PREFILL_TOKENS: u32 = 4096;

/// Makes the text of a `tokenizer.json` for a folder that has none, or says why it cannot. Runs on a thread that may block.
pub trait SlowTokenizer: FnOnce(&Path) -> Result<String, String> + Send + 'static {}

impl<F: FnOnce(&Path) -> Result<String, String> + Send + 'static> SlowTokenizer for F {}

/// Starts everything but the connection loop. The listener refuses connections until this returns.
pub async fn start(
    config: &Config,
    slow_tokenizer: impl SlowTokenizer,
) -> anyhow::Result<(TcpListener, Arc<AppState>)> {
    // A port in use should not be found out after minutes of warm-up.
    let socket = bind(config)?;
    let tokenizer = load_tokenizer(&config.tokenizer_name, slow_tokenizer).await?;
    let (client, shard) = connect(config).await?;
    let limits = warmup(config, &client).await?;
    let metrics = metrics::install(limits.max_input_tokens, limits.max_total_tokens)?;
    let pool = TokenizerPool::new(tokenizer, config.validation_workers as usize)?;
    let validator = Validator::new(pool, validation_limits(config, &shard, &limits));
    let infer = Infer::new(
        validator,
        client,
        batch_limits(config, &limits),
        config.max_concurrent_requests as usize,
    );
    let state = AppState::new(
        infer,
        info(config, &shard, &limits),
        compute_type(config, &shard)?,
        metrics,
        HttpOptions {
            payload_limit: config.payload_limit as usize,
            api_key: config.api_key.clone(),
            cors_allow_origin: config.cors_allow_origin.clone(),
        },
    );
    let listener = socket
        .listen(BACKLOG)
        .with_context(|| cannot_listen(config))?;
    Ok((listener, Arc::new(state)))
}

fn cannot_listen(config: &Config) -> String {
    format!(
        "cannot listen on {}:{}; choose another address with `--hostname` and `--port`",
        config.hostname, config.port
    )
}

fn bind(config: &Config) -> anyhow::Result<TcpSocket> {
    let address = SocketAddr::new(config.address(), config.port);
    let bound = || {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        std::io::Result::Ok(socket)
    };
    bound().with_context(|| cannot_listen(config))
}

async fn load_tokenizer(
    folder: &Path,
    slow_tokenizer: impl SlowTokenizer,
) -> anyhow::Result<TextTokenizer> {
    anyhow::ensure!(
        folder.is_dir(),
        "`--tokenizer-name {}` is not a folder; give the folder of the model",
        folder.display()
    );
    let folder = folder.to_owned();
    let load =
        move || {
            let file = folder.join("tokenizer.json");
            if file.is_file() {
                return TextTokenizer::from_file(&file)
                    .with_context(|| format!("cannot load {}", file.display()));
            }
            tracing::info!(
                "{} does not exist: converting the slow tokenizer",
                file.display()
            );
            let json = slow_tokenizer(&folder).map_err(anyhow::Error::msg).with_context(|| {
            format!(
                "there is no tokenizer.json in {} and the slow tokenizer cannot be converted",
                folder.display()
            )
        })?;
            TextTokenizer::from_json(&json).context("the converted tokenizer cannot be loaded")
        };
    tokio::task::spawn_blocking(load).await?
}

/// A router that died may have left batches behind.
async fn connect(config: &Config) -> anyhow::Result<(ShardedClient, ShardInfo)> {
    let path = &config.master_shard_uds_path;
    let client = ShardedClient::connect_uds(path, Deadlines::default())
        .await
        .with_context(|| {
            format!(
                "cannot reach the shards at {} (`--master-shard-uds-path`)",
                path.display()
            )
        })?;
    client
        .clear_cache(None)
        .await
        .context("cannot clear the cache of the shards")?;
    let info = client
        .info()
        .await
        .context("cannot ask the shards for their model")?;
    tracing::info!(?info, "connected to the shards");
    Ok((client, info))
}

/// The limits that hold from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    max_input_tokens: u32,
    max_total_tokens: u32,
    max_batch_prefill_tokens: u32,
    max_batch_total_tokens: u32,
    max_batch_size: u32,
}

async fn warmup(config: &Config, client: &ShardedClient) -> anyhow::Result<Limits> {
    let wanted = WarmupLimits {
        max_input_tokens: config.max_input_tokens,
        max_total_tokens: config.max_total_tokens,
        max_batch_prefill_tokens: config.max_batch_prefill_tokens.unwrap_or_else(|| {
            DEFAULT_PREFILL_TOKENS.max(config.max_input_tokens.unwrap_or_default())
        }),
        max_batch_total_tokens: config.max_batch_total_tokens,
        max_batch_size: config
            .max_batch_size
            .unwrap_or(u32::MAX)
            .min(config.max_concurrent_requests),
    };
    tracing::info!("warming up the shards");
    let served = client.warmup(wanted).await.context("warm-up failed")?;
    let limits = settle(config.token_limits(), &wanted, &served)?;
    tracing::info!(?limits, "warm-up done");
    Ok(limits)
}

/// Joins what the operator asked for and what the shards can do. Asked-for limits are kept or refused, derived ones fit.
fn settle(
    asked: TokenLimits,
    wanted: &WarmupLimits,
    served: &ServingLimits,
) -> anyhow::Result<Limits> {
    for (flag, asked, served) in [
        (
            "--max-input-tokens",
            asked.max_input_tokens,
            served.max_input_tokens,
        ),
        (
            "--max-total-tokens",
            asked.max_total_tokens,
            served.max_total_tokens,
        ),
        (
            "--max-batch-total-tokens",
            asked.max_batch_total_tokens,
            served.max_batch_total_tokens,
        ),
    ] {
        if let Some(asked) = asked {
            anyhow::ensure!(
                asked == served,
                "the shards cannot serve `{flag} {asked}`, only {served}; lower it or leave it out"
            );
        }
    }
    let prefill = asked.max_batch_prefill_tokens.unwrap_or_else(|| {
        wanted
            .max_batch_prefill_tokens
            .min(served.max_batch_total_tokens)
    });
    let limits = Limits {
        // Prompts are not cut in pieces, so none may be longer than a prefill.
        max_input_tokens: asked
            .max_input_tokens
            .unwrap_or_else(|| served.max_input_tokens.min(prefill)),
        max_total_tokens: served.max_total_tokens,
        max_batch_prefill_tokens: prefill,
        max_batch_total_tokens: served.max_batch_total_tokens,
        max_batch_size: served.max_batch_size,
    };
    TokenLimits {
        max_input_tokens: Some(limits.max_input_tokens),
        max_total_tokens: Some(limits.max_total_tokens),
        max_batch_prefill_tokens: Some(limits.max_batch_prefill_tokens),
        max_batch_total_tokens: Some(limits.max_batch_total_tokens),
    }
    .check()
    .context("the limits after warm-up do not fit together")?;
    Ok(limits)
}

fn validation_limits(config: &Config, shard: &ShardInfo, limits: &Limits) -> ValidationLimits {
    ValidationLimits {
        max_best_of: config.max_best_of,
        max_stop_sequences: config.max_stop_sequences as usize,
        max_top_n_tokens: config.max_top_n_tokens,
        max_input_tokens: limits.max_input_tokens,
        max_total_tokens: limits.max_total_tokens,
        vocab_size: shard.vocab_size,
        prefill_logprobs: config.enable_prefill_logprobs,
    }
}

fn batch_limits(config: &Config, limits: &Limits) -> BatchLimits {
    BatchLimits {
        waiting_served_ratio: config.waiting_served_ratio,
        max_waiting_tokens: config.max_waiting_tokens,
        max_batch_prefill_tokens: limits.max_batch_prefill_tokens,
        max_batch_total_tokens: limits.max_batch_total_tokens,
        max_batch_size: limits.max_batch_size,
    }
}

fn info(config: &Config, shard: &ShardInfo, limits: &Limits) -> Info {
    let folder = config.tokenizer_name.display().to_string();
    Info {
        model_id: config.model_id.clone().unwrap_or(folder),
        model_sha: commit(&config.tokenizer_name).or_else(|| config.revision.clone()),
        model_dtype: shard.dtype.clone(),
        model_device_type: shard.device_type.clone(),
        model_pipeline_tag: None,
        max_concurrent_requests: config.max_concurrent_requests,
        max_best_of: config.max_best_of,
        max_stop_sequences: config.max_stop_sequences,
        max_input_tokens: limits.max_input_tokens,
        max_input_length: limits.max_input_tokens,
        max_total_tokens: limits.max_total_tokens,
        waiting_served_ratio: config.waiting_served_ratio,
        max_batch_prefill_tokens: limits.max_batch_prefill_tokens,
        max_batch_total_tokens: limits.max_batch_total_tokens,
        max_waiting_tokens: config.max_waiting_tokens,
        max_batch_size: limits.max_batch_size,
        validation_workers: config.validation_workers,
        max_client_batch_size: config.max_client_batch_size,
        router: "text-generation-router",
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// The hub keeps a model under `snapshots/<commit>`.
fn commit(folder: &Path) -> Option<String> {
    let in_snapshots = folder.parent()?.file_name()? == "snapshots";
    let name = folder.file_name()?.to_str()?;
    in_snapshots.then(|| name.to_owned())
}

fn compute_type(config: &Config, shard: &ShardInfo) -> anyhow::Result<HeaderValue> {
    match &config.compute_type {
        Some(given) => Ok(given.clone()),
        None => Ok(format!("{}-{}", shard.world_size, shard.device_type).try_into()?),
    }
}
