//! Streams of both endpoints: generations in, server-sent events out.

use std::ops::ControlFlow;

use text_generation_core::error::InferError;
use text_generation_core::infer::Infer;
use text_generation_core::types::{StreamEvent, Token};
use tower_http::request_id::RequestId;

use super::answer::{Usage, finish_reason};
use super::chunk::Chunks;
use super::generations::{CachedTokens, ChoiceEvent, log_streamed};
use super::logprobs::{ChatLogprobs, CompletionTokens};
use super::reasoning::ReasoningSplitter;
use crate::error::ApiError;
use crate::sse::{Encoder, EventBuffer};
use crate::timings::request_id;

/// What the streams of both endpoints count and say at their end.
#[derive(Debug)]
pub struct Ending {
    pub id: RequestId,
    /// Generations that have not ended.
    pub running: usize,
    pub prompt_tokens: u32,
    pub cached_tokens: CachedTokens,
    pub completion_tokens: u32,
    pub include_usage: bool,
}

impl Ending {
    /// Counts the end of one generation; after the last one writes what ends the stream.
    fn one(
        &mut self,
        index: usize,
        event: &StreamEvent,
        chunks: &Chunks,
        out: &mut EventBuffer,
    ) -> ControlFlow<()> {
        let StreamEvent::End {
            generated,
            cached_tokens,
            ..
        } = event
        else {
            return ControlFlow::Continue(());
        };
        self.cached_tokens.add(index, *cached_tokens);
        log_streamed(&self.id, self.prompt_tokens, event);
        self.completion_tokens += generated.generated_tokens;
        self.running -= 1;
        if self.running > 0 {
            return ControlFlow::Continue(());
        }
        if self.include_usage {
            let usage = Usage::new(
                self.prompt_tokens,
                self.cached_tokens.sum(),
                self.completion_tokens,
            );
            chunks.usage(&usage, out);
        }
        Chunks::done(out);
        ControlFlow::Break(())
    }

    fn failure(&self, error: &InferError, out: &mut EventBuffer) {
        let mut error = ApiError::from(error.clone());
        let id = request_id(&self.id);
        error.log_in_stream(id);
        error.body.request_id = Some(id.to_owned());
        out.push(&error.openai());
        Chunks::done(out);
    }
}

/// Events of `/v1/chat/completions`.
#[derive(Debug)]
pub struct ChatEvents {
    pub ending: Ending,
    pub chunks: Chunks,
    pub choices: Vec<ChatChoice>,
    /// Set when log-probabilities were asked for.
    pub logprobs: Option<Infer>,
}

/// One choice of a chat stream.
#[derive(Debug, Default)]
pub struct ChatChoice {
    begun: bool,
    reasoning: Option<ReasoningSplitter>,
}

impl ChatChoice {
    pub fn new(reasoning: Option<ReasoningSplitter>) -> Self {
        Self {
            begun: false,
            reasoning,
        }
    }
}

impl ChatEvents {
    fn token(&mut self, index: usize, token: &Token, top: &[Token], out: &mut EventBuffer) {
        let Some(choice) = self.choices.get_mut(index) else {
            return;
        };
        if !choice.begun {
            choice.begun = true;
            self.chunks.role(index, out);
        }
        let mut logprobs = self.logprobs.as_ref().map(|infer| {
            let mut logprobs = ChatLogprobs::default();
            logprobs.push(token, top, infer);
            logprobs
        });
        let mut delta = |key, text: &str| {
            if !text.is_empty() || logprobs.is_some() {
                self.chunks
                    .delta(index, key, text, logprobs.take().as_ref(), out);
            }
        };
        let Some(splitter) = &mut choice.reasoning else {
            return delta("content", &token.text);
        };
        let split = splitter.push(&token.text);
        if !split.reasoning.is_empty() {
            delta("reasoning_content", &split.reasoning);
        }
        delta("content", &split.content);
    }

    fn finish(&mut self, index: usize, reason: &'static str, out: &mut EventBuffer) {
        let splitter = self
            .choices
            .get_mut(index)
            .and_then(|choice| choice.reasoning.as_mut());
        if let Some(splitter) = splitter {
            let split = splitter.finish();
            for (key, text) in [
                ("reasoning_content", split.reasoning),
                ("content", split.content),
            ] {
                if !text.is_empty() {
                    self.chunks.delta(index, key, &text, None, out);
                }
            }
        }
        self.chunks.finish_chat(index, reason, out);
    }
}

impl Encoder for ChatEvents {
    type Event = ChoiceEvent;

    fn event(&mut self, (index, event): ChoiceEvent, out: &mut EventBuffer) -> ControlFlow<()> {
        match &event {
            StreamEvent::Prefill(_) => {}
            StreamEvent::Token { token, top_tokens } => self.token(index, token, top_tokens, out),
            StreamEvent::End {
                token,
                top_tokens,
                generated,
                ..
            } => {
                self.token(index, token, top_tokens, out);
                self.finish(index, finish_reason(generated.finish_reason), out);
            }
        }
        self.ending.one(index, &event, &self.chunks, out)
    }

    fn failure(&mut self, error: &InferError, out: &mut EventBuffer) {
        self.ending.failure(error, out);
    }
}

/// Events of `/v1/completions`.
#[derive(Debug)]
pub struct CompletionEvents {
    pub ending: Ending,
    pub chunks: Chunks,
    pub choices: Vec<CompletionChoice>,
    /// Set when log-probabilities were asked for.
    pub logprobs: Option<Infer>,
}

/// One choice of a completion stream.
#[derive(Debug)]
pub struct CompletionChoice {
    /// The prompt, until it is sent.
    echo: Option<String>,
    tokens: CompletionTokens,
}

impl CompletionChoice {
    /// `top` tells whether alternatives were asked for.
    pub fn new(echo: Option<String>, top: bool) -> Self {
        Self {
            echo,
            tokens: CompletionTokens::new(top),
        }
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
        if let Some(prompt) = choice.echo.take() {
            self.chunks.text(index, &prompt, None::<&()>, None, out);
        }
        let logprobs = self.logprobs.as_ref().map(|infer| {
            let mut list = choice.tokens.list();
            choice.tokens.push(&mut list, token, top, infer);
            list
        });
        if !token.text.is_empty() || logprobs.is_some() || reason.is_some() {
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
                    let list = choice.tokens.prompt(prompt, infer);
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
        self.ending.one(index, &event, &self.chunks, out)
    }

    fn failure(&mut self, error: &InferError, out: &mut EventBuffer) {
        self.ending.failure(error, out);
    }
}
