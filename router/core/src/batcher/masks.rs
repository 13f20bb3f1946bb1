//! Token masks of constrained requests: their grammars take the tokens of one step while the shards compute the next
//! one, and the masks of that one follow its plan.

use futures::future::try_join;
use text_generation_client::types::{AllowedTokens, MaskWrite, Row, StepMasks, StepPlan};
use text_generation_grammar::{GrammarError, Mask, MaskForm};
use tokio::sync::oneshot;

use super::in_flight::InFlight;
use super::{Answer, Batcher};
use crate::error::InferError;
use crate::grammar::Arrival;
use crate::queue::Event;

/// The constrained tokens of one step, on their way through the worker threads.
#[derive(Debug)]
pub(super) struct Matching {
    rows: Vec<Row>,
    pub(super) arrivals: oneshot::Receiver<Vec<Arrival>>,
}

impl Batcher {
    /// Sends a plan. Its step is answered when the shards have taken its masks too, which go into the sender that comes
    /// back where there are constrained rows.
    pub(super) fn send(&self, plan: StepPlan) -> (Option<oneshot::Sender<StepMasks>>, Answer) {
        let constrained = !plan.constrained.is_empty();
        let step = self.client.step(plan);
        if !constrained {
            return (None, tokio::spawn(step));
        }
        self.metrics.grammar_steps.increment(1);
        let client = self.client.clone();
        let (sender, masks) = oneshot::channel();
        let constrain = async move {
            match masks.await {
                Ok(masks) => client.constrain(masks).await,
                // The batching task has stopped.
                Err(_) => Ok(()),
            }
        };
        let answer = tokio::spawn(async move {
            let (reply, ()) = try_join(step, constrain).await?;
            Ok(reply)
        });
        (Some(sender), answer)
    }

    /// Takes the constrained tokens of a step to their grammars.
    pub(super) fn match_tokens(&mut self, arrivals: Vec<Arrival>) {
        if arrivals.is_empty() {
            return;
        }
        let rows = arrivals.iter().map(|arrival| arrival.row).collect();
        let arrivals = match &self.workers {
            Some(workers) => workers.advance(arrivals),
            // No request has a grammar then; the channel says that nobody works.
            None => oneshot::channel().1,
        };
        self.matching = Some(Matching { rows, arrivals });
    }

    /// The grammars have taken the tokens of a step, or, with nothing, a thread has panicked.
    pub(super) fn matched(&mut self, arrivals: Option<Vec<Arrival>>) {
        let Some(Matching { rows, .. }) = self.matching.take() else {
            return;
        };
        match arrivals {
            Some(arrivals) => arrivals
                .into_iter()
                .for_each(|arrival| self.matched_row(arrival)),
            None => {
                for row in rows {
                    let reason = "the thread that follows it failed".to_owned();
                    self.cannot_follow(row, GrammarError::Internal { reason });
                }
            }
        }
        self.constrain_first();
    }

    fn matched_row(&mut self, arrival: Arrival) {
        let Some(Some(running)) = self.rows.get_mut(arrival.row.index()) else {
            return;
        };
        match arrival.outcome {
            Ok(ended) => {
                running.follow(arrival.constraint);
                if running.accept(arrival.tokens, arrival.top_tokens, ended) {
                    self.release(arrival.row, ended);
                }
            }
            Err(error) => {
                if !arrival.tokens.is_empty() {
                    running.accept(arrival.tokens, arrival.top_tokens, false);
                }
                self.cannot_follow(arrival.row, error);
            }
        }
    }

    /// Ends a request whose grammar cannot be followed. What was computed of it is as good as anybody's.
    fn cannot_follow(&mut self, row: Row, error: GrammarError) {
        if let Some(Some(running)) = self.rows.get(row.index()) {
            tracing::warn!(request = %running.entry.id, %error, "a grammar cannot be followed");
            let failed = Event::Failed(InferError::Grammar(error));
            // The client may have gone.
            let _ = running.entry.events.send(failed);
            self.release(row, false);
        }
    }

    /// Sends the masks of the first plan that is in flight, unless they are sent: all tokens that they depend on are
    /// there.
    pub(super) fn constrain_first(&mut self) {
        if let Some((mut first, answer)) = self.in_flight.pop_front() {
            self.constrain(&mut first);
            self.in_flight.push_front((first, answer));
        }
    }

