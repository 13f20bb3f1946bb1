//! Rows, slots and steps of one mock rank, with the checks that a real shard relies on.

use std::collections::{BTreeMap, BTreeSet};

use text_generation_proto::v1;
use tokio::time::{Duration, Instant};

use crate::adapters::Adapters;
use crate::config::{MockConfig, MockRow};
use crate::content::slot;
use crate::hints::Hints;
use crate::masks::Masks;
use crate::media::Media;
use crate::step::MockStep;

#[derive(Debug)]
struct Row {
    mock: MockRow,
    /// By position: what its slot holds.
    contents: Vec<u64>,
    /// By position.
    slots: Vec<u32>,
    /// Positions whose K and V are in the pool.
    computed: u32,
    /// That were when it got its row.
    cached: u32,
    top_n_tokens: u32,
    prefill_logprobs: bool,
    failed: bool,
    spans: Vec<v1::MediaSpan>,
    /// The length at which its request ends.
    limit: usize,
    /// Of its adapter; 0: the base.
    adapter: u32,
}

impl Row {
    /// What the slots of its first `end` ids hold once they are computed: it follows from all ids and images up to there.
    /// The images of positions that were cached are known by what their slots hold.
    fn extend_contents(&mut self, end: usize, media: &Media, pool: &[u64]) -> Result<(), String> {
        for position in self.contents.len()..end {
            let read = match self.media_row(position as u32) {
                None => u64::from(self.mock.ids[position]),
                Some(_) if position < self.cached as usize => {
                    self.contents.push(pool[self.slots[position] as usize]);
                    continue;
                }
                Some(row) => media
                    .row(row)
                    .ok_or(format!("media row {row} is read and was never written"))?,
            };
            let before = self.contents.last().copied();
            self.contents.push(slot(before, read, self.mock.adapter));
        }
        self.mock.content = self.contents.last().copied().unwrap_or_default();
        Ok(())
    }

    fn media_row(&self, position: u32) -> Option<u32> {
        let mut spans = self.spans.iter();
        let span = spans.find(|span| (span.first..span.first + span.length).contains(&position))?;
        Some(span.row + position - span.first)
    }

    /// It gets a token.
    fn take(&mut self, number: u32, token: u32, vocab_size: u32, reply: &mut v1::StepReply) {
        self.mock.generated += 1;
        self.mock.ids.push(token);
        if self.top_n_tokens > 0 {
            reply.top_tokens.push(v1::TopTokens {
                index: reply.ids.len() as u32,
                ids: (0..self.top_n_tokens)
                    .map(|n| (token + n) % vocab_size)
                    .collect(),
                logprobs: (0..self.top_n_tokens).map(|n| -0.5 - n as f32).collect(),
            });
        }
        reply.rows.push(number);
        reply.ids.push(token);
        reply.logprobs.push(-0.5);
    }

    /// It fails alone, and gets no token from now on.
    fn fail(&mut self, number: u32, message: &str, reply: &mut v1::StepReply) {
        self.failed = true;
        reply.failures.push(v1::RequestFailure {
            request_id: self.mock.request_id,
            row: number,
            reason: "numerical_error".to_owned(),
            message: message.to_owned(),
        });
    }
}

/// State of one rank.
#[derive(Debug, Default)]
pub(crate) struct State {
    rows: BTreeMap<u32, Row>,
    /// By slot: what was written there last.
    pool: Vec<u64>,
    pub masks: Masks,
    pub media: Media,
    /// Broken rules of the contract, in words; a correct router causes none.
    pub violations: Vec<String>,
    /// Requests that fail alone at their next step.
    pub failing: Vec<u64>,
    pub steps: Vec<MockStep>,
    /// Of each step that had any.
    pub trace_links: Vec<Vec<u8>>,
    /// How long the device had nothing to do before each step that was begun, but for the first.
    pub idle: Vec<Duration>,
    /// When the last step ended, and since when there was nothing to do.
    ended: Option<Instant>,
    /// How often a request got a row.
    pub admitted: usize,
    /// It may serve.
    pub warmed: bool,
    pub adapters: Adapters,
    hints: Hints,
    pub warmups: Vec<v1::WarmupRequest>,
    /// A row was computed that ends the group.
    pub fatal: bool,
}

