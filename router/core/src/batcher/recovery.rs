//! Recovery from the loss of the shards: a process has ended or hangs, or the ranks of the group disagree.
//!
//! Whoever started the shards starts them again, and all that ran waits meanwhile, as requests that pause do: from its
//! ids, its seed and its place in its grammar each goes on where it was. Tokens that had not come count as never chosen;
//! the same ones are chosen again.

use std::sync::Arc;

use text_generation_client::types::WarmupLimits;
use text_generation_client::{ClientError, Regained};
use tokio::task::JoinError;
use tokio::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

use super::Batcher;
use super::in_flight::InFlight;
use super::suspects::Findings;
use crate::error::InferError;
use crate::grammar::mask_pool::{self, MaskPool};
use crate::policy::cost::StepCost;
use crate::queue::Entry;
use crate::standing::Standing;

/// How often those whose clients have gone, or that waited too long, are looked for while nothing else happens.
const TIDY: Duration = Duration::from_millis(100);

/// How long steps may take, and what the shards must be able to do when they start again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) limits: WarmupLimits,
    /// No step may take longer.
    pub(super) step_timeout: Duration,
}

/// Somebody who asked the shards found that they are lost. `restarts` were there when it asked.
#[derive(Debug)]
pub(crate) struct FoundLost {
    pub(crate) restarts: u64,
    pub(crate) error: ClientError,
}

/// The shards start again.
#[derive(Debug)]
pub(super) struct Recovery {
    began: Instant,
    regained: AbortOnDropHandle<Regained>,
}

impl Batcher {
    /// Keeps the queue while the shards start again. Returns whether there is still somebody to wait for.
    pub(super) async fn wait_for_shards(&mut self) -> bool {
        let Some(recovery) = &mut self.recovery else {
            return true;
        };
        let left = self.submissions.is_closed() && self.submissions.is_empty();
        if left && self.queue.len() == 0 {
            return false;
        }
        tokio::select! {
            biased;
            regained = &mut recovery.regained => self.recovered(regained),
            Some(submission) = self.submissions.recv() => {
                self.enqueue(submission);
            }
            () = tokio::time::sleep(TIDY) => {}
        }
        true
    }

    /// The step that runs takes too long.
    pub(super) fn overdue(&mut self) {
        if let Some((hung, _)) = self.in_flight.front() {
            let error = hung.overdue();
            self.lose(Vec::new(), &error);
        }
    }

    /// The shards are lost, as somebody says who has asked them while nothing ran.
    pub(super) fn found_lost(&mut self, found: &FoundLost) {
        if found.restarts == self.restarts {
            self.lose(Vec::new(), &found.error);
        }
    }

    /// The shards are lost, and with them these `plans` and those in flight.
    pub(super) fn lose(&mut self, mut plans: Vec<InFlight>, error: &ClientError) {
        for (plan, answer) in self.in_flight.drain(..) {
            answer.abort();
            plans.push(plan);
        }
        for plan in &plans {
            self.method(plan).failure.increment(1);
        }
        let running = self.rows.iter().flatten().count();
        let step = plans.first().map(|plan| plan.number);
        tracing::error!(%error, step, running, "the shards are lost: requests wait until they serve again");
        self.judge(&plans);
        self.forget_rows();
        let (client, limits) = (self.client.clone(), self.terms.limits);
        let (lost, reason) = (self.group.to_string(), error.to_string());
        let adapters = self.adapters.adapters.clone();
        adapters.shards_lost();
        let regain = async move {
            let live = || adapters.live();
            client.regain(lost, reason, limits, live).await
        };
        self.recovery = Some(Recovery {
            began: Instant::now(),
            regained: AbortOnDropHandle::new(tokio::spawn(regain)),
        });
        self.publish();
    }

    /// Ends the request that was on trial, and notes who has to be tried.
    fn judge(&mut self, plans: &[InFlight]) {
        let found = Findings::of(plans, &self.rows);
        if let Some(row) = found.guilty {
            self.fail(row, InferError::ShardLost);
        }
        let suspect: fn(u32) -> Standing = |generated| Standing::Suspect { generated };
        let witness: fn(u32) -> Standing = |generated| Standing::Witness { generated };
        let marks = [(found.suspects, suspect), (found.witnesses, witness)];
        for (rows, standing) in marks {
            for row in rows {
                if let Some(Some(running)) = self.rows.get_mut(row.index()) {
                    running.entry.standing = standing(running.entry.generated);
                }
            }
        }
    }

    /// Nothing of what was computed is there any more. Who ran waits again, where it stood.
    pub(super) fn forget_rows(&mut self) {
        for running in &mut self.rows {
            if let Some(mut running) = running.take() {
                running.entry.looks_again = running.entry.generated == 0;
                self.queue.put_back(running.entry);
            }
        }
        self.pool.reset();
        self.masks.reset();
        self.adapters.reset();
        if let Some(media) = &mut self.media {
            media.reset();
        }
        self.dropped.clear();
        self.next_number = 0;
        self.decodes_since_joining = 0;
    }

    /// The shards serve again, or the task that waits for them has panicked.
    fn recovered(&mut self, regained: Result<Regained, JoinError>) {
        let Some(recovery) = self.recovery.take() else {
            return;
        };
        let Regained {
            group,
            warmup,
            lost_adapters,
        } = match regained {
            Ok(regained) => regained,
            Err(error) => {
                let error = ClientError::Connection(error.to_string());
                return self.lose(Vec::new(), &error);
            }
        };
        self.group = Arc::from(group);
        // Only what was measured is said: these shards have the limits and the speed of those before.
        if !warmup.cost.tokens.is_empty() {
            self.cost = StepCost::from(&warmup.cost);
        }
        self.masks = MaskPool::new(warmup.max_masks);
        self.most_constrained = mask_pool::most_rows(warmup.max_masks);
        if let Some(media) = &mut self.media {
            media.put_again();
        }
        self.adapters.adapters.shards_back(&lost_adapters);
        self.end_changed();
        self.step_failed = false;
        self.last_reply = None;
        self.restarts += 1;
        let took = recovery.began.elapsed();
        self.metrics.shard_restarts.increment(1);
        self.metrics.shard_recovery.record(took);
        let (seconds, waiting) = (took.as_secs_f64(), self.queue.len());
        tracing::info!(seconds, waiting, "the shards serve again: requests go on");
    }

    /// Ends those that wait and whose adapter the shards do not have any more as it was: other weights would go on with
    /// their texts.
    pub(super) fn end_changed(&mut self) {
        let of_changed = |entry: &Entry| {
            let adapter = entry.request.adapter.as_ref();
            adapter.is_some_and(|adapter| adapter.weights.is_lost())
        };
        self.queue
            .fail_where(of_changed, &InferError::AdapterChanged);
    }

    /// How long a step may take on the device: generous, for what warm-up measured may be far off on a machine that is
    /// busy with other things. Where nothing was measured, as long as any.
    pub(super) fn limit(&self, predicted: Duration) -> Duration {
        const LEAST: Duration = Duration::from_secs(10);
        const FACTOR: u32 = 8;
        let most = self.terms.step_timeout;
        if predicted.is_zero() {
            return most;
        }
        LEAST
            .saturating_add(predicted.saturating_mul(FACTOR))
            .min(most)
    }

    /// Asks for the name of the group, by which a later one is told from it.
    pub(super) async fn meet_group(&mut self) {
        match self.client.group().await {
            Ok(group) => self.group = Arc::from(group.unwrap_or_default()),
            Err(error) => tracing::warn!(%error, "the shards do not say which group they are"),
        }
    }
}
