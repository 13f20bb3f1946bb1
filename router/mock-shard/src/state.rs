//! Batches and steps of one mock rank.

use std::collections::{BTreeMap, HashMap, VecDeque};

use text_generation_proto::v1;

use crate::config::MockConfig;
use crate::rows::Rows;

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
    pub rows: Rows,
    batches: BTreeMap<u64, Vec<u64>>,
    /// Decode steps that were computed and not yet answered, oldest first.
    ahead: VecDeque<Vec<v1::Generation>>,
    /// Requests that fail alone at their next step.
    pub failing: Vec<u64>,
    /// Size of every step so far: (prefill, rows).
    pub steps: Vec<(bool, usize)>,
}

impl State {
    fn cached(&self, id: u64) -> Option<v1::CachedBatch> {
        let request_ids = self.batches.get(&id)?.clone();
        let current_tokens = request_ids.iter().map(|&id| self.rows.length(id)).sum();
        Some(v1::CachedBatch {
            id,
            request_ids,
            current_tokens,
        })
    }

    pub(crate) fn prefill(&mut self, config: &MockConfig, rank: usize, batch: v1::Batch) -> Step {
        let mut prompts = HashMap::new();
        let mut ids = Vec::with_capacity(batch.requests.len());
        for request in batch.requests {
            if request.prefill_logprobs {
                prompts.insert(request.id, prompt_logprobs(&request.input_ids));
            }
            ids.extend(self.rows.add(config, request));
        }
        self.steps.push((true, ids.len()));
        let computed = self.compute(config, &ids);
        let mut step = self.answer(config, rank, computed, ids, batch.id);
        for generation in &mut step.generations {
            generation.prefill_tokens = prompts.remove(&generation.request_id);
        }
        if config.run_ahead {
            self.drop_stale();
            let running: Vec<u64> = self.batches.values().flatten().copied().collect();
            let next = self.compute(config, &running);
            self.ahead.push_back(next);
        }
        step
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
        for grant in &request.grants {
            self.rows.grant(config, grant);
        }
        self.steps.push((false, ids.len()));
        self.drop_stale();
        // One step more than is answered; after a prefill it is already there.
        let wanted = 1 + usize::from(config.run_ahead);
        while self.ahead.len() < wanted {
            let next = self.compute(config, &ids);
            self.ahead.push_back(next);
        }
        let computed = self.ahead.pop_front().unwrap_or_default();
        Ok(self.answer(config, rank, computed, ids, first))
    }

    /// Forgets steps that were computed only for requests that have ended.
    fn drop_stale(&mut self) {
        let rows = &self.rows;
        self.ahead
            .retain(|step| step.iter().any(|g| rows.contains(g.request_id)));
    }

    /// Drops the rows of a cached batch that `wanted` leaves out.
    fn keep(&mut self, batch: u64, wanted: &[u64]) -> Result<(), String> {
        let held = self
            .batches
            .get(&batch)
            .ok_or_else(|| format!("batch {batch} is not in the cache"))?;
        if held == wanted {
            return Ok(());
        }
        let (kept, dropped): (Vec<u64>, Vec<u64>) = held.iter().partition(|id| wanted.contains(id));
        dropped.into_iter().for_each(|id| self.rows.remove(id));
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
                self.rows.remove(id);
            }
        }
    }

    /// One token for each of `ids` that needs one.
    fn compute(&mut self, config: &MockConfig, ids: &[u64]) -> Vec<v1::Generation> {
        let next = |&id| self.rows.next_token(config, id);
        ids.iter().filter_map(next).collect()
    }

    /// Answers with the tokens of a step; what is left of `ids` becomes the cached batch `batch`.
    fn answer(
        &mut self,
        config: &MockConfig,
        rank: usize,
        computed: Vec<v1::Generation>,
        mut ids: Vec<u64>,
        batch: u64,
    ) -> Step {
        let mut step = Step::default();
        for &id in &ids {
            if self.failing.contains(&id) {
                self.rows.remove(id);
                step.failures.push(v1::RequestFailure {
                    request_id: id,
                    reason: "numerical_error".to_owned(),
                    message: "the logits of this request are not finite".to_owned(),
                });
            }
        }
        for generation in computed {
            let id = generation.request_id;
            // It ended or was dropped while the step was on its way.
            if !self.rows.contains(id) {
                continue;
            }
            if generation.finish.is_some() {
                self.rows.remove(id);
            }
            if id % config.world_size as u64 == rank as u64 {
                step.generations.push(generation);
            }
        }
        ids.retain(|&id| self.rows.contains(id));
        if !ids.is_empty() {
            self.batches.insert(batch, ids);
            step.batch = self.cached(batch);
        }
        step
    }
}
