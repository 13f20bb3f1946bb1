//! The one place where gRPC statuses become errors of ours.

use tonic::{Code, Status};

/// Trailing metadata key with the machine-readable reason; see `docs/errors.md`.
const REASON_KEY: &str = "error-reason";

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
    /// The ranks of a group chose different tokens, so nothing they hold can be trusted.
    #[error("Server error: shard {shard} disagrees with shard 0 on step {number}")]
    Disagreement { shard: usize, number: u64 },
    /// A reply lacks a part that the contract promises.
    #[error("Sharded results are empty")]
    EmptyResults,
}

impl ClientError {
    pub(crate) fn from_status(shard: usize, status: &Status) -> Self {
        if status.code() == Code::Unavailable && status.metadata().get(REASON_KEY).is_none() {
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
