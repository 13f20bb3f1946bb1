//! The generations of one request: several prompts, several choices of each.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use futures::future::{Either, try_join_all};
use futures::stream::{Stream, StreamExt, select_all};
use text_generation_core::error::InferError;
use text_generation_core::infer::{GenerateStream, Group};
use text_generation_core::types::{
    Dialect, FinishReason, GenerateAnswer, GenerateParameters, GenerateRequest, Inputs, StreamEvent,
};
use tokio::time::Instant;
use tower_http::request_id::RequestId;

use crate::error::ApiError;
use crate::headers::{self, Sizes};
use crate::state::AppState;
use crate::tenant;
use crate::timings::{Timings, request_id};

/// What an event says, and the number of the choice it belongs to.
pub type ChoiceEvent = (usize, StreamEvent);

/// What the fields of `core` are called in the API that was called.
pub type Names = [(&'static str, &'static str)];

/// Prompts that are ready to be computed, and what the API calls the fields of `core`.
#[derive(Debug)]
pub struct Plan {
    pub groups: Vec<Group>,
    pub names: Cow<'static, Names>,
}

impl Plan {
    /// `samples` generations of each prompt.
    pub fn new(
        prompts: Vec<Inputs>,
        parameters: &GenerateParameters,
        add_special_tokens: bool,
        samples: u32,
        names: impl Into<Cow<'static, Names>>,
    ) -> Self {
        let mut parameters = parameters.clone();
        tenant::current().sign(&mut parameters);
        let group = |inputs| Group {
            request: GenerateRequest {
                inputs,
                parameters: parameters.clone(),
                add_special_tokens,
                dialect: Dialect::OpenAi,
            },
            samples,
        };
        Self {
            groups: prompts.into_iter().map(group).collect(),
            names: names.into(),
        }
    }

    /// Starts all of them, or none.
    ///
    /// # Errors
    /// Whatever refuses one of them; messages name fields as the client does.
    pub async fn start(self, state: &AppState) -> Result<Generations, ApiError> {
        let started = state.infer.generate_groups(self.groups).await;
        let groups = started.map_err(|error| renamed(error, &self.names))?;
        Ok(Generations::new(groups))
    }
}

/// Running generations in the order of the choices: by prompt, then by sample.
#[derive(Debug)]
pub struct Generations {
    pub streams: Vec<GenerateStream>,
    pub samples: usize,
    pub prompt_tokens: u32,
    /// Parts of the grammar that the texts need not follow.
    pub not_enforced: Arc<[String]>,
}

impl Generations {
    /// The streams of each prompt.
    pub fn new(groups: Vec<Vec<GenerateStream>>) -> Self {
        let lengths = groups.iter().filter_map(|group| group.first());
        Self {
            prompt_tokens: lengths.map(|stream| stream.input_length).sum(),
            samples: groups.first().map_or(0, Vec::len),
            not_enforced: groups
                .iter()
                .flatten()
                .next()
                .map_or_else(Arc::default, |stream| stream.not_enforced.clone()),
            streams: groups.into_iter().flatten().collect(),
        }
    }

    /// Headers of a stream of events.
    pub fn headers(&self, state: &AppState, characters: usize) -> HeaderMap {
        let mut headers = headers::streaming(&state.answers.compute_type, characters);
        headers::not_enforced(&mut headers, &self.not_enforced);
        headers
    }

    /// All events as they come.
    pub fn merge(
        self,
    ) -> impl Stream<Item = Result<ChoiceEvent, InferError>> + Send + Unpin + 'static {
        let numbered = |(index, stream): (usize, GenerateStream)| {
            stream.map(move |event| event.map(|event| (index, event)))
        };
        let mut streams: Vec<_> = self.streams.into_iter().enumerate().map(numbered).collect();
        match streams.len() {
            // The usual case needs nothing in between.
            1 => Either::Left(streams.remove(0)),
            _ => Either::Right(select_all(streams)),
        }
    }

    /// Runs all to their end. The first failure ends all.
    pub async fn gather(self) -> Result<Finished, ApiError> {
        let answers = self.streams.into_iter().map(GenerateStream::gather);
        Ok(Finished {
            answers: try_join_all(answers).await?,
            samples: self.samples,
            prompt_tokens: self.prompt_tokens,
            not_enforced: self.not_enforced,
        })
    }
}

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

/// What the streams of one request count until the last of them has ended.
#[derive(Debug)]
pub struct Tally {
    id: RequestId,
    /// Generations that have not ended.
    running: usize,
    prompt_tokens: u32,
    cached_tokens: CachedTokens,
    generated_tokens: u32,
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
        self.running = self.running.saturating_sub(1);
        (self.running == 0).then(|| Sizes {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens.sum(),
            generated_tokens: self.generated_tokens,
        })
    }
}

/// The error that ends the stream of the request `id`, logged and with its id.
pub fn failure_in_stream(error: &InferError, id: &RequestId) -> ApiError {
    let mut error = ApiError::from(error.clone());
    let id = request_id(id);
    error.log_in_stream(id);
    error.body.request_id = Some(id.to_owned());
    error
}

/// The error with the client's names in its message.
pub fn renamed(error: impl Into<ApiError>, names: &Names) -> ApiError {
    let mut error = error.into();
    for &(ours, theirs) in names {
        if error.param == Some(ours) {
            error.param = Some(theirs);
        }
        error.body.error = error
            .body
            .error
            .replace(&format!("`{ours}`"), &format!("`{theirs}`"));
    }
    error
}
