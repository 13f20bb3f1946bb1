//! Handling of the reply to a plan.

use smallvec::SmallVec;
use text_generation_client::ClientError;
use text_generation_client::types::{Row, StepReply, TokenId};
use tokio::task::JoinError;
use tokio::time::{Instant, timeout_at};

use super::Batcher;
use super::in_flight::InFlight;
use super::running::RunningEntry;
use crate::error::InferError;
use crate::grammar::{Arrival, Constraint, Look};
use crate::metrics::MethodMetrics;

impl Batcher {
    /// The oldest plan was answered.
    pub(super) async fn answered(
        &mut self,
        reply: Result<Result<StepReply, ClientError>, JoinError>,
    ) {
        let Some((in_flight, _)) = self.in_flight.pop_front() else {
            return;
        };
        let lost = |error: JoinError| Err(ClientError::Connection(error.to_string()));
        match reply.unwrap_or_else(lost) {
            Ok(reply) => {
                if let Some((next, _)) = self.in_flight.front_mut() {
                    next.may_run();
                }
                self.accept(&in_flight, reply);
                if self.matching.is_none() {
                    self.constrain_first();
                }
            }
            Err(error) if error.is_group_lost() => self.lose(vec![in_flight], &error),
            Err(error) => self.step_failed(in_flight, &error).await,
        }
    }

    pub(super) fn method(&self, in_flight: &InFlight) -> &MethodMetrics {
        if in_flight.is_prefill() {
            &self.metrics.prefill
        } else {
            &self.metrics.decode
        }
    }

    /// Hands out the tokens of a step, but for those of constrained rows, which go to their grammars first.
    fn accept(&mut self, in_flight: &InFlight, reply: StepReply) {
        let replied = Instant::now();
        self.record(in_flight, &reply, replied);
        self.step_failed = false;
        let adapters_ready = reply.adapters_ready;
        for scores in reply.prompt_scores {
            if let Some(running) = self.owner(scores.row, in_flight.number) {
                running.score(scores);
            }
        }
        for failure in reply.failures {
            tracing::warn!(request = %failure.request_id, reason = %failure.reason, "a request failed in the shards");
            if self.owner(failure.row, in_flight.number).is_some() {
                self.fail(failure.row, InferError::Generation(failure.message));
            } else {
                // It has left meanwhile, and what it computed is in the tree like anything else.
                self.pool.distrust();
            }
        }
        let mut tops = reply.top_tokens.into_iter().peekable();
        let classes = reply.class_logits.len() / reply.rows.len().max(1);
        let mut class_logits = reply.class_logits.chunks(classes.max(1));
        let mut expected = in_flight.rows.iter().copied().peekable();
        let mut arrivals = Vec::new();
        let mut tokens = reply.tokens.into_iter().enumerate();
        for (place, &row) in reply.rows.iter().enumerate() {
            while let Some(missing) = expected.next_if(|&other| other != row) {
                self.fail_lost(missing, in_flight.number);
            }
            expected.next();
            let count = reply.counts.get(place).copied().unwrap_or(1);
            let class_logits = class_logits.next().unwrap_or_default();
            if let Some(running) = self.owner(row, in_flight.number) {
                running.classify(class_logits);
                let drafts = reply.drafts.get(place).copied();
                running.landed(in_flight.width_of(row), count, drafts);
                if let Some(drafts) = drafts {
                    self.metrics.speculation.record(count, drafts);
                }
                self.charge_window(row, count);
                if count == 0 {
                    self.fail_lost(row, in_flight.number);
                }
            }
            let (mut given, mut alternatives) = (SmallVec::new(), Vec::new());
            for (index, token) in tokens.by_ref().take(count as usize) {
                given.push(token);
                alternatives.extend(tops.next_if(|top| top.index == index).map(|top| top.tokens));
            }
            if self.owner(row, in_flight.number).is_some() {
                arrivals.extend(self.hand_out(row, given, alternatives));
            }
        }
        for missing in expected {
            self.fail_lost(missing, in_flight.number);
        }
        self.match_tokens(arrivals);
        self.method(in_flight).filter.record(replied.elapsed());
        self.adapters_ready(in_flight, &adapters_ready);
    }

