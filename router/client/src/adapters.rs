//! Adapters in the host memory of the shards: all ranks have one, or none.

use futures::future::join_all;

use crate::error::ClientError;
use crate::sharded::ShardedClient;
use crate::types::{LoadAdapter, LoadedAdapter};

/// Some rank has not read an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadAdapter {
    /// What the first such rank says.
    pub error: ClientError,
    /// Generations that others have in host memory now, for whoever knows whether they are used to drop.
    pub read: Vec<u64>,
}

impl ShardedClient {
    /// Has every rank read the files of an adapter.
    ///
    /// # Errors
    /// When not all ranks have read the same contents.
    pub async fn load_adapter(&self, load: &LoadAdapter) -> Result<LoadedAdapter, UnreadAdapter> {
        let calls = self.shards().iter().map(|shard| async {
            let reply = shard.load_adapter(load.clone().into()).await;
            reply.map(LoadedAdapter::from)
        });
        let replies = join_all(calls).await;
        let read = replies.iter().flatten().map(|one| one.generation).collect();
        join(load, replies).map_err(|error| UnreadAdapter { error, read })
    }

    /// Has every rank drop an adapter from host memory.
    ///
    /// # Errors
    /// When a rank does not answer.
    pub async fn unload_adapter(&self, generation: u64) -> Result<(), ClientError> {
        let dropped = self.on_all(|shard| shard.unload_adapter(generation)).await;
        dropped.map(drop)
    }

    /// Loads adapters into a group that has just started. Returns those that are not what they were, with the reasons.
    ///
    /// # Errors
    /// When a rank is lost.
    pub(crate) async fn load_again(
        &self,
        adapters: Vec<LoadAdapter>,
    ) -> Result<Vec<(u64, ClientError)>, ClientError> {
        let mut lost = Vec::new();
        for load in adapters {
            match self.load_adapter(&load).await {
                Ok(_) => {}
                Err(unread) if unread.error.is_group_lost() => return Err(unread.error),
                Err(unread) => lost.push((load.generation, unread.error)),
            }
        }
        Ok(lost)
    }
}

/// What all ranks have read: the same contents.
fn join(
    load: &LoadAdapter,
    replies: Vec<Result<LoadedAdapter, ClientError>>,
) -> Result<LoadedAdapter, ClientError> {
    let mut joined: Option<LoadedAdapter> = None;
    for (shard, reply) in replies.into_iter().enumerate() {
        let reply = reply?;
        let first = *joined.get_or_insert(LoadedAdapter { bytes: 0, ..reply });
        let asked = match load.generation {
            0 => first.generation,
            asked => asked,
        };
        if asked != reply.generation {
            return Err(ClientError::Shard {
                shard,
                reason: "adapter_changed".to_owned(),
                message: format!(
                    "shard {shard} has read other files of {} than asked for, or than shard 0: every node needs the same ones",
                    load.source
                ),
            });
        }
        joined = Some(LoadedAdapter {
            generation: first.generation,
            rank: first.rank.max(reply.rank),
            pages: first.pages.max(reply.pages),
            bytes: first.bytes.saturating_add(reply.bytes),
        });
    }
    joined.ok_or(ClientError::EmptyResults)
}
