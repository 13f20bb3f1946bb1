//! From flags to a server that can answer, step by step. Every failure is one line that says what to change.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::http::HeaderValue;
use text_generation_chat::{ChatTemplate, ChatTemplateError};
use text_generation_client::types::{ShardInfo, Warmup, WarmupLimits};
use text_generation_client::{Deadlines, ShardedClient};
use text_generation_core::infer::{Infer, Shards};
use text_generation_core::policy::cost::StepCost;
use text_generation_core::tokenize::{TextTokenizer, TokenizerPool};
use text_generation_core::validation::Validator;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;

use crate::access::Access;
use crate::args::Config;
use crate::bounds::{BACKLOG, MEMORY_OF_LARGEST_BODY, REQUEST_MEMORY};
use crate::conversation::ModelFormat;
use crate::extract::BodyLimits;
use crate::generation_config::{GenerationConfig, SamplingDefaults};
use crate::limits::{Limits, batch_limits, settle, validation_limits};
use crate::memory::MemoryBudget;
use crate::metrics;
use crate::middleware::HttpOptions;
use crate::renderer::ChatRenderer;
use crate::schema::Info;
use crate::state::{AnswerOptions, AppState};
use crate::telemetry::{self, Tracer};

/// Prompt tokens of a prefill when the operator leaves it open.
const DEFAULT_PREFILL_TOKENS: u32 = 4096;

/// Makes the text of a `tokenizer.json` for a folder that has none, or says why it cannot. Runs on a thread that may block.
pub trait SlowTokenizer: FnOnce(&Path) -> Result<String, String> + Send + 'static {}

impl<F: FnOnce(&Path) -> Result<String, String> + Send + 'static> SlowTokenizer for F {}

/// Starts everything but the connection loop. The listener refuses connections until this returns. The batching task
/// and the connections to the shards live on the runtime `stepping`.
pub async fn start(
    config: &Config,
    slow_tokenizer: impl SlowTokenizer,
    stepping: &Handle,
) -> anyhow::Result<(TcpListener, Arc<AppState>)> {
    // A port in use or a missing file of keys should not be found out after minutes of warm-up.
    let address = SocketAddr::new(config.address(), config.port);
    let socket = bind(address).with_context(|| cannot_listen(config))?;
    let api_keys = config.api_keys()?;
    let folder = config.tokenizer_folder()?;
    let model_names = config.model_names(folder);
    let kv_events = config.kv_events_config.as_ref();
    let kv_events =
        kv_events.map(|events| events.start(model_names.first().map_or("", String::as_str)));
    let kv_events = kv_events.transpose()?.flatten();
    let mut tokenizer = load_tokenizer(folder, slow_tokenizer).await?;
    if config.escape_special_tokens {
        tokenizer = tokenizer.escaping_special_tokens();
    }
    let (client, shard) = connect(config, stepping).await?;
    let (limits, cost, warmed) = warmup(config, &client).await?;
    let metrics = metrics::install(limits.max_input_tokens, limits.max_total_tokens)?;
    let pool = TokenizerPool::new(tokenizer.clone(), config.validation_workers as usize)?;
    let validator = Validator::new(pool, validation_limits(config, &shard, &limits));
    let batch_limits = batch_limits(config, &limits, &cost);
    let infer = {
        let _entered = stepping.enter();
        Infer::new(
            validator,
            Shards {
                client,
                cost,
                eos_token_ids: shard.eos_token_ids.clone(),
                kv_cache_dtype: shard.kv_cache_dtype.clone(),
                max_masks: warmed.max_masks,
                in_parts: warmed.in_parts,
                step_timeout: Duration::from_secs(config.step_timeout.into()),
                kv_events,
            },
            batch_limits,
            config.max_concurrent_requests as usize,
        )
    };
    let tracer = tracer(config, &model_names)?;
    let chats = ChatRenderer::new(
        load_chat_template(config, folder)?,
        tokenizer,
        config.max_concurrent_requests as usize,
    );
    let format = find_format(config, folder, &chats, shard.vocab_size).await?;
    let info = info(config, &model_names, folder, &shard, &limits, &format);
    let state = AppState::new(
        infer,
        chats,
        format,
        info,
        AnswerOptions {
            compute_type: compute_type(config, &shard)?,
            model_names,
            sse_keep_alive: Duration::from_secs(config.sse_keep_alive.into()),
            metrics_aliases: config.metrics_aliases,
        },
        metrics,
        HttpOptions {
            body: BodyLimits {
                bytes: config.payload_limit as usize,
                time: Duration::from_secs(config.client_timeout.into()),
            },
            memory: MemoryBudget::new(request_memory(config.payload_limit as usize)),
            access: Access {
                keys: api_keys,
                prefix_caching: config.prefix_caching,
                open_metrics: config.open_metrics,
                tenant_header: config.tenant_header.clone(),
                priority_header: config.priority_header.clone(),
            },
            cors_allow_origin: config.cors_allow_origin.clone(),
            tracer,
        },
    )
    .named(config.router_instance.clone());
    let listener = socket
        .listen(BACKLOG)
        .with_context(|| cannot_listen(config))?;
    Ok((listener, Arc::new(state)))
}

/// Traces requests, where a collector is named. Steps are traced too where the log shows details.
fn tracer(config: &Config, model_names: &[String]) -> anyhow::Result<Option<Arc<Tracer>>> {
    // A variable that is set to nothing is none.
    let given = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
    let Some(endpoint) = given(&config.otlp_endpoint) else {
        return Ok(None);
    };
    let tracer = Tracer::start(telemetry::Settings {
        endpoint: &endpoint,
        service_name: given(&config.otlp_service_name).as_deref(),
        model: model_names.first().map_or("", String::as_str),
        trace_steps: config.logs_details(),
    })?;
    tracing::info!("traces go to {endpoint}");
    Ok(Some(Arc::new(tracer)))
}