    /// Gives the tokens of a step to the owner of a row, up to the one that ends its text. What comes back goes to the
    /// owner's grammar first.
    fn hand_out(
        &mut self,
        row: Row,
        mut tokens: SmallVec<[TokenId; 1]>,
        mut top_tokens: Vec<Vec<TokenId>>,
    ) -> Option<Arrival> {
        tokens.first()?;
        let widest = self.windows.widest();
        // The next plan may be sent already, or come after the grammars.
        let next = self.in_flight.back();
        let width = next.map_or(widest, |(plan, _)| plan.width);
        let running = self.rows.get_mut(row.index())?.as_mut()?;
        let entry = &mut running.entry;
        let request = entry.request.clone();
        let ends = |token: &TokenId| {
            self.eos_token_ids.contains(&token.id) && !request.stopping.ignore_eos_token
        };
        // What only writes the prompt again ends no text. Else an end-of-sequence token does, where there is no grammar
        // to say so.
        let constraint = entry.constraint.as_ref();
        let by_grammar = constraint.is_some_and(Constraint::has_grammar);
        let ids = tokens.iter().map(|token| token.id);
        let rewriting = constraint.map_or(0, |constraint| constraint.rewriting(ids));
        let mut numbered = (entry.generated..).zip(&tokens).skip(rewriting);
        let last = numbered.position(|(generated, token)| {
            !by_grammar && ends(token) || request.stops_at(token.id, generated)
        });
        let last = last.map(|place| place + rewriting);
        if let Some(constraint) = entry.constraint.take() {
            let look = Look {
                drafts: running.drafts_behind(&tokens).to_vec(),
                width,
                speculates: widest > 1,
            };
            return Some(Arrival {
                is_last: running.are_last(tokens.len() as u32),
                row,
                tokens,
                top_tokens,
                constraint,
                last,
                look,
                outcome: Ok(false),
            });
        }
        if let Some(last) = last {
            tokens.truncate(last + 1);
            top_tokens.truncate(last + 1);
        }
        if running.accept(tokens, top_tokens, last.is_some()) {
            self.release(row, last.is_some());
        }
        None
    }

    /// Who owns a row since the plan of this `number` or longer.
    fn owner(&mut self, row: Row, number: u64) -> Option<&mut RunningEntry> {
        let running = self.rows.get_mut(row.index())?.as_mut()?;
        (running.since <= number).then_some(running)
    }

    /// A request that the shards neither gave a token nor failed would wait for ever.
    fn fail_lost(&mut self, row: Row, number: u64) {
        if self.owner(row, number).is_some() {
            let message = "the shards lost the request";
            self.fail(row, InferError::Generation(message.to_owned()));
        }
    }

    fn record(&mut self, in_flight: &InFlight, reply: &StepReply, replied: Instant) {
        // While the previous plan ran, this one waited.
        let begin = self
            .last_reply
            .map_or(in_flight.sent, |last| last.max(in_flight.sent));
        self.last_reply = Some(replied);
        let (took, timings) = (replied - begin, reply.timings);
        let metrics = self.method(in_flight);
        metrics.success.increment(1);
        metrics.inference.record(took);
        metrics.forward.record(timings.forward);
        metrics.decode.record(took.saturating_sub(timings.forward));
        metrics.experts.record(&reply.expert_loads);
        if !in_flight.is_prefill() {
            self.metrics.idle.record(timings.idle);
        }
        if !timings.mask_wait.is_zero() {
            self.metrics.mask_wait.record(timings.mask_wait);
        }
        self.metrics.concat_duration.record(timings.host);
        if let Some(media) = &self.media {
            media.took(timings.encode);
        }
        let compilations = timings.kernel_compilations;
        self.metrics.kernel_compilations.set(compilations as f64);
        let (predicted, forward) = (in_flight.predicted, timings.forward);
        let (width, has_prompts) = (in_flight.width, in_flight.is_prefill());
        self.windows.observe(width, has_prompts, predicted, forward);
        if in_flight.width == 1 {
            self.cost.observe(predicted, forward);
        }
    }

    /// A step failed as a whole, and the shards live: they drop everything. The requests whose prompts it computed fail,
    /// or, where it had none, all that it computed; the others wait again and resume. A plan that is still on its way
    /// fails with it.
    async fn step_failed(&mut self, failed: InFlight, error: &ClientError) {
        let running = self.rows.iter().flatten().count();
        tracing::error!(%error, step = failed.number, running, "a step failed");
        self.step_failed = true;
        let mut plans = vec![failed];
        let mut lost = None;
        while let Some((mut later, answer)) = self.in_flight.pop_front() {
            later.give_up();
            later.may_run();
            // It was refused, or its reply says nothing that is still of use.
            match timeout_at(later.due(), answer).await {
                Ok(Ok(Err(error))) if error.is_group_lost() => lost = Some(error),
                Ok(_) => {}
                Err(_) => lost = Some(later.overdue()),
            }
            plans.push(later);
        }
        if let Some(error) = lost {
            return self.lose(plans, &error);
        }
        for plan in &plans {
            self.method(plan).failure.increment(1);
        }
        if let Some(failed) = plans.first() {
            self.fail_computed(failed, error);
        }
        self.forget_rows();
        self.publish();
        // Shards that cannot even do this are lost.
        match self.client.clear_cache(None).await {
            Ok(()) => self.put_images_again(),
            Err(error) => self.lose(Vec::new(), &error),
        }
    }

    fn fail_computed(&mut self, failed: &InFlight, error: &ClientError) {
        let failing = if failed.is_prefill() {
            &failed.chunks
        } else {
            &failed.rows
        };
        for &row in failing {
            if self.owner(row, failed.number).is_some() {
                self.fail(row, error.clone().into());
            }
        }
    }
}
