//! Health of the server: whether it makes progress.
//!
//! Probes come without a key and from many places, so their number must cost the shards nothing: one check runs at a
//! time, and its outcome holds for a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use text_generation_client::types::NextTokenChooser;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::Infer;
use crate::batcher::FoundLost;
use crate::media::Media;
use crate::queue::Event;
use crate::tenant::Tenant;
use crate::types::observer::Observed;
use crate::types::{Dialect, SpecialTokens, StoppingCriteria, TextContent};
use crate::validation::ValidRequest;

/// How long the probe that follows a failed step may take.
const PROBE: Duration = Duration::from_secs(10);

/// How long the outcome of a check holds.
const FRESH: Duration = Duration::from_secs(1);

/// A caller gets its answer within this time, whatever the shards do.
const ANSWER: Duration = Duration::from_secs(2);

/// Whether requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Requests are served.
    Healthy,
    /// The shards were lost and start again. Requests are kept, and go on when the shards are there.
    Recovering,
    /// A shard does not answer, the last step has failed, or the batching task has ended.
    Unhealthy,
}

/// The last check of the shards, or the one that is running.
#[derive(Debug, Default)]
pub(super) struct HealthCheck(Mutex<Option<Check>>);

#[derive(Debug, Clone)]
struct Check {
    /// It runs a request as well, because a step had failed.
    probes: bool,
    /// Whether the shards are healthy, and when that was found; nothing while it runs.
    outcome: watch::Receiver<Option<(bool, Instant)>>,
}

impl Check {
    /// Starts a check, which goes on when its caller has gone.
    fn start(infer: Infer, probes: bool) -> Self {
        let (found, outcome) = watch::channel(None);
        tokio::spawn(async move {
            let healthy = infer.check(probes).await;
            found.send_replace(Some((healthy, Instant::now())));
        });
        Self { probes, outcome }
    }

    /// It runs, or has ended less than a second ago.
    fn is_fresh(&self) -> bool {
        match *self.outcome.borrow() {
            Some((_, at)) => at.elapsed() < FRESH,
            // A check that ended without an outcome has panicked.
            None => self.outcome.has_changed().is_ok(),
        }
    }

    async fn healthy(mut self) -> bool {
        let outcome = self.outcome.wait_for(Option::is_some).await;
        outcome.is_ok_and(|outcome| outcome.is_some_and(|(healthy, _)| healthy))
    }
}

impl Infer {
    /// Whether requests are served: the batching task lives, every shard answers, and the last step succeeded. After a
    /// failed step a prefill of one token has to succeed, so health recovers without traffic. Where it finds that shards
    /// were lost while nothing ran, recovery begins.
    ///
    /// Answers within two seconds. What the shards say may be a second old.
    pub async fn health(&self) -> Health {
        let status = self.0.batcher.status();
        if !self.0.batcher.is_alive() {
            return Health::Unhealthy;
        }
        if status.recovering {
            return Health::Recovering;
        }
        let check = self.current_check(status.step_failed);
        match timeout(ANSWER, check.healthy()).await {
            Ok(true) => Health::Healthy,
            Ok(false) | Err(_) => Health::Unhealthy,
        }
    }

    /// The check that runs or has just ended, or else a new one.
    fn current_check(&self, probes: bool) -> Check {
        let last = &self.0.health.0;
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        match last.as_ref() {
            Some(check) if check.is_fresh() && (check.probes || !probes) => check.clone(),
            _ => last.insert(Check::start(self.clone(), probes)).clone(),
        }
    }

    async fn check(&self, probes: bool) -> bool {
        let status = self.0.batcher.status();
        if let Err(error) = self.0.client.still_serves(&status.group).await {
            tracing::warn!(%error, "a shard is not healthy");
            if error.is_group_lost() {
                let restarts = status.restarts;
                self.0.batcher.found_lost(FoundLost { restarts, error });
            }
            return false;
        }
        !probes || self.probe().await
    }

    /// Runs a request of one token.
    async fn probe(&self) -> bool {
        let request = ValidRequest {
            input_ids: Arc::new([0]),
            chooser: NextTokenChooser::GREEDY,
            stopping: StoppingCriteria {
                max_new_tokens: 1,
                ignore_eos_token: true,
                stop_token_ids: Arc::default(),
            },
            stop_sequences: Vec::new(),
            dialect: Dialect::Tgi,
            text: TextContent {
                includes_stop: true,
                special_tokens: SpecialTokens::Hidden,
            },
            bad_words: None,
            healing: None,
            top_n_tokens: 0,
            beams: None,
            prefill_logprobs: false,
            logprobs_from: 0,
            grammar: None,
            adapter: None,
            prediction: None,
            media: Media::default(),
            priority: 0,
            cache_salt: None,
            tenant: Tenant::default(),
            observed: Observed::default(),
            trace_link: None,
        };
        let Ok(mut samples) = self.0.batcher.submit(request, vec![None]) else {
            return false;
        };
        let Some(mut sample) = samples.pop() else {
            return false;
        };
        let succeeds = async {
            loop {
                match sample.events.recv().await {
                    Some(Event::Started(_)) => {}
                    Some(Event::Step(_)) => return true,
                    Some(Event::Failed(_)) | None => return false,
                }
            }
        };
        timeout(PROBE, succeeds).await.unwrap_or(false)
    }
}
