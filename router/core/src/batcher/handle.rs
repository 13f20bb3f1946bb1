//! Handle of the batching task.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use text_generation_client::ShardedClient;
use text_generation_client::types::{MediaCost, MediaInfo, WarmupLimits};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Batcher, FoundLost, KvEventFeed};
use crate::adapters::Adapters;
use crate::error::InferError;
use crate::grammar::{Constraint, Workers};
use crate::permit::PermitHalf;
use crate::policy::BatchLimits;
use crate::policy::cost::StepCost;
use crate::policy::windows::Windows;
use crate::queue::{Event, Sample};
use crate::validation::ValidRequest;

/// What the batcher last said about itself.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    pub(crate) queued: usize,
    /// How many must wait for each one that decodes before they join, when this last mattered.
    pub(crate) waiting_served_ratio: f32,
    pub(crate) running: usize,
    /// Slots in use; those of the prefix tree that nobody reads are not.
    pub(crate) slots_used: u32,
    /// The last call to the shards failed.
    pub(crate) step_failed: bool,
    /// The shards are lost and start again.
    pub(crate) recovering: bool,
    /// How often they have.
    pub(crate) restarts: u64,
    /// Names the start of the shards that serves; empty where it has no name.
    pub(crate) group: Arc<str>,
}

/// The other end of a [`Sample`].
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) events: UnboundedReceiver<Event>,
    pub(crate) stopped: Arc<AtomicBool>,
}

impl Submitted {
    /// With the end that sends.
    pub(crate) fn channel() -> (UnboundedSender<Event>, Self) {
        let (sender, events) = mpsc::unbounded_channel();
        let stopped = Arc::default();
        (sender, Self { events, stopped })
    }
}

/// A sample and its other end; `written` is what it has of its text already.
fn sample(
    permit: Option<PermitHalf>,
    written: Vec<u32>,
    constraint: Option<Constraint>,
) -> (Sample, Submitted) {
    let (events, submitted) = Submitted::channel();
    let sample = Sample {
        events,
        stopped: submitted.stopped.clone(),
        permit,
        written,
        constraint,
    };
    (sample, submitted)
}

/// One prompt with its samples, on its way to the queue.
#[derive(Debug)]
pub(super) struct Submission {
    pub(super) request: ValidRequest,
    pub(super) samples: Vec<Sample>,
    /// When its client's request came, where that was before.
    pub(super) since: Option<Instant>,
}

/// The batcher's ends of the channels.
#[derive(Debug)]
pub(super) struct Mailbox {
    pub(super) submissions: UnboundedReceiver<Submission>,
    pub(super) found_lost: mpsc::Receiver<FoundLost>,
    pub(super) status: watch::Sender<Status>,
}

/// What the batcher must know of the shards.
#[derive(Debug, Clone)]
pub struct Shards {
    pub client: ShardedClient,
    pub cost: StepCost,
    /// How many tokens of a request a step may compute.
    pub windows: Windows,
    /// Bytes of earlier answers that later ones are drafted from; 0: none are kept.
    pub answer_bytes: usize,
    /// They end a generation.
    pub eos_token_ids: Vec<u32>,
    /// Mask slots, slot 0 among them; where there are fewer than three, grammars are refused.
    pub max_masks: u32,
    /// Whether large steps are computed in overlapped halves; shards that start again do as those before.
    pub overlapped_halves: bool,
    /// Number type of stored keys and values.
    pub kv_cache_dtype: String,
    /// A step that takes longer hangs, and the shards are lost.
    pub step_timeout: Duration,
    /// Hears of what is cached.
    pub kv_events: Option<KvEventFeed>,
    /// Where images are served.
    pub media: Option<MediaShards>,
    /// That requests may name.
    pub adapters: Adapters,
}

/// What the batcher must know of the shards' encoder of images.
#[derive(Debug, Clone)]
pub struct MediaShards {
    pub info: MediaInfo,
    pub cost: MediaCost,
    /// Of the media pool.
    pub rows: u32,
    /// Of all views of the largest image.
    pub max_pixels: u32,
    /// Rows of the largest image.
    pub longest: u32,
}

/// The way to the batcher. It ends when its last handle is gone and every request has ended.
#[derive(Debug, Clone)]
pub(crate) struct BatcherHandle {
    submissions: UnboundedSender<Submission>,
    losses: mpsc::Sender<FoundLost>,
    status: watch::Receiver<Status>,
    /// Why the task has panicked.
    panic: watch::Receiver<Option<String>>,
}

