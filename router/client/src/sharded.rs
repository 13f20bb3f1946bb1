//! All shards of a group as one: every call goes to every rank, the replies are joined.

use std::future::Future;
use std::path::Path;

use futures::future::join_all;
use text_generation_proto::v1;

use crate::error::ClientError;
use crate::shard::{Deadlines, Shard};
use crate::types::{Batch, CachedBatch, Grant, ServingLimits, ShardInfo, StepReply, WarmupLimits};

/// Client of a group of shards. Cheap to clone.
///
/// Prefill, Decode, FilterBatch and ClearCache change the state of the shards and every rank must see them in the same
/// order: one task issues them and awaits each before the next. Health may run beside them.
#[derive(Debug, Clone)]
pub struct ShardedClient {
    shards: Vec<Shard>,
}

impl ShardedClient {
    /// Connects to the shard listening on `path`, asks it for the others, and connects to all.
    pub async fn connect_uds(path: &Path, deadlines: Deadlines) -> Result<Self, ClientError> {
        let url = format!("unix://{}", path.display());
        let first = Shard::connect(0, &url, deadlines).await?;
        let urls = first.service_discovery().await?;
        let shards = urls
            .iter()
            .enumerate()
            .map(|(rank, url)| Shard::connect(rank, url, deadlines));
        let shards = join_all(shards)
            .await
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        if shards.is_empty() {
            return Err(ClientError::EmptyResults);
        }
        Ok(Self { shards })
    }

    /// Runs `call` on every shard and waits for all of them, also when one fails: no rank may be left behind.
    async fn on_all<'a, T, F>(
        &'a self,
        call: impl Fn(&'a Shard) -> F,
    ) -> Result<Vec<T>, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        join_all(self.shards.iter().map(call))
            .await
            .into_iter()
            .collect()
    }

    /// What the group serves, as rank 0 reports it.
    pub async fn info(&self) -> Result<ShardInfo, ClientError> {
        let replies = self.on_all(Shard::info).await?;
        let first = replies
            .into_iter()
            .next()
            .ok_or(ClientError::EmptyResults)?;
        Ok(first.into())
    }

    /// Every shard is alive and its engine makes progress.
    pub async fn health(&self) -> Result<(), ClientError> {
        self.on_all(Shard::health).await.map(drop)
    }

    /// Sizes the pools; the limits are the minimum over the group.
    pub async fn warmup(&self, limits: WarmupLimits) -> Result<ServingLimits, ClientError> {
        let replies = self.on_all(|shard| shard.warmup(limits.into())).await?;
        replies
            .into_iter()
            .map(ServingLimits::from)
            .reduce(|a, b| ServingLimits {
                max_batch_total_tokens: a.max_batch_total_tokens.min(b.max_batch_total_tokens),
                max_input_tokens: a.max_input_tokens.min(b.max_input_tokens),
                max_total_tokens: a.max_total_tokens.min(b.max_total_tokens),
                max_batch_size: a.max_batch_size.min(b.max_batch_size),
            })
            .ok_or(ClientError::EmptyResults)
    }

    /// Computes the prompts of a new batch and the first token of each request.
    pub async fn prefill(&self, batch: Batch) -> Result<StepReply, ClientError> {
        let request = v1::PrefillRequest {
            batch: Some(batch.into()),
        };
        let replies = self.on_all(|shard| shard.prefill(request.clone())).await?;
        join(replies.into_iter().map(StepReply::from))
    }

    /// One step for the union of `batches`, which keep only the request ids they list.
    pub async fn decode(
        &self,
        batches: Vec<CachedBatch>,
        grants: Vec<Grant>,
    ) -> Result<StepReply, ClientError> {
        let request = v1::DecodeRequest {
            batches: batches.into_iter().map(Into::into).collect(),
            grants: grants.into_iter().map(Into::into).collect(),
        };
        let replies = self.on_all(|shard| shard.decode(request.clone())).await?;
        join(replies.into_iter().map(StepReply::from))
    }

    /// Keeps only `request_ids` of a cached batch; `None` when none is left.
    pub async fn filter_batch(
        &self,
        batch_id: u64,
        request_ids: Vec<u64>,
    ) -> Result<Option<CachedBatch>, ClientError> {
        let request = v1::FilterBatchRequest {
            batch_id,
            request_ids,
        };
        let replies = self
            .on_all(|shard| shard.filter_batch(request.clone()))
            .await?;
        let first = replies
            .into_iter()
            .next()
            .ok_or(ClientError::EmptyResults)?;
        Ok(first.batch.map(Into::into))
    }

    /// Drops one cached batch, or all.
    pub async fn clear_cache(&self, batch_id: Option<u64>) -> Result<(), ClientError> {
        let request = v1::ClearCacheRequest { id: batch_id };
        self.on_all(|shard| shard.clear_cache(request))
            .await
            .map(drop)
    }
}

/// Generations of all ranks, batch and failures of the first, timings of the slowest; compilations of the worst.
fn join(replies: impl Iterator<Item = StepReply>) -> Result<StepReply, ClientError> {
    replies
        .reduce(|mut joined, reply| {
            joined.generations.extend(reply.generations);
            let compilations = joined.timings.kernel_compilations;
            let compilations = compilations.max(reply.timings.kernel_compilations);
            if reply.timings.total > joined.timings.total {
                joined.timings = reply.timings;
            }
            joined.timings.kernel_compilations = compilations;
            joined
        })
        .ok_or(ClientError::EmptyResults)
}
