//! One start of all ranks of a group: which of them are ready yet.

use std::io;
use std::time::Duration;

use opentelemetry::KeyValue;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::info;

use crate::error::LauncherError;
use crate::readiness;
use crate::spans::Span;

const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// All ranks were started at the same time.
#[derive(Debug)]
pub struct Start {
    began: Instant,
    /// Dropped before `span`, where a start is given up: parts end before the whole.
    waiting: Vec<Loading>,
    /// Lasts until all are ready.
    pub span: Span,
}

/// A rank that is not ready yet.
#[derive(Debug)]
struct Loading {
    rank: usize,
    socket: String,
    /// Lasts until it is.
    _span: Span,
}

impl Start {
    /// Begins now. `ranks`: the number of each, among those of all nodes, and its socket.
    pub fn new(span: Span, ranks: impl Iterator<Item = (usize, String)>) -> Self {
        let waiting = ranks.map(|(rank, socket)| {
            let number = i64::try_from(rank).unwrap_or(i64::MAX);
            Loading {
                rank,
                socket,
                _span: span.part("load shard", [KeyValue::new("tgi.rank", number)]),
            }
        });
        Self {
            began: Instant::now(),
            waiting: waiting.collect(),
            span,
        }
    }

    /// Waits until every rank answers, for at most `limit_s` seconds from the start.
    ///
    /// It may be dropped at any time and called again: it goes on where it was.
    pub async fn all_ready(&mut self, limit_s: u64) -> Result<(), LauncherError> {
        let (began, deadline) = (self.began, self.began + Duration::from_secs(limit_s));
        let waits = self.waiting.iter().map(|loading| {
            let (rank, socket) = (loading.rank, loading.socket.clone());
            async move {
                wait_for_shard(rank, socket, began, deadline)
                    .await
                    .map(|()| rank)
            }
        });
        let mut waits: JoinSet<_> = waits.collect();
        while let Some(ready) = waits.join_next().await {
            let ready = ready.map_err(io::Error::other)??;
            self.waiting.retain(|loading| loading.rank != ready);
        }
        Ok(())
    }
}

async fn wait_for_shard(
    rank: usize,
    socket: String,
    begin: Instant,
    deadline: Instant,
) -> Result<(), LauncherError> {
    let mut ready = std::pin::pin!(readiness::shard_ready(socket));
    let mut progress = begin + PROGRESS_INTERVAL;
    loop {
        tokio::select! {
            () = &mut ready => break,
            () = sleep_until(deadline) => {
                let seconds = (deadline - begin).as_secs();
                return Err(LauncherError::StartupTimeout { process: format!("shard {rank}"), seconds });
            }
            () = sleep_until(progress) => {
                info!(rank, "Waiting for shard to be ready...");
                progress += PROGRESS_INTERVAL;
            }
        }
    }
    info!(rank, "Shard ready in {:.1?}", begin.elapsed());
    Ok(())
}