impl State {
    pub(crate) fn of_life(warmed: bool) -> Self {
        Self {
            warmed,
            ..Self::default()
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn requests(&self) -> Vec<u64> {
        self.rows.values().map(|row| row.mock.request_id).collect()
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

    /// A step begins.
    pub(crate) fn begins(&mut self, now: Instant) {
        self.idle.extend(self.ended.map(|ended| now - ended));
    }

    /// A step has ended, and nothing else runs.
    pub(crate) fn ends(&mut self, now: Instant) {
        self.ended = Some(now);
    }

    /// Drops, admits, grants and computes, in this order.
    pub(crate) fn execute(
        &mut self,
        config: &MockConfig,
        rank: usize,
        plan: v1::StepPlan,
    ) -> v1::StepReply {
        self.pool.resize(config.max_batch_total_tokens as usize, 0);
        self.steps.push(MockStep::of(&plan));
        if !plan.trace_links.is_empty() {
            self.trace_links.push(plan.trace_links.clone());
        }
        self.hints.apply(&plan);
        let (mask_slots, wrong) = self.masks.apply(&plan);
        self.violations.extend(wrong);
        for row in &plan.drop {
            if self.rows.remove(row).is_none() {
                self.violate(format!("row {row} is dropped and nobody owns it"));
            }
        }
        let pages = self.warmups.last().map(|warmup| warmup.adapter_pages);
        let used: BTreeSet<u32> = self.rows.values().map(|row| row.adapter).collect();
        let wrong = self.adapters.copy(&plan, pages, &used);
        self.violations.extend(wrong);
        let media = config.media.unwrap_or_default();
        let wrong = self.media.execute(&plan, media.layers, config.media_rows);
        self.violations.extend(wrong);
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
        let is_idle = plan.chunks.is_empty() && plan.decode.is_empty() && plan.encode.is_empty();
        let mut reply = v1::StepReply {
            number: plan.number,
            adapters_ready: self.adapters.ready(plan.number, config.copy_plans, is_idle),
            ..v1::StepReply::default()
        };
        let slots = |row: u32| mask_slots.get(&row).map(Vec::as_slice);
        if !plan.widths.is_empty() && plan.widths.len() != plan.decode.len() {
            self.violate(format!(
                "{} widths for {} rows",
                plan.widths.len(),
                plan.decode.len()
            ));
        }
        for (place, &row) in plan.decode.iter().enumerate() {
            let width = plan.widths.get(place).copied().unwrap_or(1);
            self.decode(config, row, width, slots(row), &mut reply);
        }
        for chunk in &plan.chunks {
            self.compute(config, chunk.row, Some(chunk), &mut reply);
            let slot = slots(chunk.row).and_then(<[u32]>::first);
            self.choose(config, chunk.row, slot.copied().unwrap_or(0), &mut reply);
        }
        if !config.widths.is_empty() {
            // Those of chunks got one token each, without drafts.
            reply.counts.resize(reply.rows.len(), 1);
            reply.drafts.resize(reply.rows.len(), 0);
            reply.right.resize(reply.rows.len(), 0);
        }
        if rank > 0 {
            reply.logprobs.clear();
            reply.top_tokens.clear();
            reply.prompt_scores.clear();
            reply.class_logits.clear();
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
                ids: request.input_ids,
                generated: request.num_generated,
                seed: parameters.seed,
                parameters,
                content: 0,
                adapter: self.adapters.generation(request.adapter),
            },
            contents: Vec::new(),
            slots,
            computed: request.cached_length,
            cached: request.cached_length,
            top_n_tokens: request.top_n_tokens,
            prefill_logprobs: request.prefill_logprobs,
            failed: false,
            spans: request.media,
            adapter: request.adapter,
            limit: match request.max_new_tokens {
                0 => usize::MAX,
                most => prompt + most as usize,
            },
        };
        if config.recurrent && row.computed > 0 {
            let cached = row.computed;
            self.violate(format!(
                "request {id} has {cached} cached positions, whose state nobody keeps"
            ));
        }
        if row.adapter > 0 && !self.adapters.is_ready(row.adapter) {
            let adapter = row.adapter;
            self.violate(format!(
                "request {id} names adapter {adapter}, which no reply has said to be ready"
            ));
        }
        if row.computed as usize >= row.mock.ids.len() {
            self.violate(format!("request {id} has nothing left to compute"));
        }
        if self.rows.insert(number, row).is_some() {
            self.violate(format!("row {number} is given to {id} and is owned"));
        }
    }

    /// A row gets as many tokens as drafts are right, and one more, at most `width`. Drafts are those of its hint, where
    /// that fits, else the configuration says how many are right. With masks it gets no more tokens than it has `slots`.
    fn decode(
        &mut self,
        config: &MockConfig,
        number: u32,
        width: u32,
        slots: Option<&[u32]>,
        reply: &mut v1::StepReply,
    ) {
        let (rows, ids) = (reply.rows.len(), reply.ids.len());
        let Some(row) = self.rows.get(&number) else {
            return self.compute(config, number, None, reply);
        };
        let left = row.limit.saturating_sub(row.mock.ids.len()) as u32;
        let reached = (row.mock.ids.len() + width as usize - 1).min(row.limit.saturating_sub(1));
        let (failed, held) = (row.failed, row.slots.len());
        if width > 1 && !config.widths.contains(&width) {
            self.violate(format!("a window of {width} tokens, which nobody offers"));
        }
        if width > 1 && held < reached {
            self.violate(format!(
                "row {number} has {held} slots for a window of {width} that reaches {reached}"
            ));
        }
        let masks = slots.map_or(width, |slots| slots.len() as u32);
        if masks > width {
            self.violate(format!(
                "row {number} has {masks} masks for a window of {width}"
            ));
        }
        let mock = &self.rows[&number].mock;
        let drafts = self.hints.drafts(number, &mock.ids);
        let drafts = drafts.filter(|_| !config.widths.is_empty());
        let mut right = (config.drafts)(mock, width).min(width);
        let mut count = if config.widths.is_empty() {
            1
        } else {
            (1 + right).min(width).min(left)
        };
        if drafts.is_some() {
            (right, count) = (0, width.min(left));
        }
        count = count.min(masks);
        let known = drafts.as_ref().map_or(0, Vec::len);
        if slots.is_some() && masks as usize > known + 1 {
            self.violate(format!(
                "row {number} has {masks} masks, and a hint of {known} ids"
            ));
        }
        for place in 0..count as usize {
            self.compute(config, number, None, reply);
            let slot = slots.and_then(|slots| slots.get(place)).copied();
            self.choose(config, number, slot.unwrap_or(0), reply);
            if let Some(drafts) = &drafts {
                let draft = drafts.get(place);
                if draft.is_none() || draft != reply.ids.get(ids + place) {
                    break;
                }
                right += 1;
            }
        }
        let got = reply.ids.len() - ids;
        if config.widths.is_empty() || failed || (got == 0 && count > 0) {
            return;
        }
        if drafts.is_some() && got > 0 {
            reply.hinted.push(number);
        }
        reply.rows.truncate(rows);
        reply.rows.push(number);
        reply.counts.push(got as u32);
        reply.drafts.push(width - 1);
        reply.right.push(right);
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
        self.fatal |= (config.fatal)(&row.mock);
        let length = row.mock.ids.len() as u32;
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
        let end = first + count;
        let is_cut = |span: &v1::MediaSpan| span.first < end && end < span.first + span.length;
        if config.media.is_some_and(|media| media.whole_spans) && row.spans.iter().any(is_cut) {
            let text = format!("row {number} is computed to {end}, within an image");
            self.violations.push(text);
            return;
        }
        if let Err(wrong) = row.extend_contents((first + count) as usize, &self.media, &self.pool) {
            self.violations.push(format!("{wrong}, by row {number}"));
            return;
        }
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
            let message = "the logits of this request are not finite";
            row.fail(number, message, reply);
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
    }

    /// The next token of a row whose every position is computed: the one that the configuration wants, or the next
    /// higher id that its mask allows.
    fn choose(&mut self, config: &MockConfig, number: u32, slot: u32, reply: &mut v1::StepReply) {
        let Some(row) = self.rows.get_mut(&number) else {
            return;
        };
        if row.failed || row.computed as usize != row.mock.ids.len() {
            return;
        }
        let slot = match config.ignores_masks_of {
            Some(id) if id == row.mock.request_id => 0,
            _ => slot,
        };
        if config.classes > 0 {
            let last = row.mock.ids.last().copied().unwrap_or_default();
            let logits = (1..=config.classes).map(|place| (last % 8) as f32 / place as f32);
            reply.class_logits.extend(logits);
            row.take(number, 0, config.vocab_size, reply);
            return;
        }
        let wanted = (config.tokens)(&row.mock);
        let may_end = row.mock.generated >= row.mock.parameters.min_new_tokens;
        let may_come = |&token: &u32| {
            self.masks.allow(slot, token) && (may_end || !config.eos_token_ids.contains(&token))
        };
        let mut tokens = (0..config.vocab_size).map(|n| (wanted + n) % config.vocab_size);
        match tokens.find(may_come) {
            Some(token) => row.take(number, token, config.vocab_size, reply),
            None => row.fail(number, "the mask of this request allows no token", reply),
        }
    }

    /// Keeps the requests of `wanted`; returns those that are there.
    pub(crate) fn filter(&mut self, wanted: &[u64]) -> Vec<u64> {
        self.rows
            .retain(|_, row| wanted.contains(&row.mock.request_id));
        self.requests()
    }

    pub(crate) fn clear(&mut self, request: Option<u64>) {
        if request.is_none() {
            self.masks.clear();
            self.media.clear();
            self.adapters.clear();
        }
        self.rows
            .retain(|_, row| request.is_some_and(|id| row.mock.request_id != id));
    }
}
