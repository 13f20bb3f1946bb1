//! Observer of a request, such as the one who writes its trace. It is told once for each generation, at its end; tokens
//! cost it nothing.

use std::fmt;
use std::sync::Arc;

use text_generation_client::types::TraceLink;
use tokio::time::Instant;

use super::{FinishReason, RequestInstants};
use crate::error::InferError;

/// Follows one request of a client. Called in the tasks of the client, so it must not wait.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A generation of the request has ended, or its client has gone.
    fn ended(&self, generation: GenerationRecord);

    /// Names the request to the shards; `None` where nobody traces it.
    fn trace_link(&self) -> Option<TraceLink>;
}

/// What became of one generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationRecord {
    /// Place among the samples of its prompt, from 0.
    pub index: u32,
    /// Tokens of the prompt, as truncated.
    pub input_length: u32,
    /// Those of them that were found in the prefix tree.
    pub cached_tokens: u32,
    pub generated_tokens: u32,
    /// The longest that it could get.
    pub max_new_tokens: u32,
    /// `started` is that of `queued` where it never started.
    pub instants: RequestInstants,
    pub first_token: Option<Instant>,
    /// When its last token came, or it failed.
    pub ended: Instant,
    pub outcome: Outcome,
}

/// How a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Finished(FinishReason),
    /// With this `error_type`.
    Failed(&'static str),
    /// Its client took no more of it.
    Dropped,
}

impl From<&InferError> for Outcome {
    fn from(error: &InferError) -> Self {
        Self::Failed(error.error_type())
    }
}

/// Who follows a request, if anybody does. Clones name the same one.
#[derive(Clone, Default)]
pub struct Observed(Option<Arc<dyn Observer>>);

impl Observed {
    pub fn by(observer: Arc<dyn Observer>) -> Self {
        Self(Some(observer))
    }

    pub(crate) fn trace_link(&self) -> Option<TraceLink> {
        self.0.as_ref()?.trace_link()
    }

    /// Tells of an end. The record is made only where somebody wants it.
    pub(crate) fn ended(&self, record: impl FnOnce() -> GenerationRecord) {
        if let Some(observer) = &self.0 {
            observer.ended(record());
        }
    }
}

impl PartialEq for Observed {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Observed"
        } else {
            "nobody"
        })
    }
}
