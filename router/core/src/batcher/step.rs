//! One prefill or decode: what goes to the shards, and what becomes of the reply.

use std::mem;
use std::time::Instant;

use text_generation_client::ClientError;
use text_generation_client::types::{Batch, Generation, Grant, Request, SlotRange, StepReply};

use super::{Batcher, Running};
use crate::budget::{self, Demand};
use crate::error::InferError;
use crate::metrics::{BatchMetrics, MethodMetrics};
use crate::policy::{Concat, Progress};
use crate::queue::{Entry, Event, candidate};
use crate::validation::ValidRequest;

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
        self.metrics.next_size.record(requests.len() as f64);
        let id = self.next_batch_id;
        self.next_batch_id += 1;
        let request_ids: Vec<u64> = requests.iter().map(|request| request.id).collect();
        METHOD(&self.metrics).count.increment(1);
        match self.client.prefill(Batch { id, requests }).await {
            // The demand of an admitted request counts its first token.
            Ok(reply) => self.accept(METHOD, started, reply, 1),
            Err(error) => {
                self.fail_step(METHOD, vec![id], &request_ids, &error).await;
            }
        }
    }

    /// Takes requests from the queue, gives them slots for their prompt and a run, and makes them running.
    fn admit(&mut self, count: usize, started: Instant) -> Vec<Request> {
        let entries = self.queue.take(count);
        let demand = |entry: &Entry| {
            let candidate = candidate(&entry.request);
            Demand::admitted(candidate.input_length, candidate.max_new_tokens)
        };
        let running = self.running.values().map(|request| request.demand);
        let all = running.chain(entries.iter().map(demand));
        let mut surplus = budget::surplus(all, self.slots.capacity());
        let mut requests = Vec::with_capacity(entries.len());
        for entry in entries {
            let mut demand = demand(&entry);
            demand.held += demand.run(&mut surplus);
            let Some(slots) = self.slots.allocate(demand.held) else {
                // The policy rules this out.
                let _ = entry.events.send(Event::Failed(out_of_slots()));
                continue;
            };
            let _ = entry.events.send(Event::Started(started));
            requests.push(shard_request(entry.id, entry.request, slots.clone()));
            let running = Running {
                demand,
                slots,
                events: entry.events,
            };
            self.running.insert(entry.id, running);
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
                    if joined {
                        self.metrics.concat_duration.record(reply.timings.concat);
                    }
                    self.accept(METHOD, started, reply, 0);
                }
                Err(error) => {
                    let running: Vec<u64> = self.running.keys().copied().collect();
                    self.fail_step(METHOD, ids, &running, &error).await;
                }
            }
        }
        // Only now have the shards dropped these rows: before, a step running ahead could still write to their slots.
        self.free(&leaving);
    }

    /// Removes requests whose client has gone or wants no more tokens; returns the slots they held.
    fn leave_out_unwanted(&mut self) -> Vec<SlotRange> {
        let running = &mut self.running;
        let mut leaving = Vec::new();
        for batch in &mut self.batches {
            batch.request_ids.retain(|id| match running.get(id) {
                Some(request) if request.events.is_closed() => {
                    leaving.extend(running.remove(id).map_or(Vec::new(), |r| r.slots));
                    false
                }
                known => known.is_some(),
            });
        }
        leaving
    }

    /// Slots for the requests that would run short within the next steps. A request that cannot get any fails and
    /// leaves; the admission estimate rules this out while every request gets one token a step.
    fn grants(&mut self, leaving: &mut Vec<SlotRange>) -> Vec<Grant> {
        let short = |request: &Running| request.demand.held < request.demand.needed();
        if !self.running.values().any(short) {
            return Vec::new();
        }
        let left: u32 = leaving.iter().map(|range| range.length).sum();
        let demands = self.running.values().map(|request| request.demand);
        let mut surplus = budget::surplus(demands, self.slots.capacity() - left);
        let mut grants = Vec::new();
        for batch in &mut self.batches {
            batch.request_ids.retain(|&id| {
                let Some(request) = self.running.get_mut(&id) else {
                    return false;
                };
                let count = request.demand.grant(&mut surplus);
                match self.slots.allocate(count) {
                    Some(slots) if slots.is_empty() => {}
                    Some(slots) => {
                        request.demand.held += count;
                        request.slots.extend(&slots);
                        grants.push(Grant {
                            request_id: id,
                            slots,
                        });
                    }
                    None => {
                        let _ = request.events.send(Event::Failed(out_of_slots()));
                        leaving.extend(self.running.remove(&id).map_or(Vec::new(), |r| r.slots));
                        return false;
                    }
                }
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
        let Some(request) = self.running.get_mut(&id) else {
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
            batch.request_ids.retain(|id| self.running.contains_key(id));
        }
        let kept: usize = self.batches.iter().map(|b| b.request_ids.len()).sum();
        if kept == self.running.len() {
            return;
        }
        let held = |id: &u64| self.batches.iter().any(|b| b.request_ids.contains(id));
        let lost: Vec<u64> = self
            .running
            .keys()
            .copied()
            .filter(|id| !held(id))
            .collect();
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

fn shard_request(id: u64, request: ValidRequest, slots: Vec<SlotRange>) -> Request {
    Request {
        id,
        input_ids: request.input_ids.to_vec(),
        chooser: request.chooser,
        stopping: request.stopping,
        prefill_logprobs: request.prefill_logprobs,
        top_n_tokens: request.top_n_tokens,
        slots,
        copies: Vec::new(),
    }
}
