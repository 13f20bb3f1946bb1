//! Assembly of the plan that the shards get, from the policy's decision.

use text_generation_client::types::{Grant, Row, StepPlan, TraceLink};
use tokio::time::{Duration, Instant};

use super::Batcher;
use super::candidates::Candidates;
use super::in_flight::InFlight;
use super::running::RunningEntry;
use crate::PLANS_IN_FLIGHT;
use crate::media::MediaStage;
use crate::policy::cost::StepShape;
use crate::policy::{self, Joined, Order, Plan, Situation};
use crate::queue::{Entry, Event, Started};

/// Slots given beyond need, so that most steps carry no grant; fewer where the pool is nearly full.
const RUN: u32 = 64;
/// As many links as a span has by default (OpenTelemetry: `OTEL_SPAN_LINK_COUNT_LIMIT`).
const MOST_TRACE_LINKS: usize = 128;
/// Of so many steps one is traced for the requests that decode in it, where not every step is.
const STEPS_PER_TRACE: u64 = 64;

impl Batcher {
    /// Sends plans as far as there is something to compute and a place for them.
    pub(super) fn send_plans(&mut self) {
        while self.in_flight.len() < PLANS_IN_FLIGHT && self.next_from().is_none() {
            self.release_leaving();
            let Some((plan, mut in_flight)) = self.next_plan() else {
                // Where all stand still for want of slots and nothing is in flight, those that pause leave at once.
                if self.in_flight.is_empty()
                    && self.rows.iter().flatten().any(RunningEntry::has_paused)
                {
                    continue;
                }
                return;
            };
            self.method(&in_flight).count.increment(1);
            let (masks, answer) = self.send(plan);
            in_flight.masks = masks;
            self.constrain_new(&mut in_flight);
            self.in_flight.push_back((in_flight, answer));
        }
    }

    /// Those whose clients have gone leave, and those that pause go back to the queue.
    fn release_leaving(&mut self) {
        for row in (0..self.limits.max_batch_size).map(Row) {
            let Some(Some(running)) = self.rows.get(row.index()) else {
                continue;
            };
            if running.is_unwanted() {
                let stopped = running.was_stopped();
                self.release(row, stopped);
            } else if running.has_paused()
                && let Some(running) = self.vacate(row)
            {
                self.queue.put_back(running.leave(&mut self.pool));
            }
        }
    }

    fn next_plan(&mut self) -> Option<(StepPlan, InFlight)> {
        let generated = self.rows.iter().flatten().map(|r| r.entry.generated);
        self.lengths.refresh(generated);
        let (rows, running) = self.for_policy();
        let free_rows = self.rows.iter().filter(|row| row.is_none()).count();
        let now = self.epoch.elapsed();
        self.arrivals.ready(now, self.queue.len().min(free_rows));
        let (encode, encoding) = self.encode(&running);
        let freeing = self.rows.iter().flatten().filter(|r| r.is_pausing());
        let situation = Situation {
            running: &running,
            rows: free_rows,
            free: self.pool.free(),
            freeing: freeing.map(RunningEntry::own_slots).sum(),
            capacity: self.pool.capacity(),
            encode: encoding,
            decodes_since_joining: self.decodes_since_joining,
            now,
            arrivals: &self.arrivals,
            limits: &self.limits,
            cost: &self.cost,
            lengths: &self.lengths,
            windows: &self.windows,
        };
        let mut candidates = Candidates::of(
            &self.queue,
            &self.pool,
            &self.rows,
            self.media.as_ref(),
            &self.adapters,
            self.most_constrained,
        );
        candidates.prompts_run = self.in_flight.iter().any(|(plan, _)| plan.is_prefill());
        let decision = policy::plan(&situation, &mut candidates);
        let visited = candidates.into_orders();
        self.ratio = decision.ratio.unwrap_or(self.ratio);
        let only_drops = decision.is_idle() && encode.is_empty();
        let forgets = self.media.as_ref().is_some_and(MediaStage::has_forgotten);
        let nothing_to_say = self.dropped.is_empty() && !forgets && !self.adapters.must_speak();
        if only_drops && (nothing_to_say || !self.in_flight.is_empty()) {
            self.pause(&decision, &rows);
            return None;
        }
        let (mut plan, mut in_flight) = self.apply(decision, encoding, &rows, &visited);
        plan.encode = encode;
        if let Some(media) = &mut self.media {
            plan.forget = media.take_forgotten();
        }
        plan.adapter_copies = self.adapters.take_copies();
        in_flight.encodes = !plan.encode.is_empty();
        Some((plan, in_flight))
    }