/// The largest body must fit alone.
fn request_memory(payload_limit: usize) -> usize {
    REQUEST_MEMORY.max(payload_limit.saturating_mul(MEMORY_OF_LARGEST_BODY))
}

/// A template of the model that cannot be used is no reason not to serve prompts; one that was asked for is.
fn load_chat_template(
    config: &Config,
    folder: &Path,
) -> anyhow::Result<Result<ChatTemplate, ChatTemplateError>> {
    let given = config.tokenizer_config_path.as_deref();
    let loaded = ChatTemplate::load(folder, given);
    let template = loaded.and_then(|template| template.ok_or(ChatTemplateError::Missing));
    match (&template, given) {
        (Ok(_), _) => {}
        (Err(ChatTemplateError::Missing), _) => {
            tracing::info!("the model has no chat template: chats are refused");
        }
        (Err(error), Some(_)) => anyhow::bail!("`--tokenizer-config-path`: {error}"),
        (Err(error), None) => tracing::warn!("chats are refused: {error}"),
    }
    Ok(template)
}

/// How the model writes calls and reasoning.
async fn find_format(
    config: &Config,
    folder: &Path,
    chats: &ChatRenderer,
    vocab_size: u32,
) -> anyhow::Result<ModelFormat> {
    let (calls, reasoning) = (&config.tool_call_parser, &config.reasoning_parser);
    let format = ModelFormat::find(calls, reasoning, folder, chats, vocab_size).await;
    let format = format.map_err(anyhow::Error::msg)?;
    tracing::info!(
        tool_call_parser = format.tool_call_parser(),
        reasoning_parser = format.reasoning_parser(),
        "how the model writes tool calls and reasoning"
    );
    Ok(format)
}

fn cannot_listen(config: &Config) -> String {
    format!(
        "cannot listen on {}:{}; choose another address with `--hostname` and `--port`",
        config.hostname, config.port
    )
}

/// A socket that has the address and refuses connections until it listens.
pub fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

async fn load_tokenizer(
    folder: &Path,
    slow_tokenizer: impl SlowTokenizer,
) -> anyhow::Result<TextTokenizer> {
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
async fn connect(config: &Config, stepping: &Handle) -> anyhow::Result<(ShardedClient, ShardInfo)> {
    let path = config.master_shard_uds_path.clone();
    let tls = config.cluster_tls()?;
    let connecting = {
        let path = path.clone();
        async move { ShardedClient::connect(&path, Deadlines::default(), tls.as_ref()).await }
    };
    let client = stepping.spawn(connecting).await?.with_context(|| {
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

async fn warmup(
    config: &Config,
    client: &ShardedClient,
) -> anyhow::Result<(Limits, StepCost, Warmup)> {
    let wanted = WarmupLimits {
        max_input_tokens: config.max_input_tokens,
        max_total_tokens: config.max_total_tokens,
        max_batch_prefill_tokens: config.max_batch_prefill_tokens.unwrap_or_else(|| {
            let whole = config.max_input_tokens.filter(|_| !config.prefill_chunking);
            DEFAULT_PREFILL_TOKENS.max(whole.unwrap_or_default())
        }),
        max_batch_total_tokens: config.max_batch_total_tokens,
        max_batch_size: config
            .max_batch_size
            .unwrap_or(u32::MAX)
            .min(config.max_concurrent_requests),
        prefill_chunking: config.prefill_chunking,
        regained: false,
        in_parts: false,
    };
    tracing::info!("warming up the shards");
    let warmed = client.warmup(wanted).await.context("warm-up failed")?;
    let limits = settle(config.token_limits(), &wanted, &warmed.limits)?;
    tracing::info!(?limits, cost = ?warmed.cost, "warm-up done");
    let cost = &warmed.cost;
    let cost = StepCost::new(
        &cost.tokens,
        &cost.times_ms,
        cost.pair_ns,
        cost.context_ns,
        &cost.graph_tokens,
    );
    Ok((limits, cost, warmed))
}

fn info(
    config: &Config,
    model_names: &[String],
    folder: &Path,
    shard: &ShardInfo,
    limits: &Limits,
    format: &ModelFormat,
) -> Info {
    Info {
        model_id: model_names.first().cloned().unwrap_or_default(),
        model_sha: commit(folder).or_else(|| config.revision.clone()),
        model_dtype: shard.dtype.clone(),
        model_device_type: shard.device_type.clone(),
        kv_cache_dtype: shard.kv_cache_dtype.clone(),
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
        tool_call_parser: format.tool_call_parser().map(str::to_owned),
        reasoning_parser: format.reasoning_parser().map(str::to_owned),
        grammar_support: !config.disable_grammar_support,
        sampling_defaults: (config.generation_config == GenerationConfig::Auto)
            .then(|| SamplingDefaults::load(folder)),
        served_model_names: model_names.to_vec(),
        prefix_caching: config.prefix_caching.to_string(),
        prefill_chunking: config.prefill_chunking,
        router: "text-generation-router",
        version: env!("CARGO_PKG_VERSION"),
        sha: option_env!("VERGEN_GIT_SHA"),
        docker_label: option_env!("DOCKER_LABEL"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_is_in_the_path_of_the_hub_cache() {
        let path = Path::new("/cache/models--a--b/snapshots/0f1e2d");
        assert_eq!(commit(path), Some("0f1e2d".to_owned()));
        assert_eq!(commit(Path::new("/models/0f1e2d")), None);
    }
}
