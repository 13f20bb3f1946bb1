//! A group that was lost, until its next start serves.

use std::time::Duration;

use futures::future::join_all;

use crate::error::ClientError;
use crate::shard::Shard;
use crate::sharded::ShardedClient;
use crate::types::{LoadAdapter, ServingLimits, Warmup, WarmupLimits};

/// Between two questions whether the group is there again.
const PAUSE: Duration = Duration::from_millis(100);

/// Between two questions whether a group that computes nothing is still there.
const LOOK: Duration = Duration::from_secs(1);

/// A rank that takes longer to say what it is counts as not there.
const ANSWER: Duration = Duration::from_secs(2);

/// The next start of a group that was lost, ready to serve.
#[derive(Debug, Clone, PartialEq)]
pub struct Regained {
    /// As [`ShardedClient::group`] names it.
    pub group: String,
    pub warmup: Warmup,
    /// Generations of adapters that it cannot load again, each with the reason.
    pub lost_adapters: Vec<(u64, ClientError)>,
}

impl ShardedClient {
    /// Names the start of the group that answers. `None` while its ranks are not all of one start; empty where nobody
    /// gave a name.
    ///
    /// # Errors
    /// When a rank does not answer, for example because it still loads.
    pub async fn group(&self) -> Result<Option<String>, ClientError> {
        let replies = self.on_all(|shard| shard.info_within(ANSWER)).await?;
        let mut names = replies.into_iter().map(|reply| reply.group);
        let first = names.next().ok_or(ClientError::EmptyResults)?;
        Ok(names.all(|name| name == first).then_some(first))
    }

    /// Whether the group named `name` is there and makes progress; without a name, whether any is.
    ///
    /// # Errors
    /// Why not. [`ClientError::is_group_lost`] tells whether it has to be started again.
    pub async fn still_serves(&self, name: &str) -> Result<(), ClientError> {
        self.health().await?;
        if name.is_empty() || self.group().await?.as_deref() == Some(name) {
            return Ok(());
        }
        let started = "the shards were started again".to_owned();
        Err(ClientError::Connection(started))
    }

    /// Resolves when the group named `name` is lost, with the reason: for times when nothing is computed, where no
    /// answer would tell. A group that is only silent is left to
    /// whoever started it, who knows when its patience ends.
    pub async fn lost(&self, name: &str) -> ClientError {
        loop {
            tokio::time::sleep(LOOK).await;
            match self.still_serves(name).await {
                Ok(()) | Err(ClientError::Deadline { .. }) => {}
                Err(error) if error.is_group_lost() => return error,
                Err(_) => {}
            }
        }
    }

    /// Ends the group named `lost`, waits until another one has been started on the same sockets, and warms it up with
    /// limits that it must keep exactly, after it has loaded the `adapters`, each with the contents that it had. Goes on
    /// until that has succeeded: whoever starts the shards decides when it is hopeless, and ends this process then.
    pub async fn regain(
        &self,
        lost: String,
        reason: String,
        limits: WarmupLimits,
        adapters: impl Fn() -> Vec<LoadAdapter>,
    ) -> Regained {
        let (mut lost, mut reason) = (lost, reason);
        loop {
            self.abandon(&lost, &reason).await;
            tokio::time::sleep(PAUSE).await;
            let Ok(Some(group)) = self.group().await else {
                continue;
            };
            if !group.is_empty() && group == lost {
                continue;
            }
            tracing::info!(group, "warming up the shards again");
            let loaded = self.load_again(adapters()).await;
            let warmed = match loaded {
                Ok(lost) => self.warmup(limits).await.map(|warmup| (warmup, lost)),
                Err(error) => Err(error),
            };
            match warmed {
                Ok((warmup, lost_adapters)) if keeps(&warmup.limits, &limits) => {
                    return Regained {
                        group,
                        warmup,
                        lost_adapters,
                    };
                }
                Ok((warmup, _)) => {
                    reason = format!("they cannot keep their limits, only {}", warmup.limits);
                }
                // Also where the group has no name, and the one that was lost refuses to be warmed up twice.
                Err(error) => reason = error.to_string(),
            }
            tracing::error!(group, reason, "the shards cannot be warmed up again");
            if group.is_empty() {
                join_all(self.shards().iter().map(|shard| self.end(shard, &reason))).await;
            }
            lost = group;
        }
    }

    /// Tells the ranks of the start named `lost` to end, and those whose engine has failed. The next start may be there
    /// already, and must not be harmed.
    async fn abandon(&self, lost: &str, reason: &str) {
        let each = self.shards().iter().map(|shard| async {
            let is_lost = match shard.info_within(ANSWER).await {
                Ok(info) => !info.group.is_empty() && info.group == lost,
                Err(error) => error.is_engine_failed(),
            };
            if is_lost {
                self.end(shard, reason).await;
            }
        });
        join_all(each).await;
    }

    /// Tells a rank to end. One that does not listen is for whoever started it.
    async fn end(&self, shard: &Shard, reason: &str) {
        if let Err(error) = shard.abandon_within(ANSWER, reason.to_owned()).await {
            tracing::debug!(%error, "a shard was not told to end");
        }
    }
}

/// Requests were let in by these limits, so a group that has others cannot serve them.
fn keeps(served: &ServingLimits, asked: &WarmupLimits) -> bool {
    let exactly = |served: u32, asked: Option<u32>| asked.is_none_or(|asked| asked == served);
    exactly(served.max_batch_total_tokens, asked.max_batch_total_tokens)
        && exactly(served.max_input_tokens, asked.max_input_tokens)
        && exactly(served.max_total_tokens, asked.max_total_tokens)
        && served.max_batch_size == asked.max_batch_size
}
