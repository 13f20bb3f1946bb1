//! One prefill or decode: what goes to the shards, and what becomes of the reply.

use std::iter;
use std::mem;
use std::time::Instant;

use text_generation_client::ClientError;
use text_generation_client::types::{Batch, Generation, Grant, Request, SlotRange, StepReply};

use super::Batcher;
use super::running::Member;
use crate::error::InferError;
use crate::metrics::{BatchMetrics, MethodMetrics};
use crate::policy::{Concat, Progress};
use crate::queue::Event;

/// Which handles a step records with.
type Method = fn(&BatchMetrics) -> &MethodMetrics;

impl Batcher {
    /// Computes the prompts of the first `count` queued requests as a new batch.
    pub(super) async fn prefill(&mut self, count: usize, concat: Option<Concat>) {
        const METHOD: Method = |metrics| &metrics.prefill;
        self.clear(Vec::new()).await;
        match concat {
            Some(Concat::Backpressure) => self.metrics.backpressure.increment(1),
            Some(Concat::WaitExceeded) => self.metrics.wait_exceeded.increment(1),
            None => {}
        }
        let started = Instant::now();
        let requests = self.admit(count, started);
        self.progress = Progress::default();
        if requests.is_empty() {
            return;
        }
        self.publish();
        let id = self.next_batch_id;
        self.next_batch_id += 1;
        let request_ids: Vec<u64> = requests.iter().flat_map(row_ids).collect();
        self.metrics.next_size.record(request_ids.len() as f64);
        METHOD(&self.metrics).count.increment(1);
        match self.client.prefill(Batch { id, requests }).await {
            // The demand of an admitted request counts its first token.
            Ok(mut reply) => {
                self.running.share_prompts(&mut reply.generations);
                self.accept(METHOD, started, reply, 1);
            }
            Err(error) => {
                self.fail_step(METHOD, vec![id], &request_ids, &error).await;
            }
        }
    }