impl BatcherHandle {
    /// Starts the task on the current tokio runtime.
    /// `workers` follow the grammars of requests, where requests may have any; `warmup` are the limits that the shards
    /// must keep when they start again.
    pub(crate) fn spawn(
        shards: Shards,
        limits: BatchLimits,
        warmup: WarmupLimits,
        workers: Option<Workers>,
    ) -> Self {
        let (submissions, receiver) = mpsc::unbounded_channel();
        let (losses, found_lost) = mpsc::channel(1);
        let idle = Status {
            queued: 0,
            waiting_served_ratio: limits.waiting_served_ratio.initial(),
            running: 0,
            slots_used: 0,
            step_failed: false,
            recovering: false,
            restarts: 0,
            group: Arc::default(),
        };
        let (publisher, status) = watch::channel(idle);
        let mailbox = Mailbox {
            submissions: receiver,
            found_lost,
            status: publisher,
        };
        let batcher = Batcher::new(shards, limits, warmup, workers, mailbox);
        Self {
            submissions,
            losses,
            status,
            panic: watch_over(tokio::spawn(batcher.run())),
        }
    }

    /// Queues a generation of one prompt for each of `permits`, which is given back when it ends. Closing or dropping
    /// its events cancels a generation: its row and slots are free within two steps. What they hold is bounded by
    /// `max_new_tokens`.
    pub(crate) fn submit(
        &self,
        request: ValidRequest,
        permits: Vec<Option<PermitHalf>>,
    ) -> Result<Vec<Submitted>, InferError> {
        let constraint = || {
            Constraint::new(
                request.grammar.as_ref(),
                request.healing.as_ref(),
                request.bad_words.as_ref(),
            )
        };
        let samples = permits
            .into_iter()
            .map(|permit| sample(permit, Vec::new(), constraint()))
            .unzip();
        self.queue(request, samples, None)
    }

    /// Queues a step of a beam search: one generation for each of `texts`, which is what it has of its text already. They
    /// stand in the queue where one that came at `since` does.
    pub(crate) fn submit_steps(
        &self,
        request: ValidRequest,
        texts: Vec<Vec<u32>>,
        since: Instant,
    ) -> Result<Vec<Submitted>, InferError> {
        let samples = texts
            .into_iter()
            .map(|written| sample(None, written, None))
            .unzip();
        self.queue(request, samples, Some(since))
    }

    fn queue(
        &self,
        request: ValidRequest,
        (samples, submitted): (Vec<Sample>, Vec<Submitted>),
        since: Option<Instant>,
    ) -> Result<Vec<Submitted>, InferError> {
        let submission = Submission {
            request,
            samples,
            since,
        };
        self.submissions
            .send(submission)
            .map_err(|_| InferError::Generation("the batching task has stopped".to_owned()))?;
        Ok(submitted)
    }

    pub(crate) fn is_alive(&self) -> bool {
        !self.submissions.is_closed()
    }

    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The shards are lost, as was found while nothing ran. Where something runs the batcher finds it itself.
    pub(crate) fn found_lost(&self, found: FoundLost) {
        // Somebody else may have said so.
        let _ = self.losses.try_send(found);
    }

    /// Resolves with the reason when the task has panicked, and never otherwise.
    pub(crate) async fn panicked(&self) -> String {
        let mut panic = self.panic.clone();
        if let Ok(reason) = panic.wait_for(Option::is_some).await
            && let Some(reason) = reason.clone()
        {
            return reason;
        }
        std::future::pending().await
    }
}

/// Tells why a task has panicked.
fn watch_over(task: JoinHandle<()>) -> watch::Receiver<Option<String>> {
    let (found, reason) = watch::channel(None);
    tokio::spawn(async move {
        if let Err(error) = task.await
            && error.is_panic()
        {
            found.send_replace(Some(error.to_string()));
        }
    });
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_of_the_task_is_told_and_an_orderly_end_is_not() {
        let mut reason = watch_over(tokio::spawn(async { panic!("no such row") }));
        let told = reason.wait_for(Option::is_some).await.unwrap().clone();
        assert!(told.unwrap().contains("no such row"));
        let mut reason = watch_over(tokio::spawn(async {}));
        assert!(reason.wait_for(Option::is_some).await.is_err());
    }
}
