//! Timings of a finished request.

use std::time::Duration;

use text_generation_core::types::{GeneratedText, RequestInstants};
use tokio::time::Instant;
use tower_http::request_id::RequestId;

/// Differences of the instants of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    pub total: Duration,
    pub validation: Duration,
    pub queue: Duration,
    pub inference: Duration,
    pub per_token: Duration,
}

impl Timings {
    pub fn new(instants: &RequestInstants, finished: Instant, generated_tokens: u32) -> Self {
        let inference = finished.saturating_duration_since(instants.started);
        Self {
            total: finished.saturating_duration_since(instants.received),
            validation: instants.queued.saturating_duration_since(instants.received),
            queue: instants.started.saturating_duration_since(instants.queued),
            inference,
            per_token: inference / generated_tokens.max(1),
        }
    }

    /// The one log line of a finished request. It holds no text of the request.
    pub fn log(&self, id: &RequestId, prompt_tokens: u32, generated: &GeneratedText) {
        let speculated = Some(generated.speculated).filter(|speculated| speculated.drafted > 0);
        tracing::info!(
            request_id = request_id(id),
            total_time = ?self.total,
            validation_time = ?self.validation,
            queue_time = ?self.queue,
            inference_time = ?self.inference,
            time_per_token = ?self.per_token,
            prompt_tokens,
            generated_tokens = generated.generated_tokens,
            finish_reason = generated.finish_reason.as_str(),
            seed = generated.seed,
            tenant = generated.tenant.as_deref(),
            adapter = generated.adapter.as_deref(),
            drafted_tokens = speculated.map(|speculated| speculated.drafted),
            accepted_draft_tokens = speculated.map(|speculated| speculated.accepted),
            "Success"
        );
    }
}

/// The id as text, for logs.
pub fn request_id(id: &RequestId) -> &str {
    id.header_value().to_str().unwrap_or("not printable")
}
