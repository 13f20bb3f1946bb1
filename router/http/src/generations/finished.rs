//! The generations of a request when all have ended: their sizes, their times, and the best of them.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use text_generation_core::types::{FinishReason, GenerateAnswer, PredictedTokens};
use tower_http::request_id::RequestId;

use super::tally::CachedTokens;
use crate::headers::{self, Sizes};
use crate::state::AppState;
use crate::timings::Timings;

/// Finished generations in the order of the choices.
#[derive(Debug)]
pub struct Finished {
    pub answers: Vec<GenerateAnswer>,
    pub samples: usize,
    pub prompt_tokens: u32,
    /// Parts of the grammar that the texts need not follow.
    pub not_enforced: Arc<[String]>,
}

impl Finished {
    /// Every generated token counts, also those of texts that are not returned.
    pub fn sizes(&self) -> Sizes {
        let generated = self
            .answers
            .iter()
            .map(|answer| answer.generated.generated_tokens);
        let mut cached = CachedTokens::new(self.samples);
        for (index, answer) in self.answers.iter().enumerate() {
            cached.add(index, answer.cached_tokens);
        }
        Sizes {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: cached.sum(),
            generated_tokens: generated.sum(),
            predicted: self
                .answers
                .iter()
                .map(|answer| answer.generated.predicted)
                .fold(None, PredictedTokens::sum),
        }
    }

    /// Headers of the answer: the times of each prompt, which are those of its slowest choice, added up.
    pub fn headers(&self, state: &AppState, characters: usize) -> HeaderMap {
        let slowest = |group: &[GenerateAnswer]| {
            let answer = group.iter().max_by_key(|answer| answer.finished)?;
            Some(timings(answer))
        };
        let total = self
            .answers
            .chunks(self.samples.max(1))
            .filter_map(slowest)
            .reduce(sum);
        let total = total.unwrap_or(NO_TIME);
        let mut headers = headers::finished(
            &state.answers.compute_type,
            characters,
            &total,
            self.sizes(),
        );
        headers::not_enforced(&mut headers, &self.not_enforced);
        headers
    }

    /// One line for each generation.
    pub fn log(&self, id: &RequestId) {
        for answer in &self.answers {
            timings(answer).log(id, answer.input_length, &answer.generated);
        }
    }

    /// Leaves of each answer nothing but its prompt.
    pub fn drop_generated(&mut self) {
        for answer in &mut self.answers {
            answer.tokens.clear();
            answer.top_tokens.clear();
            answer.generated.text.clear();
            answer.generated.generated_tokens = 0;
            answer.generated.finish_reason = FinishReason::Length;
        }
    }

    /// Keeps the `n` choices of each prompt with the highest mean log-probability, the best first.
    pub fn keep_best(&mut self, n: usize) {
        if n == self.samples {
            return;
        }
        let mut kept = Vec::new();
        let mut answers = std::mem::take(&mut self.answers).into_iter().peekable();
        while answers.peek().is_some() {
            let mut group: Vec<_> = answers.by_ref().take(self.samples.max(1)).collect();
            group.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
            group.truncate(n);
            kept.append(&mut group);
        }
        self.answers = kept;
        self.samples = n;
    }
}

const NO_TIME: Timings = Timings {
    total: Duration::ZERO,
    validation: Duration::ZERO,
    queue: Duration::ZERO,
    inference: Duration::ZERO,
    per_token: Duration::ZERO,
};

fn timings(answer: &GenerateAnswer) -> Timings {
    Timings::new(
        &answer.instants,
        answer.finished,
        answer.generated.generated_tokens,
    )
}

fn sum(a: Timings, b: Timings) -> Timings {
    Timings {
        total: a.total + b.total,
        validation: a.validation + b.validation,
        queue: a.queue + b.queue,
        inference: a.inference + b.inference,
        per_token: a.per_token + b.per_token,
    }
}
