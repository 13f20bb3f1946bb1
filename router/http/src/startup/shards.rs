//! Shards that are connected and warmed up.

use std::path::Path;

use anyhow::Context;
use text_generation_client::types::{ShardInfo, Warmup, WarmupLimits};
use text_generation_client::{ClusterTls, Deadlines, ShardedClient};
use text_generation_core::adapters::Adapters;
use tokio::runtime::Handle;

use super::vision::Sight;
use crate::args::Config;
use crate::limits::{Limits, prefix_caching, settle};

/// Prompt tokens of a prefill when the operator leaves it open.
const DEFAULT_PREFILL_TOKENS: u32 = 4096;

/// Shards that can serve.
#[derive(Debug)]
pub(super) struct WarmShards {
    pub client: ShardedClient,
    pub info: ShardInfo,
    pub limits: Limits,
    /// What warm-up has found.
    pub warmed: Warmup,
    /// Where images are served.
    pub sight: Option<Sight>,
    pub adapters: Adapters,
}

impl WarmShards {
    /// Connects, on the runtime `stepping` and with `tls` to other nodes, and warms the shards up.
    pub async fn start(
        config: &Config,
        folder: &Path,
        tls: Option<ClusterTls>,
        stepping: &Handle,
    ) -> anyhow::Result<Self> {
        let (client, info) = connect(config, tls, stepping).await?;
        check_answers(config, &info)?;
        explain_caching(config, &info);
        let sight = Sight::find(config, folder, &info);
        let adapters = load_adapters(config, folder, &client).await?;
        let (limits, warmed) = warm_up(config, &client, sight.as_ref(), &adapters).await?;
        Ok(Self {
            client,
            info,
            limits,
            warmed,
            sight,
            adapters,
        })
    }
}

/// Answers are kept for shards that draft from them.
fn check_answers(config: &Config, info: &ShardInfo) -> anyhow::Result<()> {
    anyhow::ensure!(
        config.answer_index_mib == 0 || !info.widths.is_empty(),
        "`--answer-index-mib {}` keeps earlier answers to draft from, and the shards do not draft; start them with \
         --speculate N, or leave it out",
        config.answer_index_mib
    );
    Ok(())
}

/// A router that died may have left batches behind.
async fn connect(
    config: &Config,
    tls: Option<ClusterTls>,
    stepping: &Handle,
) -> anyhow::Result<(ShardedClient, ShardInfo)> {
    let path = config.master_shard_uds_path.clone();
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
    tracing::info!(
        shards = info.world_size,
        device = info.device_type,
        dtype = info.dtype,
        kv_cache_dtype = info.kv_cache_dtype,
        attention = info.attention_impl,
        version = info.version,
        "connected to the shards"
    );
    Ok((client, info))
}

/// Says why nothing is cached where it was not switched off.
fn explain_caching(config: &Config, shard: &ShardInfo) {
    if prefix_caching(config, shard) != config.prefix_caching {
        tracing::info!(
            "nothing is cached, as with `--prefix-caching false`: layers of this model keep a state, which is not there behind a cached prefix. So every prompt is computed from its first token on, also for each answer of `n` and `best_of`, and so is a request that has paused"
        );
    }
}

/// Before warm-up, which makes room for what they change.
async fn load_adapters(
    config: &Config,
    folder: &Path,
    client: &ShardedClient,
) -> anyhow::Result<Adapters> {
    let named = config.adapters.named()?;
    let names = config.model_names(folder);
    if let Some(taken) = named.iter().find(|one| names.contains(&one.name)) {
        anyhow::bail!(
            "`--lora-adapters` has an adapter with the name of the model, `{}`: give it another one, as name=folder",
            taken.name
        );
    }
    Ok(Adapters::start(client, &config.adapters.rules(), &named).await?)
}

async fn warm_up(
    config: &Config,
    client: &ShardedClient,
    sight: Option<&Sight>,
    adapters: &Adapters,
) -> anyhow::Result<(Limits, Warmup)> {
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
        overlapped_halves: false,
        media_rows: sight.map_or(0, |sight| sight.rows),
        max_media_pixels: sight.map_or(0, |sight| sight.max_pixels),
        adapter_pages: adapters.pages(),
        adapters_later: adapters.later(),
    };
    tracing::info!("warming up the shards");
    let warmed = client.warmup(wanted).await.context("warm-up failed")?;
    let limits = settle(config.token_limits(), &wanted, &warmed.limits)?;
    tracing::info!(
        max_input_tokens = limits.max_input_tokens,
        max_total_tokens = limits.max_total_tokens,
        max_batch_prefill_tokens = limits.max_batch_prefill_tokens,
        max_batch_total_tokens = limits.max_batch_total_tokens,
        max_batch_size = limits.max_batch_size,
        "warm-up done"
    );
    tracing::debug!(
        tokens = ?warmed.cost.tokens,
        times_ms = ?warmed.cost.times_ms,
        pair_ns = warmed.cost.pair_ns,
        context_ns = warmed.cost.context_ns,
        graph_tokens = ?warmed.cost.graph_tokens,
        "what steps cost"
    );
    Ok((limits, warmed))
}
