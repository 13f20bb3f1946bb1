//! All shards of a group as one: every call goes to every rank, the replies are joined.

use std::future::Future;
use std::path::Path;

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use prost::Message;
use text_generation_proto::v1;
use tonic::transport::Channel;

use crate::cluster::ClusterTls;
use crate::encoded::StepMethod;
use crate::error::ClientError;
use crate::shard::{Deadlines, Shard};
use crate::types::{
    MediaCost, RequestId, ServingLimits, ShardInfo, StepCost, StepMasks, StepPlan, StepReply,
    Warmup, WarmupLimits,
};

/// Client of a group of shards. Cheap to clone.
///
/// Plans, masks, FilterBatch and ClearCache change the state of the shards: one task issues them. Health may run beside them.
#[derive(Debug, Clone)]
pub struct ShardedClient {
    shards: Vec<Shard>,
}

impl ShardedClient {
    /// Connects to the shard listening on `path`, asks it for the others, and connects to all, which are on this host.
    pub async fn connect_uds(path: &Path, deadlines: Deadlines) -> Result<Self, ClientError> {
        Self::connect(path, deadlines, None).await
    }

    /// The same where some may be on other nodes, with `tls` unless those renounce it.
    ///
    /// # Errors
    /// `Connection` says which shard cannot be reached, and why.
    pub async fn connect(
        path: &Path,
        deadlines: Deadlines,
        tls: Option<&ClusterTls>,
    ) -> Result<Self, ClientError> {
        let url = format!("unix://{}", path.display());
        let first = Shard::connect(0, &url, deadlines, None).await?;
        let urls = first.service_discovery().await?;
        let shards = urls
            .iter()
            .enumerate()
            .map(|(rank, url)| Shard::connect(rank, url, deadlines, tls));
        let shards = join_all(shards)
            .await
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        if shards.is_empty() {
            return Err(ClientError::EmptyResults);
        }
        Ok(Self { shards })
    }

    /// The shards behind these channels, in rank order. A channel is made with tonic's
    /// `Endpoint::connect_with_connector`, or its lazy form: it connects again where the connection was lost.
    ///
    /// # Errors
    /// `EmptyResults` where there is no channel.
    pub fn from_channels(
        channels: Vec<Channel>,
        deadlines: Deadlines,
    ) -> Result<Self, ClientError> {
        if channels.is_empty() {
            return Err(ClientError::EmptyResults);
        }
        let channels = channels.into_iter().enumerate();
        Ok(Self {
            shards: channels
                .map(|(rank, channel)| Shard::over(rank, channel, deadlines))
                .collect(),
        })
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Runs `call` on every shard and waits for all of them, also when one fails: no rank may be left behind.
    pub(crate) async fn on_all<'a, T, F>(
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

    /// Sizes the pools; the limits are the minimum over the group, what steps cost is that of the slowest rank.
    pub async fn warmup(&self, limits: WarmupLimits) -> Result<Warmup, ClientError> {
        let replies = self.on_all(|shard| shard.warmup(limits.into())).await?;
        replies
            .into_iter()
            .map(Warmup::from)
            .reduce(|a, b| Warmup {
                limits: smaller(a.limits, b.limits),
                cost: slower(a.cost, b.cost),
                max_masks: a.max_masks.min(b.max_masks),
                overlapped_halves: a.overlapped_halves && b.overlapped_halves,
                media_cost: slower_media(a.media_cost, b.media_cost),
            })
            .ok_or(ClientError::EmptyResults)
    }

    /// Sends a plan to every rank. Plans run in the order of their numbers; one may be sent before the reply to the
    /// one before has come. The future owns all it needs. It has a deadline where the plan has no limit.
    pub fn step(
        &self,
        plan: StepPlan,
    ) -> impl Future<Output = Result<StepReply, ClientError>> + Send + 'static {
        let plan = v1::StepPlan::from(plan);
        let limited = plan.limit_ms > 0;
        let method = StepMethod::of(&plan);
        let encoded = Bytes::from(plan.encode_to_vec());
        let shards = self.shards.clone();
        async move {
            let calls = shards
                .iter()
                .map(|shard| shard.step::<v1::StepReply>(method, encoded.clone(), limited));
            let replies = all_unless_lost(calls).await?;
            join(replies.into_iter().map(StepReply::from))
        }
    }

