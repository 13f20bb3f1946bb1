//! Streams of `/v1/completions`: generations in, server-sent events out.

use std::ops::ControlFlow;
use std::sync::Arc;

use serde::Serialize;
use text_generation_core::error::InferError;
use text_generation_core::infer::Infer;
use text_generation_core::types::{StreamEvent, Token};
use tower_http::request_id::RequestId;
use utoipa::ToSchema;

use super::answer::{CompletionChunk, finish_reason};
use super::chunk::Chunks;
use super::logprobs::CompletionTokens;
use crate::error::OpenAiErrorResponse;
use crate::generations::{ChoiceEvent, Tally};
use crate::sse::{Encoder, EventBuffer};

/// Event of a stream of `/v1/completions`: a chunk, or the error that ends the stream. `[DONE]` follows the last.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum CompletionEvent {
    Chunk(CompletionChunk),
    Error(OpenAiErrorResponse),
}

/// Events of `/v1/completions`.
#[derive(Debug)]
pub struct CompletionEvents {
    pub id: RequestId,
    pub tally: Tally,
    pub include_usage: bool,
    pub chunks: Chunks,
    pub choices: Vec<CompletionChoice>,
    /// Whether each event has the id of its token.
    pub token_ids: bool,
    /// Set when log-probabilities were asked for.
    pub logprobs: Option<Infer>,
}

/// One choice of a completion stream.
#[derive(Debug)]
pub struct CompletionChoice {
    /// The prompt, until it is sent.
    echo: Option<String>,
    /// The tokens of the prompt, until they are sent, where they were asked for.
    prompt: Option<Arc<[u32]>>,
    tokens: CompletionTokens,
}

impl CompletionChoice {
    pub fn new(echo: Option<String>, tokens: CompletionTokens) -> Self {
        Self {
            echo,
            prompt: None,
            tokens,
        }
    }

    /// Its first event has the tokens of its prompt.
    pub fn with_prompt(mut self, prompt: Arc<[u32]>) -> Self {
        self.prompt = Some(prompt);
        self
    }
}

impl CompletionEvents {
    fn token(
        &mut self,
        index: usize,
        token: &Token,
        top: &[Token],
        reason: Option<&'static str>,
        out: &mut EventBuffer,
    ) {
        let Some(choice) = self.choices.get_mut(index) else {
            return;
        };
        if let Some(ids) = choice.prompt.take() {
            self.chunks.tell_prompt_of_choice(&ids);
        }
        if let Some(prompt) = choice.echo.take() {
            self.chunks.text(index, &prompt, None::<&()>, None, out);
        }
        let logprobs = self.logprobs.as_ref().map(|infer| {
            let mut list = choice.tokens.list();
            choice.tokens.push(&mut list, token, top, infer);
            list
        });
        if self.token_ids {
            self.chunks.tell_token(token.id);
        }
        if !token.text.is_empty() || logprobs.is_some() || reason.is_some() || self.token_ids {
            self.chunks
                .text(index, &token.text, logprobs.as_ref(), reason, out);
        }
    }
}

impl Encoder for CompletionEvents {
    type Event = ChoiceEvent;

    fn event(&mut self, (index, event): ChoiceEvent, out: &mut EventBuffer) -> ControlFlow<()> {
        match &event {
            StreamEvent::Prefill(prompt) => {
                if let (Some(infer), Some(choice)) = (&self.logprobs, self.choices.get_mut(index))
                    && let Some(text) = choice.echo.take()
                {
                    if let Some(ids) = choice.prompt.take() {
                        self.chunks.tell_prompt_of_choice(&ids);
                    }
                    let list = choice.tokens.prompt(prompt, &text, infer);
                    self.chunks.text(index, &text, Some(&list), None, out);
                }
            }
            StreamEvent::Token { token, top_tokens } => {
                self.token(index, token, top_tokens, None, out);
            }
            StreamEvent::End {
                token,
                top_tokens,
                generated,
                ..
            } => {
                let reason = finish_reason(generated.finish_reason);
                self.token(index, token, top_tokens, Some(reason), out);
            }
        }
        let Some(sizes) = self.tally.end(index, &event) else {
            return ControlFlow::Continue(());
        };
        let usage = self.include_usage.then(|| sizes.into());
        self.chunks.last(usage, out);
        ControlFlow::Break(())
    }

    fn failure(&mut self, error: &InferError, out: &mut EventBuffer) {
        Chunks::failure(error, &self.id, out);
    }
}
