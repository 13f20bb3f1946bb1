//! Rows, batches and slots of one mock rank, with the checks that a real shard relies on.

use std::collections::{BTreeMap, HashMap};

use text_generation_proto::v1;

use crate::config::{MockConfig, MockRow};

#[derive(Debug)]
struct Row {
    mock: MockRow,
    slots: Vec<u32>,
    /// Tokens whose K and V are in the pool.
    length: u32,
    max_new_tokens: u32,
    ignore_eos: bool,
    top_n_tokens: u32,
    sampling: bool,
}

/// What a step or a filter left behind.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub generations: Vec<v1::Generation>,
    pub batch: Option<v1::CachedBatch>,
    pub failures: Vec<v1::RequestFailure>,
}

/// Log-probabilities of a prompt: NaN for the first token, which nothing predicts.
fn prompt_logprobs(prompt: &[u32]) -> v1::Tokens {
    let mut logprobs = vec![-1.0; prompt.len()];
    if let Some(first) = logprobs.first_mut() {
        *first = f32::NAN;
    }
    v1::Tokens {
        ids: prompt.to_vec(),
        logprobs,
    }
}

/// State of one rank.
#[derive(Debug, Default)]
pub(crate) struct State {
    rows: HashMap<u64, Row>,
    batches: BTreeMap<u64, Vec<u64>>,
    owners: HashMap<u32, u64>,
    /// Broken rules of the contract, in words; a correct router causes none.
    pub violations: Vec<String>,
    /// Requests that fail alone at their next step.
    pub failing: Vec<u64>,
    /// Size of every step so far: (prefill, rows).
    pub steps: Vec<(bool, usize)>,
}

fn expand(ranges: &[v1::SlotRange]) -> impl Iterator<Item = u32> + '_ {
    ranges
        .iter()
        .flat_map(|range| range.start..range.start + range.length)
}

impl State {
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn slots(&self) -> usize {
        self.owners.len()
    }

    fn take_slots(&mut self, id: u64, ranges: &[v1::SlotRange], pool: u32) -> Vec<u32> {
        let slots: Vec<u32> = expand(ranges).collect();
        for &slot in &slots {
            if slot >= pool {
                self.violations
                    .push(format!("slot {slot} is outside the pool of {pool}"));
            }
            if let Some(owner) = self.owners.insert(slot, id) {
                self.violations
                    .push(format!("slot {slot} given to {id} while {owner} holds it"));
            }
        }
        slots
    }

    fn remove_row(&mut self, id: u64) {
        if let Some(row) = self.rows.remove(&id) {
            for slot in row.slots {
                self.owners.remove(&slot);
            }
        }
    }

    fn cached(&self, id: u64) -> Option<v1::CachedBatch> {
        let request_ids = self.batches.get(&id)?.clone();
        let current_tokens = request_ids
            .iter()
            .filter_map(|id| self.rows.get(id))
            .map(|row| row.length)
            .sum();
        Some(v1::CachedBatch {
            id,
            request_ids,
            current_tokens,
        })
    }

    pub(crate) fn prefill(&mut self, config: &MockConfig, rank: usize, batch: v1::Batch) -> Step {
        self.steps.push((true, batch.requests.len()));
        let mut prompts = HashMap::new();
        let mut ids = Vec::with_capacity(batch.requests.len());
        for request in batch.requests {
            ids.push(request.id);
            if request.prefill_logprobs {
                prompts.insert(request.id, prompt_logprobs(&request.input_ids));
            }
            self.add_row(config, request);
        }
        let mut step = self.advance(config, rank, ids, batch.id);
        for generation in &mut step.generations {
            generation.prefill_tokens = prompts.remove(&generation.request_id);
        }
        step
    }

    fn add_row(&mut self, config: &MockConfig, request: v1::Request) {
        let id = request.id;
        let slots = self.take_slots(id, &request.slots, config.max_batch_total_tokens);
        let chooser = request.parameters.unwrap_or_default();
        let stopping = request.stopping_parameters.unwrap_or_default();
        let row = Row {
            length: 0,
            slots,
            max_new_tokens: stopping.max_new_tokens,
            ignore_eos: stopping.ignore_eos_token,
            top_n_tokens: request.top_n_tokens,
            sampling: chooser.do_sample,
            mock: MockRow {
                request_id: id,
                generated: 0,
                seed: chooser.seed,
                input_ids: request.input_ids,
            },
        };
        if self.rows.insert(id, row).is_some() {
            self.violations
                .push(format!("request {id} prefilled twice"));
        }
    }

