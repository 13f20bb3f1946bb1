//! The task that owns the queue, the slots and the running requests, and is the only one that sends plans.
//!
//! Two plans are on their way at a time: the next one is computed as if every request got its token, and sent while the
//! shards run the one before, so the device waits for nobody. What a reply reveals (an end-of-sequence token, a client
//! that has gone, a failure) costs one row of the plan that is already there.
//!
//! Requests with grammars are in both plans too: worker threads take their tokens to the grammars while the shards
//! compute the next step, and the masks of that step follow its plan. The plan after it goes out behind them.
//!
//! The batcher passes ids on and does a small constant amount of work for a token: no text, no log line, no lock but
//! the send.

mod charge;
mod masks;
mod next;
mod reply;
mod running;

use std::collections::VecDeque;
use std::time::Instant;

use text_generation_client::types::StepReply;
use text_generation_client::{ClientError, ShardedClient};
use text_generation_grammar::Mask;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::masks::Matching;
use self::next::InFlight;
use self::running::Running;
use crate::error::InferError;
use crate::grammar::mask_pool::{self, MaskPool};
use crate::grammar::{Constraint, Workers};
use crate::kv_pool::KvPool;
use crate::metrics::BatchMetrics;
use crate::permit::PermitHalf;
use crate::policy::cost::StepCost;
use crate::policy::expectation::OutputLengths;
use crate::queue::{Event, Queue, Sample};
use crate::types::BatchLimits;
use crate::validation::ValidRequest;

/// Plans that are on their way to the shards: the one that runs, and the next.
const DEPTH: usize = 2;

/// What the batcher last said about itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Status {
    pub(crate) queued: usize,
    pub(crate) running: usize,
    /// Slots in use; those of the prefix tree that nobody reads are not.
    pub(crate) slots_used: u32,
    /// The last call to the shards failed.
    pub(crate) step_failed: bool,
    /// When this was said: after every step.
    pub(crate) at: Instant,
}

#[derive(Debug)]
struct Submission {
    request: ValidRequest,
    samples: Vec<Sample>,
}

/// What the batcher must know of the shards.
#[derive(Debug, Clone)]
pub struct Shards {
    pub client: ShardedClient,
    pub cost: StepCost,
    /// They end a generation.
    pub eos_token_ids: Vec<u32>,
    /// Mask slots, slot 0 among them; where there are fewer than three, grammars are refused.
    pub max_masks: u32,
}

/// The way to the batcher. It ends when its last handle is gone and every request has ended.
#[derive(Debug, Clone)]
pub(crate) struct BatcherHandle {
    submissions: UnboundedSender<Submission>,
    status: watch::Receiver<Status>,
}

