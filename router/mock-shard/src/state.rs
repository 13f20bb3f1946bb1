//! Rows, slots and steps of one mock rank, with the checks that a real shard relies on.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use text_generation_proto::v1;

use crate::config::{MockConfig, MockRow};

/// What one step was asked to compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MockStep {
    /// Parts of prompts, and their tokens.
    pub chunks: usize,
    pub chunk_tokens: u32,
    pub decodes: usize,
}

#[derive(Debug)]
struct Row {
    mock: MockRow,
    /// The prompt and what was generated.
    ids: Vec<u32>,
    /// By position: what its slot holds.
    contents: Vec<u64>,
    /// By position.
    slots: Vec<u32>,
    /// Positions whose K and V are in the pool.
    computed: u32,
    top_n_tokens: u32,
    prefill_logprobs: bool,
    failed: bool,
}

impl Row {
    /// What the slots of its ids hold once they are computed: it follows from all ids up to there.
    fn extend_contents(&mut self) {
        for id in &self.ids[self.contents.len()..] {
            let mut hasher = DefaultHasher::new();
            (self.contents.last(), id).hash(&mut hasher);
            self.contents.push(hasher.finish());
        }
    }
}

/// State of one rank.
#[derive(Debug, Default)]
pub(crate) struct State {
    rows: BTreeMap<u32, Row>,
    /// By slot: what was written there last.
    pool: Vec<u64>,
    /// Broken rules of the contract, in words; a correct router causes none.
    pub violations: Vec<String>,
    /// Requests that fail alone at their next step.
    pub failing: Vec<u64>,
    pub steps: Vec<MockStep>,
    /// How often a request got a row.
    pub admitted: usize,
}

impl State {
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Slots that rows use, each counted once.
    pub(crate) fn slots(&self) -> usize {
        let slots: BTreeSet<u32> = self
            .rows
            .values()
            .flat_map(|row| &row.slots)
            .copied()
            .collect();
        slots.len()
    }

    /// Drops, admits, grants and computes, in this order.
    pub(crate) fn execute(
        &mut self,
        config: &MockConfig,
        rank: usize,
        plan: v1::StepPlan,
    ) -> v1::StepReply {
        self.pool.resize(config.max_batch_total_tokens as usize, 0);
        for row in &plan.drop {
            if self.rows.remove(row).is_none() {
                self.violate(format!("row {row} is dropped and nobody owns it"));
            }
        }
        for request in plan.admit {
            self.admit(config, request);
        }
        for grant in plan.grants {
            let slots = self.checked_slots(&grant.slots, config);
            match self.rows.get_mut(&grant.row) {
                Some(row) => row.slots.extend(slots),
                None => self.violate(format!("slots for row {}, which nobody owns", grant.row)),
            }
        }
        self.steps.push(MockStep {
            chunks: plan.chunks.len(),
            chunk_tokens: plan.chunks.iter().map(|chunk| chunk.count).sum(),
            decodes: plan.decode.len(),
        });
        let mut reply = v1::StepReply {
            number: plan.number,
            ..v1::StepReply::default()
        };
        for &row in &plan.decode {
            self.compute(config, row, None, &mut reply);
        }
        for chunk in &plan.chunks {
            self.compute(config, chunk.row, Some(chunk), &mut reply);
        }
        if rank > 0 {
            reply.logprobs.clear();
            reply.top_tokens.clear();
            reply.prompt_scores.clear();
        }
        reply
    }

    fn violate(&mut self, what: String) {
        self.violations.push(what);
    }

    fn checked_slots(&mut self, ranges: &[v1::SlotRange], config: &MockConfig) -> Vec<u32> {
        let pool = config.max_batch_total_tokens;
        let slots: Vec<u32> = ranges
            .iter()
            .flat_map(|range| range.start..range.start + range.length)
            .collect();
        for slot in slots.iter().filter(|&&slot| slot >= pool) {
            self.violations
                .push(format!("slot {slot} is outside the pool of {pool}"));
        }
        slots
    }