    pub(crate) fn decode(
        &mut self,
        config: &MockConfig,
        rank: usize,
        request: v1::DecodeRequest,
    ) -> Result<Step, String> {
        let first = request
            .batches
            .first()
            .ok_or("must provide at least one batch")?
            .id;
        let mut ids = Vec::new();
        for batch in request.batches {
            self.keep(batch.id, &batch.request_ids)?;
            ids.extend(self.batches.remove(&batch.id).unwrap_or_default());
        }
        for grant in request.grants {
            let slots = self.take_slots(
                grant.request_id,
                &grant.slots,
                config.max_batch_total_tokens,
            );
            match self.rows.get_mut(&grant.request_id) {
                Some(row) => row.slots.extend(slots),
                None => self.violations.push(format!(
                    "grant for {} which is not running",
                    grant.request_id
                )),
            }
        }
        self.steps.push((false, ids.len()));
        Ok(self.advance(config, rank, ids, first))
    }

    /// Drops the rows of a cached batch that `wanted` leaves out.
    fn keep(&mut self, batch: u64, wanted: &[u64]) -> Result<(), String> {
        let held = self
            .batches
            .get(&batch)
            .cloned()
            .ok_or_else(|| format!("batch {batch} is not in the cache"))?;
        let (kept, dropped): (Vec<u64>, Vec<u64>) =
            held.into_iter().partition(|id| wanted.contains(id));
        dropped.into_iter().for_each(|id| self.remove_row(id));
        self.batches.insert(batch, kept);
        Ok(())
    }

    pub(crate) fn filter(
        &mut self,
        batch: u64,
        wanted: &[u64],
    ) -> Result<Option<v1::CachedBatch>, String> {
        self.keep(batch, wanted)?;
        let cached = self
            .cached(batch)
            .filter(|batch| !batch.request_ids.is_empty());
        if cached.is_none() {
            self.batches.remove(&batch);
        }
        Ok(cached)
    }

    pub(crate) fn clear(&mut self, batch: Option<u64>) {
        let batches: Vec<u64> = match batch {
            Some(id) => vec![id],
            None => self.batches.keys().copied().collect(),
        };
        for batch in batches {
            for id in self.batches.remove(&batch).unwrap_or_default() {
                self.remove_row(id);
            }
        }
    }

    /// One token for each of `ids`; the rest becomes the cached batch `batch`.
    fn advance(&mut self, config: &MockConfig, rank: usize, ids: Vec<u64>, batch: u64) -> Step {
        let mut step = Step::default();
        let mut left = Vec::with_capacity(ids.len());
        for id in ids {
            if self.failing.contains(&id) {
                self.remove_row(id);
                step.failures.push(v1::RequestFailure {
                    request_id: id,
                    reason: "numerical_error".to_owned(),
                    message: "the logits of this request are not finite".to_owned(),
                });
                continue;
            }
            let Some(generation) = self.next_token(config, id) else {
                continue;
            };
            if generation.finish.is_none() {
                left.push(id);
            }
            let finished = generation.finish.is_some();
            if id % config.world_size as u64 == rank as u64 {
                step.generations.push(generation);
            }
            if finished {
                self.remove_row(id);
            }
        }
        if !left.is_empty() {
            self.batches.insert(batch, left);
            step.batch = self.cached(batch);
        }
        step
    }

    fn next_token(&mut self, config: &MockConfig, id: u64) -> Option<v1::Generation> {
        let row = self.rows.get_mut(&id)?;
        row.length = row.mock.input_ids.len() as u32 + row.mock.generated;
        if (row.slots.len() as u32) < row.length {
            self.violations.push(format!(
                "request {id} has {} slots and needs {}",
                row.slots.len(),
                row.length
            ));
        }
        let token = (config.tokens)(&row.mock);
        row.mock.generated += 1;
        let eos = !row.ignore_eos && config.eos_token_ids.contains(&token);
        let reason = if eos {
            Some(v1::FinishReason::EosToken)
        } else if row.mock.generated >= row.max_new_tokens {
            Some(v1::FinishReason::Length)
        } else {
            None
        };
        let top = (0..row.top_n_tokens).map(|n| (token + n) % config.vocab_size);
        let top_tokens = if row.top_n_tokens > 0 {
            vec![v1::Tokens {
                ids: top.collect(),
                logprobs: (0..row.top_n_tokens).map(|n| -0.5 - n as f32).collect(),
            }]
        } else {
            Vec::new()
        };
        Some(v1::Generation {
            request_id: id,
            prefill_tokens: None,
            tokens: Some(v1::Tokens {
                ids: vec![token],
                logprobs: vec![-0.5],
            }),
            top_tokens,
            finish: reason.map(|reason| v1::Finish {
                reason: reason.into(),
                generated_tokens: row.mock.generated,
                seed: row.sampling.then_some(row.mock.seed),
            }),
        })
    }
}
