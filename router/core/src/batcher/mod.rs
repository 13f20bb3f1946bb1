//! The task that owns the queue, the slots and the running requests, and is the only one that sends plans.
//!
//! Two plans are on their way at a time: the next one is computed as if every request got its token, and sent while the
//! shards run the previous one, so the device waits for nobody. An end that only a reply reveals (an end-of-sequence
//! token, a client that has gone, a failure) costs one row of the plan that is already there.
//!
//! Requests with grammars are in both plans too: worker threads take their tokens to the grammars while the shards
//! compute the next step, and the masks of that step follow its plan. The next plan goes out after them.
//!
//! The batcher passes ids on and does a small constant amount of work for a token: no text, no log line, no lock but
//! the send and the count of a tenant whose tokens are limited.

mod adapters;
mod candidates;
mod charge;
mod drafting;
mod handle;
mod in_flight;
mod kv_feed;
mod masks;
mod media;
mod next;
mod recovery;
mod reply;
mod running;
mod suspects;

use std::collections::VecDeque;
use std::sync::Arc;

use text_generation_client::types::{Row, StepReply, WarmupLimits};
use text_generation_client::{ClientError, ShardedClient};
use text_generation_grammar::Mask;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use self::adapters::AdapterStage;
pub(crate) use self::handle::{BatcherHandle, Status, Submitted};
use self::handle::{Mailbox, Submission};
pub use self::handle::{MediaShards, Shards};
use self::in_flight::InFlight;
pub use self::kv_feed::KvEventFeed;
use self::kv_feed::KvFeed;
use self::masks::Matching;
use self::media::arrival;
pub(crate) use self::recovery::FoundLost;
use self::recovery::{Recovery, Terms};
use self::running::RunningEntry;
use crate::error::InferError;
use crate::grammar::Workers;
use crate::grammar::mask_pool::{self, MaskPool};
use crate::hints::Answers;
use crate::kv_pool::KvPool;
use crate::media::MediaStage;
use crate::metrics::{AdapterMetrics, BatchMetrics};
use crate::policy::BatchLimits;
use crate::policy::arrivals::Arrivals;
use crate::policy::cost::StepCost;
use crate::policy::expectation::OutputLengths;
use crate::policy::windows::Windows;
use crate::queue::{Event, Queue};

type Answer = JoinHandle<Result<StepReply, ClientError>>;

struct Batcher {
    client: ShardedClient,
    cost: StepCost,
    windows: Windows,
    eos_token_ids: Vec<u32>,
    limits: BatchLimits,
    metrics: BatchMetrics,
    submissions: UnboundedReceiver<Submission>,
    adapters: AdapterStage,
    found_lost: mpsc::Receiver<FoundLost>,
    status: watch::Sender<Status>,
    queue: Queue,
    pool: KvPool,
    kv_feed: KvFeed,
    lengths: OutputLengths,
    /// From which later ones are drafted.
    answers: Answers,
    /// Who owns which row.
    rows: Vec<Option<RunningEntry>>,
    /// Rows whose owners have left, which the next plan tells the shards.
    dropped: Vec<Row>,
    workers: Option<Workers>,
    masks: MaskPool<Mask>,
    /// Where the model sees.
    media: Option<MediaStage>,
    /// Requests with grammars that may own rows.
    most_constrained: usize,
    /// The step whose tokens are being taken to grammars. No plan is sent meanwhile.
    matching: Option<Matching>,
    /// Plans that were sent and not answered, oldest first.
    in_flight: VecDeque<(InFlight, Answer)>,
    next_number: u64,
    /// Tokens that the running streams got since requests last joined them.
    decodes_since_joining: u32,
    /// Where the times of `arrivals` count from.
    epoch: Instant,
    arrivals: Arrivals,
    /// [`Plan::ratio`], of the last plan that had one.
    ratio: f32,
    last_reply: Option<Instant>,
    step_failed: bool,
    terms: Terms,
    /// Names the start of the shards that serves; empty where it has no name.
    group: Arc<str>,
    /// Set while the shards are lost. Nothing runs and no plan is sent meanwhile.
    recovery: Option<Recovery>,
    /// How often the shards have started again.
    restarts: u64,
}

impl Batcher {
    /// `warmup`: the limits that the shards must keep when they start again.
    fn new(
        shards: Shards,
        limits: BatchLimits,
        warmup: WarmupLimits,
        workers: Option<Workers>,
        mailbox: Mailbox,
    ) -> Self {
        let mut limits = limits;
        if let Some(media) = shards.media.as_ref().filter(|media| media.info.whole_spans) {
            // A chunk that has to end where an image does may be longer than planned by as much.
            let most = limits
                .max_batch_prefill_tokens
                .saturating_sub(media.longest);
            limits.max_batch_prefill_tokens = most.max(1);
        }
        let media = shards.media.map(|media| {
            let (
                client,
                MediaShards {
                    info, cost, rows, ..
                },
            ) = (shards.client.clone(), media);
            MediaStage::new(client, info, cost, rows)
        });
        let mut pool = KvPool::new(limits.max_batch_total_tokens, limits.prefix_caching);
        if let Some(feed) = &shards.kv_events {
            pool = pool.noting_events(&feed.model, shards.adapters.clone());
        }
        let ranks = shards.client.world_size();
        let drafts = shards.windows.widest() > 1;
        let names = shards.adapters.list().into_iter().map(|one| one.name);
        Self {
            client: shards.client,
            cost: shards.cost,
            eos_token_ids: shards.eos_token_ids,
            limits,
            metrics: BatchMetrics::new(
                limits.max_batch_total_tokens,
                shards.kv_cache_dtype,
                shards.windows.widest(),
            ),
            windows: shards.windows,
            submissions: mailbox.submissions,
            queue: Queue::new(AdapterMetrics::new(names)),
            adapters: AdapterStage::new(shards.adapters, ranks),
            found_lost: mailbox.found_lost,
            status: mailbox.status,
            pool,
            kv_feed: KvFeed::new(shards.kv_events),
            lengths: OutputLengths::default(),
            // Without drafts they are of no use.
            answers: Answers::new(if drafts { shards.answer_bytes } else { 0 }),
            rows: (0..limits.max_batch_size).map(|_| None).collect(),
            dropped: Vec::new(),
            workers,
            masks: MaskPool::new(shards.max_masks),
            media,
            most_constrained: mask_pool::most_rows(shards.max_masks),
            matching: None,
            in_flight: VecDeque::new(),
            next_number: 0,
            decodes_since_joining: 0,
            epoch: Instant::now(),
            arrivals: Arrivals::default(),
            ratio: limits.waiting_served_ratio.initial(),
            last_reply: None,
            step_failed: false,
            terms: Terms {
                limits: warmup,
                step_timeout: shards.step_timeout,
            },
            group: Arc::default(),
            recovery: None,
            restarts: 0,
        }
    }