    /// Takes requests from the queue, gives them slots for their prompt and a run, and makes them running.
    fn admit(&mut self, count: usize, started: Instant) -> Vec<Request> {
        let entries = self.queue.take(count);
        let joining = entries.iter().flat_map(|e| e.candidate().demands());
        let mut surplus = self.running.surplus(joining, &[]);
        let mut requests = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.running.admit(entry, &mut surplus, started) {
                Ok(request) => requests.push(request),
                // The policy rules this out.
                Err(samples) => {
                    for sample in samples {
                        let _ = sample.events.send(Event::Failed(out_of_slots()));
                    }
                }
            }
        }
        requests
    }

    /// One step of all running requests whose clients still want tokens.
    pub(super) async fn decode(&mut self) {
        const METHOD: Method = |metrics| &metrics.decode;
        let mut leaving = self.leave_out_unwanted();
        let grants = self.grants(&mut leaving);
        let (batches, empty): (Vec<_>, Vec<_>) = mem::take(&mut self.batches)
            .into_iter()
            .partition(|batch| !batch.request_ids.is_empty());
        if !empty.is_empty() {
            self.clear(empty.into_iter().map(|batch| batch.id).collect())
                .await;
        }
        if !batches.is_empty() {
            let started = Instant::now();
            let joined = batches.len() > 1;
            let ids = batches.iter().map(|batch| batch.id).collect();
            self.progress.steps = self.progress.steps.saturating_add(1);
            METHOD(&self.metrics).count.increment(1);
            match self.client.decode(batches, grants).await {
                Ok(reply) => {
                    self.metrics.idle.record(reply.timings.idle);
                    if joined {
                        self.metrics.concat_duration.record(reply.timings.concat);
                    }
                    self.accept(METHOD, started, reply, 0);
                    if self.progress.steps == 1 {
                        self.running.caught_up();
                    }
                }
                Err(error) => {
                    let running: Vec<u64> = self.running.ids().collect();
                    self.fail_step(METHOD, ids, &running, &error).await;
                }
            }
        }
        // Only now have the shards dropped these rows: before, a step running ahead could still write to their slots.
        self.running.free(&leaving);
    }

    /// Removes requests whose client has gone or wants no more tokens; returns the slots they held.
    fn leave_out_unwanted(&mut self) -> Vec<SlotRange> {
        let running = &mut self.running;
        let mut leaving = Vec::new();
        for batch in &mut self.batches {
            batch.request_ids.retain(|&id| match running.get_mut(id) {
                Some(request) if request.events.is_closed() => {
                    leaving.extend(running.remove(id));
                    false
                }
                known => known.is_some(),
            });
        }
        leaving
    }

    /// Slots for the requests that would run short within the next steps. A request that cannot get any fails and
    /// leaves; the admission estimate rules this out while shards run at most one step ahead.
    fn grants(&mut self, leaving: &mut Vec<SlotRange>) -> Vec<Grant> {
        let running = &mut self.running;
        if running
            .demands()
            .all(|demand| demand.held >= demand.needed())
        {
            return Vec::new();
        }
        let mut surplus = running.surplus(iter::empty(), leaving);
        let mut grants = Vec::new();
        for batch in &mut self.batches {
            batch.request_ids.retain(|&id| {
                let granted = running.grant(id, &mut surplus);
                if granted.is_err() {
                    if let Some(Member { events, .. }) = running.get_mut(id) {
                        let _ = events.send(Event::Failed(out_of_slots()));
                    }
                    leaving.extend(running.remove(id));
                    return false;
                }
                grants.extend(granted.ok().flatten());
                true
            });
        }
        grants
    }

    /// Hands out the tokens of a step and keeps the batch that is left. `counted` tokens of each request are already in
    /// its demand.
    fn accept(&mut self, method: Method, started: Instant, reply: StepReply, counted: u32) {
        let replied = Instant::now();
        let metrics = method(&self.metrics);
        metrics.success.increment(1);
        metrics.inference.record(replied - started);
        metrics.forward.record(reply.timings.forward);
        metrics.decode.record(reply.timings.decode);
        let compilations = reply.timings.kernel_compilations;
        self.metrics.kernel_compilations.set(compilations as f64);
        self.step_failed = false;
        for generation in reply.generations {
            self.route(generation, counted);
        }
        for failure in reply.failures {
            tracing::warn!(request = failure.request_id, reason = %failure.reason, "a request failed in the shards");
            self.fail(failure.request_id, InferError::Generation(failure.message));
        }
        self.batches.extend(reply.batch);
        self.fail_lost();
        method(&self.metrics).filter.record(replied.elapsed());
    }

    /// One send and no more for the tokens of one request.
    fn route(&mut self, generation: Generation, counted: u32) {
        let id = generation.request_id;
        let Some(request) = self.running.get_mut(id) else {
            return;
        };
        let tokens = u32::try_from(generation.tokens.len()).unwrap_or(u32::MAX);
        let finished = generation.finish.is_some();
        request.demand.advance(tokens.saturating_sub(counted));
        let overrun = !finished && request.demand.remaining == 0;
        // A closed channel is noticed at the next decode.
        let _ = request.events.send(Event::Step(generation));
        if finished {
            self.release(id);
        } else if overrun {
            let message = "the shards did not end the request at `max_new_tokens`";
            self.fail(id, InferError::Generation(message.to_owned()));
        }
    }

    /// A request that the shards neither finished nor kept would wait forever.
    fn fail_lost(&mut self) {
        for batch in &mut self.batches {
            batch.request_ids.retain(|&id| self.running.contains(id));
        }
        let kept: usize = self.batches.iter().map(|b| b.request_ids.len()).sum();
        if kept == self.running.len() {
            return;
        }
        let held = |id: &u64| self.batches.iter().any(|b| b.request_ids.contains(id));
        let lost: Vec<u64> = self.running.ids().filter(|id| !held(id)).collect();
        for id in lost {
            let message = "the shards lost the request";
            self.fail(id, InferError::Generation(message.to_owned()));
        }
    }

    /// A step failed as a whole: its requests fail, the shards drop its batches, and the loop goes on.
    async fn fail_step(
        &mut self,
        method: Method,
        batches: Vec<u64>,
        requests: &[u64],
        error: &ClientError,
    ) {
        tracing::error!(%error, ?batches, requests = requests.len(), "a step failed");
        method(&self.metrics).failure.increment(1);
        self.step_failed = true;
        for &id in requests {
            self.fail(id, error.clone().into());
        }
        self.publish();
        self.clear(batches).await;
    }

    /// Tells the shards to drop `batches`. Where they cannot be reached, this is tried again before the next prefill,
    /// which may need the rows.
    async fn clear(&mut self, batches: Vec<u64>) {
        self.uncleared.extend(batches);
        while let Some(&id) = self.uncleared.last() {
            if let Err(error) = self.client.clear_cache(Some(id)).await {
                tracing::warn!(%error, batch = id, "the shards did not drop a batch");
                if !matches!(error, ClientError::Shard { .. }) {
                    return;
                }
            }
            self.uncleared.pop();
        }
    }
}

fn out_of_slots() -> InferError {
    InferError::Generation("the KV pool has no slot left".to_owned())
}

/// The request and its copies: each has a row.
fn row_ids(request: &Request) -> impl Iterator<Item = u64> + '_ {
    iter::once(request.id).chain(request.copies.iter().map(|copy| copy.id))
}
