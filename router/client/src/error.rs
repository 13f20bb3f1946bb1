//! Mapping of gRPC statuses to errors of ours, in one place.

use std::error::Error;

use tonic::{Code, Status};

/// Trailing metadata key with the machine-readable reason; see `docs/errors.md`.
const REASON_KEY: &str = "error-reason";

/// Reasons of that page.
const ENGINE_FAILED: &str = "engine_failed";
const NOT_READY: &str = "not_ready";

/// Why a call to the shards failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The socket is not there or was closed.
    #[error("Could not connect to Text Generation server: {0}")]
    Connection(String),
    /// A shard answered with an error.
    #[error("Server error: {message}")]
    Shard {
        shard: usize,
        reason: String,
        message: String,
    },
    /// A shard did not answer in time.
    #[error("Server error: shard {shard} did not answer {call} within {seconds} s")]
    Deadline {
        shard: usize,
        call: &'static str,
        seconds: u64,
    },
    /// The step that runs takes longer than its plan allows.
    #[error("Server error: step {number} did not end within {seconds} s")]
    Overdue { number: u64, seconds: u64 },
    /// The ranks of a group chose different tokens, so nothing they hold can be trusted.
    #[error("Server error: shard {shard} disagrees with shard 0 on step {number}")]
    Disagreement { shard: usize, number: u64 },
    /// The file in which pixels go to the shards could not be written: the disk of their sockets may be full.
    #[error("an image could not be handed to the shards: {0}")]
    Pixels(String),
    /// A reply lacks a part that the contract promises.
    #[error("Sharded results are empty")]
    EmptyResults,
}

impl ClientError {
    /// Whether the group can serve no more and has to be started again: a rank is gone or hangs, its engine has failed
    /// or knows nothing of us, or ranks disagree. After any other error the group lives and has said what was wrong.
    pub fn is_group_lost(&self) -> bool {
        match self {
            Self::Connection(_)
            | Self::Deadline { .. }
            | Self::Overdue { .. }
            | Self::Disagreement { .. } => true,
            Self::Shard { reason, .. } => reason == NOT_READY || self.is_engine_failed(),
            Self::EmptyResults | Self::Pixels(_) => false,
        }
    }

    /// The engine of a rank can do nothing more.
    pub(crate) fn is_engine_failed(&self) -> bool {
        matches!(self, Self::Shard { reason, .. } if reason == ENGINE_FAILED)
    }

    pub(crate) fn from_status(shard: usize, status: &Status) -> Self {
        // A status that a shard has sent has no source; one with a source was made here of an error of the connection.
        let unanswered = status.code() == Code::Unavailable || status.source().is_some();
        if unanswered && status.metadata().get(REASON_KEY).is_none() {
            return Self::Connection(format!("shard {shard}: {}", status.message()));
        }
        let reason = status
            .metadata()
            .get(REASON_KEY)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("internal");
        Self::Shard {
            shard,
            reason: reason.to_owned(),
            message: status.message().to_owned(),
        }
    }
}