    async fn run(mut self) {
        self.meet_group().await;
        loop {
            while let Ok(submission) = self.submissions.try_recv() {
                self.enqueue(submission);
            }
            self.queue.drop_gone();
            if let Some(limit) = self.limits.max_queue_time {
                self.queue.fail_late(limit);
            }
            if self.matching.is_none() && self.recovery.is_none() {
                self.prepare_images();
                self.prepare_adapters();
                self.send_plans();
            }
            self.publish();
            if self.recovery.is_some() {
                if !self.wait_for_shards().await {
                    return;
                }
                continue;
            }
            if let Some(matching) = &mut self.matching {
                tokio::select! {
                    biased;
                    arrivals = &mut matching.arrivals => self.matched(arrivals.ok()),
                    Some(submission) = self.submissions.recv() => {
                        self.enqueue(submission);
                    }
                }
                continue;
            }
            let next_from = self.next_from();
            let arrival = arrival(&mut self.media);
            let Some((first, answer)) = self.in_flight.front_mut() else {
                tokio::select! {
                    submission = self.submissions.recv() => match submission {
                        Some(submission) => self.enqueue(submission),
                        None => return,
                    },
                    arrived = arrival => self.arrived(&arrived),
                    Some(found) = self.found_lost.recv() => self.found_lost(&found),
                    error = self.client.lost(&self.group) => self.lose(Vec::new(), &error),
                }
                continue;
            };
            let due = first.due();
            let wake = next_from.unwrap_or(due).min(due);
            // While something runs, its answer tells whether the shards are there.
            while self.found_lost.try_recv().is_ok() {}
            tokio::select! {
                biased;
                reply = answer => self.answered(reply).await,
                () = sleep_until(wake) => if wake == due { self.overdue() },
                arrived = arrival => self.arrived(&arrived),
                Some(submission) = self.submissions.recv() => {
                    self.enqueue(submission);
                }
            }
        }
    }

    fn publish(&mut self) {
        self.kv_feed.forward(&mut self.pool);
        let running = self.rows.iter().flatten();
        let ratio = self.limits.waiting_served_ratio.shown(self.ratio);
        let status = Status {
            queued: self.queue.len(),
            waiting_served_ratio: ratio as f32,
            running: running.clone().count(),
            slots_used: self.pool.used(),
            step_failed: self.step_failed,
            recovering: self.recovery.is_some(),
            restarts: self.restarts,
            group: self.group.clone(),
        };
        let max_tokens: u64 = running.map(RunningEntry::longest).sum();
        self.metrics.queue_size.set(status.queued as f64);
        self.metrics.current_size.set(status.running as f64);
        self.metrics.waiting_served_ratio.set(ratio);
        self.metrics.current_max_tokens.set(max_tokens as f64);
        self.metrics.pool(status.slots_used, self.pool.cached());
        if let Some(media) = &self.media {
            media.publish();
        }
        self.adapters.publish();
        self.status.send_replace(status);
    }

    /// Takes the owner out of a row, which the shards are told with the next plan.
    fn vacate(&mut self, row: Row) -> Option<RunningEntry> {
        let running = self.rows.get_mut(row.index())?.take()?;
        self.dropped.push(row);
        Some(running)
    }

    /// A request leaves its row; what was computed of it stays in the prefix tree. `ended`: by the model or a stop string,
    /// so that its length says how long outputs get.
    fn release(&mut self, row: Row, ended: bool) {
        let Some(running) = self.vacate(row) else {
            return;
        };
        if running.entry.request.beams.is_some() {
            // A step of a beam search is no answer, and tells nothing of how long they get.
            running.leave(&mut self.pool);
            return;
        }
        running.keep_answer(&mut self.answers);
        let entry = running.leave(&mut self.pool);
        if ended {
            self.lengths.observe(entry.generated);
        } else {
            self.lengths.observe_cut(entry.generated);
        }
    }

    /// Queues what a client has sent.
    fn enqueue(&mut self, submission: Submission) {
        let adapter = submission.request.adapter.clone();
        let Submission {
            request,
            samples,
            since,
        } = submission;
        self.queue.push(request, samples, since);
        // The shards may have started again while it was on its way.
        if adapter.is_some_and(|adapter| adapter.weights.is_lost()) {
            self.end_changed();
        }
    }

    /// Ends a running request with an error. Nothing that it computed is trusted.
    fn fail(&mut self, row: Row, error: InferError) {
        if let Some(running) = self.vacate(row) {
            // The client may have gone.
            let _ = running.entry.events.send(Event::Failed(error));
            self.pool.discard(running.holding);
        }
    }
}
