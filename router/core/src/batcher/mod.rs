//! The task that owns the queue, the slots and the running requests, and is the only caller of prefill and decode.
//!
//! It passes ids on and does a small constant amount of work for a token: no text, no log line, no lock but the send.

mod running;
mod step;
#[cfg(test)]
mod tests;

use std::time::Instant;

use text_generation_client::ShardedClient;
use text_generation_client::types::CachedBatch;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

use self::running::Running;
use crate::budget::Demand;
use crate::error::InferError;
use crate::metrics::BatchMetrics;
use crate::policy::{self, Action, Progress};
use crate::queue::{Event, Queue};
use crate::types::BatchLimits;
use crate::validation::ValidRequest;

/// What the batcher last said about itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Status {
    pub(crate) queued: usize,
    pub(crate) running: usize,
    pub(crate) slots_used: u32,
    /// The last call to the shards failed.
    pub(crate) step_failed: bool,
    /// When this was said: before every step.
    pub(crate) at: Instant,
}

#[derive(Debug)]
struct Submission {
    request: ValidRequest,
    /// One for each sample.
    events: Vec<UnboundedSender<Event>>,
}

/// The way to the batcher. It ends when its last handle is gone and every request has ended.
#[derive(Debug, Clone)]
pub(crate) struct BatcherHandle {
    submissions: UnboundedSender<Submission>,
    status: watch::Receiver<Status>,
}

impl BatcherHandle {
    /// Starts the task on the current tokio runtime.
    pub(crate) fn spawn(client: ShardedClient, limits: BatchLimits) -> Self {
        let (submissions, receiver) = mpsc::unbounded_channel();
        let idle = Status {
            queued: 0,
            running: 0,
            slots_used: 0,
            step_failed: false,
            at: Instant::now(),
        };
        let (publisher, status) = watch::channel(idle);
        let batcher = Batcher {
            client,
            limits,
            metrics: BatchMetrics::new(limits.max_batch_total_tokens),
            submissions: receiver,
            status: publisher,
            queue: Queue::default(),
            running: Running::new(limits.max_batch_total_tokens),
            batches: Vec::new(),
            uncleared: Vec::new(),
            next_batch_id: 0,
            progress: Progress::default(),
            step_failed: false,
        };
        tokio::spawn(batcher.run());
        Self {
            submissions,
            status,
        }
    }

    /// Queues `samples` generations of one prompt, which is computed once. Closing or dropping a receiver cancels its
    /// sample: its row and slots are free within two steps. What a receiver holds is bounded by `max_new_tokens`.
    pub(crate) fn submit(
        &self,
        request: ValidRequest,
        samples: u32,
    ) -> Result<Vec<UnboundedReceiver<Event>>, InferError> {
        let (events, receivers) = (0..samples).map(|_| mpsc::unbounded_channel()).unzip();
        let submission = Submission { request, events };
        self.submissions
            .send(submission)
            .map_err(|_| InferError::Generation("the batching task has stopped".to_owned()))?;
        Ok(receivers)
    }

    pub(crate) fn is_alive(&self) -> bool {
        !self.submissions.is_closed()
    }

    pub(crate) fn status(&self) -> Status {
        *self.status.borrow()
    }
}

struct Batcher {
    client: ShardedClient,
    limits: BatchLimits,
    metrics: BatchMetrics,
    submissions: UnboundedReceiver<Submission>,
    status: watch::Sender<Status>,
    queue: Queue,
    running: Running,
    /// What the shards hold: the decoded batch and, after a prefill, the new one.
    batches: Vec<CachedBatch>,
    /// Batches that failed and that the shards have not confirmed to have dropped.
    uncleared: Vec<u64>,
    next_batch_id: u64,
    progress: Progress,
    step_failed: bool,
}

impl Batcher {
    async fn run(mut self) {
        loop {
            while let Ok(submission) = self.submissions.try_recv() {
                self.queue.push(submission.request, submission.events);
            }
            self.queue.drop_gone();
            if let Some(limit) = self.limits.max_queue_time {
                self.queue.fail_late(limit);
            }
            self.publish();
            match self.next_action() {
                Action::Prefill { count, concat } => self.prefill(count, concat).await,
                Action::Decode => self.decode().await,
                Action::Wait => match self.submissions.recv().await {
                    Some(submission) => self.queue.push(submission.request, submission.events),
                    None => return,
                },
            }
        }
    }

    fn next_action(&self) -> Action {
        if self.queue.is_empty() && !self.running.is_empty() {
            return Action::Decode;
        }
        let running: Vec<Demand> = self.running.demands().collect();
        policy::next_action(
            self.queue.candidates(),
            &running,
            self.progress,
            &self.limits,
        )
    }

    fn publish(&self) {
        let status = Status {
            queued: self.queue.len(),
            running: self.running.len(),
            slots_used: self.running.slots_used(),
            step_failed: self.step_failed,
            at: Instant::now(),
        };
        let max_tokens: u64 = self
            .running
            .demands()
            .map(|demand| u64::from(demand.limit()))
            .sum();
        self.metrics.queue_size.set(status.queued as f64);
        self.metrics.current_size.set(status.running as f64);
        self.metrics.current_max_tokens.set(max_tokens as f64);
        self.metrics.slots_used.set(status.slots_used);
        self.status.send_replace(status);
    }

    /// Takes a request out and gives its slots back.
    fn release(&mut self, id: u64) {
        let slots = self.running.remove(id);
        self.running.free(&slots);
    }

    /// Ends a running request with an error. The shards hold it no more, or will be told so.
    fn fail(&mut self, id: u64, error: InferError) {
        if let Some(request) = self.running.get_mut(id) {
            // The client may have gone.
            let _ = request.events.send(Event::Failed(error));
        }
        self.release(id);
    }
}