    /// The running requests that do not leave, and their rows.
    fn for_policy(&self) -> (Vec<Row>, Vec<policy::Running>) {
        let owned = (0..).map(Row).zip(&self.rows);
        owned
            .filter_map(|(row, running)| Some((row, running.as_ref()?)))
            .filter(|(_, running)| !running.is_pausing())
            .map(|(row, running)| {
                let served = self.queue.turns.served(running.entry.tenant());
                let running = running.for_policy();
                (row, policy::Running { served, ..running })
            })
            .unzip()
    }

    fn pause(&mut self, decision: &Plan, rows: &[Row]) {
        for &index in &decision.pause {
            if let Some(Some(running)) = self.rows.get_mut(rows[index].index()) {
                running.pause();
                self.metrics.paused.increment(1);
            }
        }
    }

    /// Turns a decision into a plan, and makes the requests stand as they will when it has run.
    fn apply(
        &mut self,
        decision: Plan,
        encoding: Duration,
        rows: &[Row],
        visited: &[Order],
    ) -> (StepPlan, InFlight) {
        let mut step = Builder {
            plan: StepPlan {
                number: self.next_number,
                drop: std::mem::take(&mut self.dropped),
                ..StepPlan::default()
            },
            tokens: Vec::new(),
            shape: StepShape {
                encode: encoding,
                ..StepShape::default()
            },
            spare: self.spare(&decision, rows, visited),
            width: decision.width.max(1),
        };
        self.next_number += 1;
        self.pause(&decision, rows);
        for &index in &decision.decode {
            self.decode(rows[index], &mut step);
        }
        for &(index, count) in &decision.chunks {
            self.chunk(rows[index], count, &mut step);
        }
        for admission in &decision.admit {
            if let Some(entry) = self.queue.take(visited[admission.index]) {
                self.admit(entry, admission.count, &mut step);
            }
        }
        // Others may read these positions from the next plan on: it runs after this one.
        for chunk in &step.plan.chunks {
            if let Some(Some(running)) = self.rows.get_mut(chunk.row.index()) {
                running.share(&mut self.pool);
            }
        }
        self.count(&decision, &step.plan);
        self.charge(&step.plan.chunks, &step.tokens);
        if step.width > 1 {
            step.plan.widths = vec![step.width; step.plan.decode.len()];
        }
        let predicted = self.windows.predict(&self.cost, &step.shape, step.width);
        let now = Instant::now();
        step.plan.limit = self.limit(predicted);
        step.plan.trace_links = self.trace_links(&step.plan);
        let in_flight = InFlight {
            number: step.plan.number,
            constrained: step.plan.constrained.clone(),
            masks: None,
            encodes: false,
            chunks: step.plan.chunks.iter().map(|chunk| chunk.row).collect(),
            rows: step.tokens,
            width: step.width,
            sent: now,
            turn: now,
            next_from: now + self.head_start(predicted),
            limit: step.plan.limit,
            predicted,
        };
        (step.plan, in_flight)
    }

    /// The requests that a plan computes, as far as their steps are traced: those whose prompts it computes, then those
    /// that decode, whose first changes from step to step. The step is in the trace of the first of all.
    fn trace_links(&self, plan: &StepPlan) -> Vec<TraceLink> {
        let link = |row: Row| {
            let running = self.rows.get(row.index())?.as_ref()?;
            running.entry.request.trace_link
        };
        let is_sample = plan.number.is_multiple_of(STEPS_PER_TRACE);
        let chunks = plan.chunks.iter().filter_map(|chunk| link(chunk.row));
        let decodes = plan.decode.iter().filter_map(|&row| link(row));
        let mut decodes: Vec<TraceLink> = decodes
            .filter(|link| link.every_step || is_sample)
            .collect();
        if !decodes.is_empty() {
            let turn = plan.number / STEPS_PER_TRACE;
            let first = (turn % decodes.len() as u64) as usize;
            decodes.rotate_left(first);
        }
        chunks.chain(decodes).take(MOST_TRACE_LINKS).collect()
    }

    /// Free slots beyond those that the decision needs.
    fn spare(&self, decision: &Plan, rows: &[Row], visited: &[Order]) -> u32 {
        let owners = decision.decode.iter().map(|&index| rows[index].index());
        let lacking: u32 = owners
            .filter_map(|row| self.rows[row].as_ref())
            .map(|running| running.lacking_slots(decision.width))
            .sum();
        let admitted = decision
            .admit
            .iter()
            .map(|admission| visited[admission.index]);
        let starting: usize = admitted
            .filter_map(|order| self.queue.get(order))
            .map(|entry| entry.ids.len() + 1)
            .sum();
        let needed = u32::try_from(lacking as usize + starting).unwrap_or(u32::MAX);
        self.pool.free().saturating_sub(needed)
    }

