//! Whether this server makes progress.

use std::sync::Arc;
use std::time::Duration;

use text_generation_client::types::NextTokenChooser;

use super::Infer;
use crate::queue::Event;
use crate::types::{Dialect, StoppingCriteria};
use crate::validation::ValidRequest;

/// A step that takes longer counts as hung.
const STALLED: Duration = Duration::from_secs(120);

/// How long the probe that follows a failed step may take.
const PROBE: Duration = Duration::from_secs(10);

impl Infer {
    /// Whether requests are served: the batching task lives, every shard answers, no step hangs, and the last step
    /// succeeded. After a failed step a prefill of one token has to succeed, so health recovers without traffic.
    pub async fn health(&self) -> bool {
        let status = self.0.batcher.status();
        let stalled = status.running > 0 && status.at.elapsed() > STALLED;
        if !self.0.batcher.is_alive() || stalled {
            return false;
        }
        if let Err(error) = self.0.client.health().await {
            tracing::warn!(%error, "a shard is not healthy");
            return false;
        }
        !status.step_failed || self.probe().await
    }

    /// Runs a request of one token.
    async fn probe(&self) -> bool {
        let request = ValidRequest {
            input_ids: Arc::new([0]),
            chooser: NextTokenChooser::GREEDY,
            stopping: StoppingCriteria {
                max_new_tokens: 1,
                ignore_eos_token: true,
                min_new_tokens: 0,
            },
            stop_sequences: Vec::new(),
            dialect: Dialect::Tgi,
            top_n_tokens: 0,
            prefill_logprobs: false,
            priority: 0,
            cache_salt: None,
        };
        let Ok(mut samples) = self.0.batcher.submit(request, 1) else {
            return false;
        };
        let Some(mut events) = samples.pop() else {
            return false;
        };
        let succeeds = async {
            loop {
                match events.recv().await {
                    Some(Event::Started(_)) => {}
                    Some(Event::Step(_)) => return true,
                    Some(Event::Failed(_)) | None => return false,
                }
            }
        };
        tokio::time::timeout(PROBE, succeeds).await.unwrap_or(false)
    }
}