impl BatcherHandle {
    /// Starts the task on the current tokio runtime.
    /// `workers` follow the grammars of requests, where requests may have any.
    pub(crate) fn spawn(shards: Shards, limits: BatchLimits, workers: Option<Workers>) -> Self {
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
            client: shards.client,
            cost: shards.cost,
            eos_token_ids: shards.eos_token_ids,
            limits,
            metrics: BatchMetrics::new(limits.max_batch_total_tokens),
            submissions: receiver,
            status: publisher,
            queue: Queue::new(),
            pool: KvPool::new(limits.max_batch_total_tokens, limits.prefix_caching),
            lengths: OutputLengths::default(),
            rows: (0..limits.max_batch_size).map(|_| None).collect(),
            dropped: Vec::new(),
            workers,
            masks: MaskPool::new(shards.max_masks),
            most_constrained: mask_pool::most_rows(shards.max_masks),
            matching: None,
            in_flight: VecDeque::new(),
            next_number: 0,
            steps_without_chunks: 0,
            last_reply: None,
            uncleared: false,
            step_failed: false,
        };
        tokio::spawn(batcher.run());
        Self {
            submissions,
            status,
        }
    }

    /// Queues a generation of one prompt for each of `permits`, which is given back when it ends. Closing or dropping a
    /// receiver cancels its generation: its row and slots are free within two steps. What a receiver holds is bounded
    /// by `max_new_tokens`.
    pub(crate) fn submit(
        &self,
        request: ValidRequest,
        permits: Vec<Option<PermitHalf>>,
    ) -> Result<Vec<UnboundedReceiver<Event>>, InferError> {
        let sample = |permit| {
            let (events, receiver) = mpsc::unbounded_channel();
            let sample = Sample {
                events,
                permit,
                constraint: request.grammar.as_ref().map(Constraint::new),
            };
            (sample, receiver)
        };
        let (samples, receivers) = permits.into_iter().map(sample).unzip();
        self.submissions
            .send(Submission { request, samples })
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

type Answer = JoinHandle<Result<StepReply, ClientError>>;

struct Batcher {
    client: ShardedClient,
    cost: StepCost,
    eos_token_ids: Vec<u32>,
    limits: BatchLimits,
    metrics: BatchMetrics,
    submissions: UnboundedReceiver<Submission>,
    status: watch::Sender<Status>,
    queue: Queue,
    pool: KvPool,
    lengths: OutputLengths,
    /// Who owns which row.
    rows: Vec<Option<Running>>,
    /// Rows whose owners have left, which the next plan tells the shards.
    dropped: Vec<u32>,
    workers: Option<Workers>,
    masks: MaskPool<Mask>,
    /// Requests with grammars that may own rows.
    most_constrained: usize,
    /// The step whose tokens are being taken to grammars. No plan is sent meanwhile.
    matching: Option<Matching>,
    /// Plans that were sent and not answered, oldest first.
    in_flight: VecDeque<(InFlight, Answer)>,
    next_number: u64,
    steps_without_chunks: u32,
    last_reply: Option<Instant>,
    /// A step failed, and the shards have not confirmed that they dropped everything.
    uncleared: bool,
    step_failed: bool,
}

impl Batcher {
    async fn run(mut self) {
        loop {
            while let Ok(submission) = self.submissions.try_recv() {
                self.queue.push(submission.request, submission.samples);
            }
            self.queue.drop_gone();
            if let Some(limit) = self.limits.max_queue_time {
                self.queue.fail_late(limit);
            }
            if self.matching.is_none() {
                self.send_plans().await;
            }
            self.publish();
            if let Some(matching) = &mut self.matching {
                tokio::select! {
                    biased;
                    arrivals = &mut matching.arrivals => self.matched(arrivals.ok()),
                    Some(submission) = self.submissions.recv() => {
                        self.queue.push(submission.request, submission.samples);
                    }
                }
                continue;
            }
            let Some((_, answer)) = self.in_flight.front_mut() else {
                match self.submissions.recv().await {
                    Some(submission) => self.queue.push(submission.request, submission.samples),
                    None => return,
                }
                continue;
            };
            tokio::select! {
                biased;
                reply = answer => self.answered(reply).await,
                Some(submission) = self.submissions.recv() => {
                    self.queue.push(submission.request, submission.samples);
                }
            }
        }
    }

    fn publish(&self) {
        let running = self.rows.iter().flatten();
        let status = Status {
            queued: self.queue.len(),
            running: running.clone().count(),
            slots_used: self.pool.used(),
            step_failed: self.step_failed,
            at: Instant::now(),
        };
        let max_tokens: u64 = running.map(Running::longest).sum();
        self.metrics.queue_size.set(status.queued as f64);
        self.metrics.current_size.set(status.running as f64);
        self.metrics.current_max_tokens.set(max_tokens as f64);
        self.metrics.slots_used.set(status.slots_used);
        self.metrics.slots_cached.set(self.pool.cached());
        self.status.send_replace(status);
    }

    /// Takes the owner out of a row, which the shards are told with the next plan.
    fn vacate(&mut self, row: u32) -> Option<Running> {
        let running = self.rows.get_mut(row as usize)?.take()?;
        self.dropped.push(row);
        Some(running)
    }

    /// A request leaves its row; what was computed of it stays in the prefix tree.
    fn release(&mut self, row: u32) {
        if let Some(running) = self.vacate(row) {
            let cut = running.was_cut();
            let entry = running.leave(&mut self.pool);
            if cut {
                self.lengths.observe_cut(entry.generated);
            } else {
                self.lengths.observe(entry.generated);
            }
        }
    }

    /// Ends a running request with an error. Nothing that it computed is trusted.
    fn fail(&mut self, row: u32, error: InferError) {
        if let Some(running) = self.vacate(row) {
            // The client may have gone.
            let _ = running.entry.events.send(Event::Failed(error));
            self.pool.discard(running.holding);
        }
    }
}