    fn decode(&mut self, row: Row, step: &mut Builder) {
        let Some(Some(running)) = self.rows.get_mut(row.index()) else {
            return;
        };
        let lacking = running.lacking_slots(step.width);
        if lacking > 0 {
            let count = lacking + step.ahead(running.slots_left().saturating_sub(lacking));
            // The policy has counted the free slots.
            let Some(slots) = self.pool.grow(&mut running.holding, count) else {
                return;
            };
            step.plan.grants.push(Grant { row, slots });
        }
        running.decode(step.width);
        step.plan
            .hints
            .extend(running.hint(row, self.windows.widest(), &self.answers));
        step.shape.add_decode(running.computed());
        step.plan.decode.push(row);
        step.add_token(row, &running.entry);
    }

    fn chunk(&mut self, row: Row, count: u32, step: &mut Builder) {
        let Some(Some(running)) = self.rows.get_mut(row.index()) else {
            return;
        };
        // Where somebody else's slots pushed its prefix out of the cache meanwhile, it has more to compute, never less.
        let mut count = count.min(running.prompt_left());
        if self.media.as_ref().is_some_and(MediaStage::has_whole_spans) {
            count = running.whole_spans(count, step.plan.chunks.is_empty());
        }
        if count == 0 {
            return;
        }
        let chunk = running.chunk(row, count);
        step.shape.add_chunk(chunk.first, chunk.count);
        step.plan.chunks.push(chunk);
        if running.prompt_left() == 0 {
            step.add_token(row, &running.entry);
        }
    }

    /// Gives a queued request a row, slots for its prompt and some more, and computes the first chunk.
    fn admit(&mut self, mut entry: Entry, count: u32, step: &mut Builder) {
        let mut rows = (0..).map(Row).zip(&self.rows);
        let Some((row, _)) = rows.find(|(_, owner)| owner.is_none()) else {
            self.queue.put_back(entry);
            return;
        };
        let Some(adapter) = self.adapters.number(&entry) else {
            self.queue.put_back(entry);
            return;
        };
        let mut holding = self.pool.open(&entry.root, entry.cacheable(), u32::MAX);
        if !self.has_images(&entry, holding.cached()) {
            // Others that start with this plan have pushed what it found out of the cache.
            self.pool.close(holding, &[]);
            self.queue.put_back(entry);
            return;
        }
        let prompt = u32::try_from(entry.ids.len()).unwrap_or(u32::MAX);
        let missing = prompt - holding.len();
        let max_new_tokens = entry.request.stopping.max_new_tokens;
        let left = max_new_tokens.saturating_sub(entry.generated + 1);
        let slots = missing + step.ahead(left);
        if self.pool.grow(&mut holding, slots).is_none() {
            self.pool.close(holding, &[]);
            self.queue.put_back(entry);
            return;
        }
        self.adapters.touch(&entry);
        let first = !std::mem::replace(&mut entry.started, true);
        if std::mem::take(&mut entry.looks_again) || first {
            let started = Started {
                at: Instant::now(),
                cached_tokens: holding.cached(),
            };
            // The client may have gone, here as everywhere.
            let _ = entry.events.send(Event::Started(started));
        }
        if first {
            self.arrivals.started(missing);
            self.metrics
                .prefix_query_tokens
                .increment(u64::from(prompt));
            self.metrics
                .prefix_hit_tokens
                .increment(u64::from(holding.cached()));
        }
        let mut running = RunningEntry::new(entry, holding, step.plan.number, &self.answers);
        step.plan.admit.push(running.as_request(row, adapter));
        step.plan
            .hints
            .extend(running.hint(row, self.windows.widest(), &self.answers));
        self.rows[row.index()] = Some(running);
        self.chunk(row, count, step);
    }

    fn count(&mut self, decision: &Plan, plan: &StepPlan) {
        match decision.joined {
            Some(Joined::Backpressure) => self.metrics.backpressure.increment(1),
            Some(Joined::WaitExceeded) => self.metrics.wait_exceeded.increment(1),
            None => {}
        }
        if plan.admit.is_empty() {
            self.decodes_since_joining = self.decodes_since_joining.saturating_add(decision.width);
        } else {
            self.decodes_since_joining = 0;
            self.metrics.next_size.record(plan.admit.len() as f64);
        }
    }
}

/// A plan as it grows.
struct Builder {
    plan: StepPlan,
    /// Rows that get a token.
    tokens: Vec<Row>,
    shape: StepShape,
    /// Free slots that nobody needs in this step.
    spare: u32,
    /// The most tokens that each decode gets.
    width: u32,
}

impl Builder {
    /// A row gets a token.
    fn add_token(&mut self, row: Row, entry: &Entry) {
        self.tokens.push(row);
        if entry.is_constrained() {
            self.plan.constrained.push(row);
        }
    }

    /// Slots for one request beyond what it needs, at most `most`.
    fn ahead(&mut self, most: u32) -> u32 {
        let count = RUN.min(self.spare / 8).min(most);
        self.spare -= count;
        count
    }
}