    /// Sends the masks of a plan that was sent just now, where they depend on no token in flight: those of first
    /// tokens, and of requests that resume.
    pub(super) fn constrain_new(&mut self, new: &mut InFlight) {
        let known = |&row: &Row| {
            let running = self.rows.get(row.index()).and_then(Option::as_ref);
            running.is_some_and(|running| running.awaits_one_token())
        };
        if new.constrained.iter().all(known) {
            self.constrain(new);
        }
    }

    /// Rows whose owners have left since the plan was sent get slot 0, which allows everything.
    fn constrain(&mut self, plan: &mut InFlight) {
        let Some(sender) = plan.masks.take() else {
            return;
        };
        let before = self.in_flight.front().map(|(before, _)| before.number);
        let oldest = before.unwrap_or(plan.number).min(plan.number);
        let mut masks = plan.free_masks();
        let mut behind = Vec::new();
        for (index, (row, slots)) in masks.rows.iter_mut().enumerate() {
            let mut wanted = self.masks_of(*row, plan).into_iter();
            let Some(mask) = wanted.next() else {
                continue;
            };
            // There are slots for all rows that may run; without one the grammar would refuse the sampled token.
            let Some(slot) = self.slot(&mask, (plan.number, oldest), &mut masks.writes) else {
                tracing::error!(step = plan.number, "every mask slot is in use");
                continue;
            };
            *slots = vec![slot];
            behind.extend(wanted.map(|mask| (index, mask)));
        }
        // The other half is for the next plan.
        let spare = self.most_constrained.saturating_sub(masks.rows.len());
        for (index, mask) in behind.into_iter().take(spare) {
            let Some(slot) = self.slot(&mask, (plan.number, oldest), &mut masks.writes) else {
                break;
            };
            masks.rows[index].1.push(slot);
        }
        self.metrics.masks_sent.record(plan.sent.elapsed());
        plan.may_run();
        // A step that has failed takes none.
        let _ = sender.send(masks);
    }
}

impl Batcher {
    /// Of the next tokens of a row, as far as they are known and the plan computes them; none where its owner has left.
    fn masks_of(&self, row: Row, plan: &InFlight) -> Vec<Mask> {
        let running = self.rows.get(row.index()).and_then(Option::as_ref);
        let owner = running.filter(|running| running.since <= plan.number);
        let Some((owner, constraint)) =
            owner.and_then(|owner| Some((owner, owner.entry.constraint.as_ref()?)))
        else {
            return Vec::new();
        };
        let masks = constraint.masks(owner.drafts_behind(&[]));
        masks.take(plan.width_of(row) as usize).cloned().collect()
    }

    /// Where the step of the first number finds a mask; the second is that of the oldest in flight.
    fn slot(
        &mut self,
        mask: &Mask,
        (number, oldest): (u64, u64),
        writes: &mut Vec<MaskWrite>,
    ) -> Option<u32> {
        if mask.form() == MaskForm::All {
            return Some(0);
        }
        let place = self.masks.place(mask, number, oldest)?;
        if place.write {
            let tokens = allowed(mask);
            writes.push(MaskWrite {
                slot: place.slot,
                tokens,
            });
        }
        Some(place.slot)
    }
}

impl InFlight {
    /// Masks that allow everything.
    fn free_masks(&self) -> StepMasks {
        StepMasks {
            number: self.number,
            writes: Vec::new(),
            rows: self.constrained.iter().map(|&row| (row, vec![0])).collect(),
        }
    }

    /// An earlier step failed: nobody uses the tokens of this one, but the shards may wait for its masks.
    pub(super) fn give_up(&mut self) {
        if let Some(sender) = self.masks.take() {
            let _ = sender.send(self.free_masks());
        }
    }
}

fn allowed(mask: &Mask) -> AllowedTokens {
    match mask.form() {
        MaskForm::All => AllowedTokens::Except(Vec::new()),
        MaskForm::Bits(bits) => AllowedTokens::Bits(bits.to_vec()),
        MaskForm::Only(ids) => AllowedTokens::Only(ids.to_vec()),
        MaskForm::Except(ids) => AllowedTokens::Except(ids.to_vec()),
    }
}