    fn admit(&mut self, config: &MockConfig, request: v1::Request) {
        let slots = self.checked_slots(&request.slots, config);
        let (id, number) = (request.id, request.row);
        self.admitted += 1;
        let prompt = request.input_ids.len() - request.num_generated as usize;
        let parameters = request.parameters.unwrap_or_default();
        let row = Row {
            mock: MockRow {
                request_id: id,
                input_ids: request.input_ids[..prompt].to_vec(),
                generated: request.num_generated,
                seed: parameters.seed,
                parameters,
            },
            ids: request.input_ids,
            contents: Vec::new(),
            slots,
            computed: request.cached_length,
            top_n_tokens: request.top_n_tokens,
            prefill_logprobs: request.prefill_logprobs,
            failed: false,
        };
        if row.computed as usize >= row.ids.len() {
            self.violate(format!("request {id} has nothing left to compute"));
        }
        if self.rows.insert(number, row).is_some() {
            self.violate(format!("row {number} is given to {id} and is owned"));
        }
    }

    /// A chunk, or, without one, the newest token of a row.
    fn compute(
        &mut self,
        config: &MockConfig,
        number: u32,
        chunk: Option<&v1::Chunk>,
        reply: &mut v1::StepReply,
    ) {
        let Some(row) = self.rows.get_mut(&number) else {
            self.violate(format!("row {number} is computed and nobody owns it"));
            return;
        };
        if row.failed {
            return;
        }
        let length = row.ids.len() as u32;
        let (first, count) = chunk.map_or((length - 1, 1), |chunk| (chunk.first, chunk.count));
        if first != row.computed || first + count > length {
            let text = format!(
                "row {number} is computed from {first} to {} and stands at {} of {length}",
                first + count,
                row.computed
            );
            self.violations.push(text);
        }
        if row.slots.len() < (first + count) as usize {
            let text = format!("row {number} has {} slots", row.slots.len());
            self.violations.push(text);
            return;
        }
        row.extend_contents();
        let contents = row.contents.iter().zip(&row.slots).enumerate();
        let unchecked = if config.check_slots { 0 } else { first };
        let computed = contents.take((first + count) as usize);
        for (position, (content, &slot)) in computed.skip(unchecked as usize) {
            let written = &mut self.pool[slot as usize];
            if position >= first as usize {
                *written = *content;
            } else if written != content {
                let text = format!("slot {slot} of row {number} was overwritten");
                self.violations.push(text);
            }
        }
        row.computed = first + count;
        if self.failing.contains(&row.mock.request_id) {
            row.failed = true;
            reply.failures.push(v1::RequestFailure {
                request_id: row.mock.request_id,
                row: number,
                reason: "numerical_error".to_owned(),
                message: "the logits of this request are not finite".to_owned(),
            });
            return;
        }
        if row.prefill_logprobs && chunk.is_some() {
            let prompt = row.mock.input_ids.len() as u32;
            let scored = (first + count)
                .min(prompt.saturating_sub(1))
                .saturating_sub(first);
            reply.prompt_scores.push(v1::PromptScores {
                row: number,
                first,
                logprobs: vec![-1.0; scored as usize],
                top_tokens: Vec::new(),
            });
        }
        if row.computed == length {
            choose(config, number, row, reply);
        }
    }

    /// Keeps the requests of `wanted`; returns those that are there.
    pub(crate) fn filter(&mut self, wanted: &[u64]) -> Vec<u64> {
        self.rows
            .retain(|_, row| wanted.contains(&row.mock.request_id));
        self.rows.values().map(|row| row.mock.request_id).collect()
    }

    pub(crate) fn clear(&mut self, request: Option<u64>) {
        self.rows
            .retain(|_, row| request.is_some_and(|id| row.mock.request_id != id));
    }
}

/// The next token of a row whose every position is computed.
fn choose(config: &MockConfig, number: u32, row: &mut Row, reply: &mut v1::StepReply) {
    let mut token = (config.tokens)(&row.mock);
    let may_end = row.mock.generated >= row.mock.parameters.min_new_tokens;
    while !may_end && config.eos_token_ids.contains(&token) {
        token = (token + 1) % config.vocab_size;
    }
    row.mock.generated += 1;
    row.ids.push(token);
    if row.top_n_tokens > 0 {
        reply.top_tokens.push(v1::TopTokens {
            index: reply.rows.len() as u32,
            ids: (0..row.top_n_tokens)
                .map(|n| (token + n) % config.vocab_size)
                .collect(),
            logprobs: (0..row.top_n_tokens).map(|n| -0.5 - n as f32).collect(),
        });
    }
    reply.rows.push(number);
    reply.ids.push(token);
    reply.logprobs.push(-0.5);
}
