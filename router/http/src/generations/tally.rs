//! Tally of what the generations of a request count together.

use text_generation_core::types::{PredictedTokens, StreamEvent};
use tokio::time::Instant;
use tower_http::request_id::RequestId;

use super::Generations;
use crate::headers::Sizes;
use crate::timings::Timings;

/// Tokens of prompts that were found in the prefix tree. As in `prompt_tokens` each prompt counts once: by the choice
/// that found fewest, because that one computed the rest for the others.
#[derive(Debug, Clone)]
pub struct CachedTokens {
    samples: usize,
    prompts: Vec<u32>,
}

impl CachedTokens {
    /// `samples`: choices for each prompt.
    pub fn new(samples: usize) -> Self {
        Self {
            samples: samples.max(1),
            prompts: Vec::new(),
        }
    }

    /// The choice `index` found so many.
    pub fn add(&mut self, index: usize, cached: u32) {
        let prompt = index / self.samples;
        if self.prompts.len() <= prompt {
            self.prompts.resize(prompt + 1, u32::MAX);
        }
        self.prompts[prompt] = self.prompts[prompt].min(cached);
    }

    pub fn sum(&self) -> u32 {
        let known = self.prompts.iter().filter(|&&cached| cached < u32::MAX);
        known.sum()
    }
}

/// What the streams of one request count until the last of them has ended.
#[derive(Debug)]
pub struct Tally {
    id: RequestId,
    /// Generations that have not ended.
    running: usize,
    prompt_tokens: u32,
    cached_tokens: CachedTokens,
    generated_tokens: u32,
    predicted: Option<PredictedTokens>,
}

impl Tally {
    /// For `generations` of the request `id`, before they run.
    pub fn new(id: RequestId, generations: &Generations) -> Self {
        Self {
            id,
            running: generations.streams.len(),
            prompt_tokens: generations.prompt_tokens,
            cached_tokens: CachedTokens::new(generations.samples),
            generated_tokens: 0,
            predicted: None,
        }
    }

    /// Counts and logs the end of the choice `index`. After the last one the tokens of the request.
    pub fn end(&mut self, index: usize, event: &StreamEvent) -> Option<Sizes> {
        let StreamEvent::End {
            generated,
            instants,
            cached_tokens,
            ..
        } = event
        else {
            return None;
        };
        let timings = Timings::new(instants, Instant::now(), generated.generated_tokens);
        timings.log(&self.id, self.prompt_tokens, generated);
        self.cached_tokens.add(index, *cached_tokens);
        self.generated_tokens += generated.generated_tokens;
        self.predicted = PredictedTokens::sum(self.predicted, generated.predicted);
        self.running = self.running.saturating_sub(1);
        (self.running == 0).then(|| Sizes {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens.sum(),
            generated_tokens: self.generated_tokens,
            predicted: self.predicted,
        })
    }
}