    /// Sends every rank the masks of a plan with constrained rows: once for each, before or after the plan. The future
    /// owns all it needs.
    pub fn constrain(
        &self,
        masks: StepMasks,
    ) -> impl Future<Output = Result<(), ClientError>> + Send + 'static {
        let shards = self.shards.clone();
        async move {
            let encoded = Bytes::from(v1::StepMasks::from(masks).encode_to_vec());
            let calls = shards.iter().map(|shard| {
                shard.step::<v1::StepMasksResponse>(StepMethod::Constrain, encoded.clone(), false)
            });
            all_unless_lost(calls).await.map(drop)
        }
    }

    /// Keeps only `request_ids`; returns those that were there.
    pub async fn filter_batch(
        &self,
        request_ids: Vec<RequestId>,
    ) -> Result<Vec<RequestId>, ClientError> {
        let request = v1::FilterBatchRequest {
            request_ids: request_ids.into_iter().map(|id| id.0).collect(),
        };
        let replies = self
            .on_all(|shard| shard.filter_batch(request.clone()))
            .await?;
        let first = replies
            .into_iter()
            .next()
            .ok_or(ClientError::EmptyResults)?;
        Ok(first.request_ids.into_iter().map(RequestId).collect())
    }

    /// Drops one request, or all; after the latter the next plan has number 0.
    pub async fn clear_cache(&self, request_id: Option<RequestId>) -> Result<(), ClientError> {
        let request = v1::ClearCacheRequest {
            request_id: request_id.map(|id| id.0),
        };
        self.on_all(|shard| shard.clear_cache(request))
            .await
            .map(drop)
    }
}

/// Waits for all calls, also when one fails; but where a rank is lost, the others may wait for it for ever.
async fn all_unless_lost<T>(
    calls: impl Iterator<Item = impl Future<Output = Result<T, ClientError>>>,
) -> Result<Vec<T>, ClientError> {
    let unless_lost = calls.map(|call| async {
        match call.await {
            Err(lost) if lost.is_group_lost() => Err(lost),
            outcome => Ok(outcome),
        }
    });
    try_join_all(unless_lost).await?.into_iter().collect()
}

fn smaller(a: ServingLimits, b: ServingLimits) -> ServingLimits {
    ServingLimits {
        max_batch_total_tokens: a.max_batch_total_tokens.min(b.max_batch_total_tokens),
        max_input_tokens: a.max_input_tokens.min(b.max_input_tokens),
        max_total_tokens: a.max_total_tokens.min(b.max_total_tokens),
        max_batch_size: a.max_batch_size.min(b.max_batch_size),
    }
}

/// The one whose largest step takes longer.
fn slower(a: StepCost, b: StepCost) -> StepCost {
    let longest = |cost: &StepCost| cost.times_ms.last().copied().unwrap_or(0.0);
    if longest(&b) > longest(&a) { b } else { a }
}

/// The one whose largest item takes longer.
fn slower_media(a: MediaCost, b: MediaCost) -> MediaCost {
    let longest = |cost: &MediaCost| cost.times_ms.last().copied().unwrap_or(0.0);
    if longest(&b) > longest(&a) { b } else { a }
}

/// What rank 0 says, if all ranks chose the same; timings of the slowest, compilations of the worst.
fn join(replies: impl Iterator<Item = StepReply>) -> Result<StepReply, ClientError> {
    let mut joined: Option<StepReply> = None;
    for (shard, reply) in replies.enumerate() {
        let Some(first) = &mut joined else {
            joined = Some(reply);
            continue;
        };
        let chosen = |reply: &StepReply| {
            reply
                .tokens
                .iter()
                .map(|token| token.id)
                .collect::<Vec<_>>()
        };
        if first.number != reply.number
            || first.rows != reply.rows
            || first.counts != reply.counts
            || chosen(first) != chosen(&reply)
            || first.failures != reply.failures
        {
            let number = first.number;
            return Err(ClientError::Disagreement { shard, number });
        }
        let timings = &mut first.timings;
        timings.host = timings.host.max(reply.timings.host);
        timings.forward = timings.forward.max(reply.timings.forward);
        timings.idle = timings.idle.max(reply.timings.idle);
        timings.mask_wait = timings.mask_wait.max(reply.timings.mask_wait);
        timings.encode = timings.encode.max(reply.timings.encode);
        timings.kernel_compilations = timings
            .kernel_compilations
            .max(reply.timings.kernel_compilations);
    }
    joined.ok_or(ClientError::EmptyResults)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{RequestFailure, Row, TokenId};

    fn reply() -> StepReply {
        StepReply {
            number: 7,
            rows: vec![Row(1)],
            tokens: vec![TokenId {
                id: 4,
                logprob: -0.5,
            }],
            ..StepReply::default()
        }
    }

    #[test]
    fn ranks_disagree_where_their_steps_rows_counts_tokens_or_failures_differ() {
        let changes: [fn(&mut StepReply); 5] = [
            |reply| reply.counts = vec![1],
            |reply| reply.number = 8,
            |reply| reply.rows[0] = Row(2),
            |reply| reply.tokens[0].id = 5,
            |reply| {
                reply.failures.push(RequestFailure {
                    request_id: RequestId(1),
                    row: Row(1),
                    reason: "grammar".to_owned(),
                    message: "a mask allows nothing".to_owned(),
                });
            },
        ];
        assert_eq!(join([reply(), reply()].into_iter()), Ok(reply()));
        for change in changes {
            let mut other = reply();
            change(&mut other);
            let expected = ClientError::Disagreement {
                shard: 1,
                number: 7,
            };
            assert_eq!(join([reply(), other].into_iter()), Err(expected));
        }
    }
}
