//! Rows and slots of one mock rank, with the checks that a real shard relies on.

use std::collections::HashMap;

use text_generation_proto::v1;

use crate::config::{MockConfig, MockRow};

#[derive(Debug)]
struct Row {
    mock: MockRow,
    /// Its own: for all positions, or for those after a shared prompt.
    slots: Vec<u32>,
    /// The request whose prompt it shares.
    prompt: Option<u64>,
    /// Tokens whose K and V are in the pool.
    length: u32,
    stopping: v1::StoppingCriteriaParameters,
    top_n_tokens: u32,
    /// Its last permitted token was chosen, so no further step computes it.
    complete: bool,
}

/// Slots of a prompt that several rows read.
#[derive(Debug)]
struct Prompt {
    slots: Vec<u32>,
    readers: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Rows {
    rows: HashMap<u64, Row>,
    prompts: HashMap<u64, Prompt>,
    /// By slot: who holds it.
    owners: Vec<Option<u64>>,
    /// Broken rules of the contract, in words; a correct router causes none.
    pub violations: Vec<String>,
}

fn expand(ranges: &[v1::SlotRange]) -> impl Iterator<Item = u32> + '_ {
    ranges
        .iter()
        .flat_map(|range| range.start..range.start + range.length)
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn slots(&self) -> usize {
        self.owners.iter().flatten().count()
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.rows.contains_key(&id)
    }

    /// Tokens of a row that are in the pool.
    pub(crate) fn length(&self, id: u64) -> u32 {
        self.rows.get(&id).map_or(0, |row| row.length)
    }

    fn take_slots(&mut self, id: u64, ranges: &[v1::SlotRange], pool: u32) -> Vec<u32> {
        let slots: Vec<u32> = expand(ranges).collect();
        self.owners.resize(pool as usize, None);
        for &slot in &slots {
            match self.owners.get_mut(slot as usize) {
                None => self
                    .violations
                    .push(format!("slot {slot} is outside the pool of {pool}")),
                Some(holder) => {
                    if let Some(owner) = holder.replace(id) {
                        self.violations
                            .push(format!("slot {slot} given to {id} while {owner} holds it"));
                    }
                }
            }
        }
        slots
    }

    fn free(&mut self, slots: &[u32]) {
        for &slot in slots {
            if let Some(holder) = self.owners.get_mut(slot as usize) {
                *holder = None;
            }
        }
    }

    /// Makes rows for a request and its copies; returns their ids.
    pub(crate) fn add(&mut self, config: &MockConfig, request: v1::Request) -> Vec<u64> {
        let pool = config.max_batch_total_tokens;
        let (id, inputs) = (request.id, request.input_ids.len());
        let mut slots = self.take_slots(id, &request.slots, pool);
        if slots.len() < inputs {
            self.violations.push(format!(
                "request {id} has {} slots for a prompt of {inputs}",
                slots.len()
            ));
        }
        let shared = (!request.copies.is_empty()).then_some(id);
        if shared.is_some() {
            let own = slots.split_off(inputs.min(slots.len()));
            let prompt = Prompt {
                slots: std::mem::replace(&mut slots, own),
                readers: 1 + request.copies.len(),
            };
            self.prompts.insert(id, prompt);
        }
        let parameters = request.parameters.unwrap_or_default();
        let row = |id, seed, slots| Row {
            slots,
            prompt: shared,
            length: 0,
            stopping: request.stopping_parameters.unwrap_or_default(),
            top_n_tokens: request.top_n_tokens,
            complete: false,
            mock: MockRow {
                request_id: id,
                generated: 0,
                seed,
                input_ids: request.input_ids.clone(),
                parameters: parameters.clone(),
            },
        };
        let mut rows = vec![row(id, parameters.seed, slots)];
        for copy in &request.copies {
            let slots = self.take_slots(copy.id, &copy.slots, pool);
            rows.push(row(copy.id, copy.seed, slots));
        }
        let ids = rows.iter().map(|row| row.mock.request_id).collect();
        for row in rows {
            let id = row.mock.request_id;
            if self.rows.insert(id, row).is_some() {
                self.violations
                    .push(format!("request {id} prefilled twice"));
            }
        }
        ids
    }

    pub(crate) fn grant(&mut self, config: &MockConfig, grant: &v1::Grant) {
        let id = grant.request_id;
        let slots = self.take_slots(id, &grant.slots, config.max_batch_total_tokens);
        match self.rows.get_mut(&id) {
            Some(row) => row.slots.extend(slots),
            None => self
                .violations
                .push(format!("grant for {id} which is not running")),
        }
    }

    /// Frees a row and its slots; a shared prompt with its last reader.
    pub(crate) fn remove(&mut self, id: u64) {
        let Some(row) = self.rows.remove(&id) else {
            return;
        };
        self.free(&row.slots);
        if let Some(key) = row.prompt
            && let Some(prompt) = self.prompts.get_mut(&key)
        {
            prompt.readers -= 1;
            if prompt.readers == 0 {
                let slots = std::mem::take(&mut prompt.slots);
                self.prompts.remove(&key);
                self.free(&slots);
            }
        }
    }

    /// Computes the next token of a row; nothing once its last permitted token was chosen. As on a device, an
    /// end-of-sequence token alone does not keep a step that runs ahead from computing one more.
    pub(crate) fn next_token(&mut self, config: &MockConfig, id: u64) -> Option<v1::Generation> {
        let row = self.rows.get_mut(&id).filter(|row| !row.complete)?;
        row.length = row.mock.input_ids.len() as u32 + row.mock.generated;
        let prompt = row.prompt.and_then(|key| self.prompts.get(&key));
        let slots = row.slots.len() + prompt.map_or(0, |prompt| prompt.slots.len());
        if slots < row.length as usize {
            self.violations.push(format!(
                "request {id} has {slots} slots and needs {}",
                row.length
            ));
        }
        let mut token = (config.tokens)(&row.mock);
        let may_end = row.mock.generated >= row.stopping.min_new_tokens;
        while !may_end && config.eos_token_ids.contains(&token) {
            token = (token + 1) % config.vocab_size;
        }
        row.mock.generated += 1;
        let eos = !row.stopping.ignore_eos_token && config.eos_token_ids.contains(&token);
        row.complete = row.mock.generated >= row.stopping.max_new_tokens;
        let reason = if eos {
            Some(v1::FinishReason::EosToken)
        } else {
            row.complete.then_some(v1::FinishReason::Length)
        };
        let top = (0..row.top_n_tokens).map(|n| (token + n) % config.vocab_size);
        let top_tokens = (row.top_n_tokens > 0).then(|| v1::Tokens {
            ids: top.collect(),
            logprobs: (0..row.top_n_tokens).map(|n| -0.5 - n as f32).collect(),
        });
        Some(v1::Generation {
            request_id: id,
            prefill_tokens: None,
            tokens: Some(v1::Tokens {
                ids: vec![token],
                logprobs: vec![-0.5],
            }),
            top_tokens: top_tokens.into_iter().collect(),
            finish: reason.map(|reason| v1::Finish {
                reason: reason.into(),
                generated_tokens: row.mock.generated,
                seed: row.mock.parameters.do_sample.then_some(row.mock.seed),
            }),
        })
    }
}
