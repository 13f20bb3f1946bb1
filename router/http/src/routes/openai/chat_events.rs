//! Streams of `/v1/chat/completions`: what the model says in, server-sent events out.
//!
//! For each choice: its role, with `content: null` where a call follows; reasoning, content and calls as they come, where
//! a call begins with its id, its name and no arguments; the reason of its end. After the last choice the usage, where it
//! was asked for, and `[DONE]`.

use std::ops::ControlFlow;
use std::sync::Arc;

use serde::Serialize;
use text_generation_core::error::InferError;
use text_generation_core::infer::Infer;
use text_generation_core::types::Token;
use text_generation_formats::Delta;
use tower_http::request_id::RequestId;
use utoipa::ToSchema;

use super::answer::{self, ChatCompletionChunk, Identity};
use super::chunk::Chunks;
use super::logprobs::ChatLogprobs;
use super::sampling::TokenIds;
use crate::conversation::ConversationEvent;
use crate::error::OpenAiErrorResponse;
use crate::sse::{Encoder, EventBuffer};

/// Event of a stream of `/v1/chat/completions`: a chunk, or the error that ends the stream. `[DONE]` follows the last.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ChatEvent {
    Chunk(ChatCompletionChunk),
    Error(OpenAiErrorResponse),
}

/// Events of one chat.
#[derive(Debug)]
pub struct ChatEvents {
    id: RequestId,
    chunks: Chunks,
    /// For each choice, whether its role was sent.
    begun: Vec<bool>,
    /// Set when log-probabilities were asked for.
    logprobs: Option<Infer>,
    include_usage: bool,
    tokens: TokenIds,
    /// The prompt, where its tokens were asked for.
    prompt: Option<Arc<[u32]>>,
    /// Whether what the model thinks is left out.
    without_reasoning: bool,
}

impl ChatEvents {
    pub fn new(
        identity: &Identity,
        choices: usize,
        id: RequestId,
        logprobs: Option<Infer>,
        include_usage: bool,
    ) -> Self {
        Self {
            id,
            chunks: Chunks::new("chat.completion.chunk", identity, choices),
            begun: vec![false; choices],
            logprobs,
            include_usage,
            tokens: TokenIds::default(),
            prompt: None,
            without_reasoning: false,
        }
    }

    /// How tokens are named, with the ids of the prompt.
    pub fn naming_tokens(mut self, tokens: TokenIds, prompt: Arc<[u32]>) -> Self {
        self.tokens = tokens;
        self.prompt = tokens.returned.then_some(prompt);
        self
    }

    /// Leaves out what the model thinks.
    pub fn without_reasoning(mut self, without: bool) -> Self {
        self.without_reasoning = without;
        self
    }

    fn is_written(&self, delta: &Delta) -> bool {
        match delta {
            Delta::ToolEnd { .. } => false,
            Delta::Reasoning(_) => !self.without_reasoning,
            _ => true,
        }
    }

    /// The role of a choice, before the first that is said of it.
    fn begin(&mut self, choice: usize, first: Option<&Delta>, out: &mut EventBuffer) {
        if let Some(begun) = self.begun.get_mut(choice).filter(|begun| !**begun) {
            *begun = true;
            if let Some(ids) = &self.prompt {
                self.chunks.tell_prompt(ids);
            }
            let begins_with_call = matches!(first, Some(Delta::ToolStart { .. }));
            self.chunks.role(choice, begins_with_call, out);
        }
    }

    /// The log-probabilities of a token. As its id, they come with the first delta of the token, in a chunk of no text
    /// where it has none.
    fn logprobs(&self, token: &Token, top: &[Token]) -> Option<ChatLogprobs> {
        let infer = self.logprobs.as_ref()?;
        let mut logprobs = ChatLogprobs::default();
        logprobs.push(token, top, self.tokens.as_names, infer);
        Some(logprobs)
    }

    fn delta(
        &mut self,
        choice: usize,
        delta: &Delta,
        logprobs: Option<&ChatLogprobs>,
        out: &mut EventBuffer,
    ) {
        let chunks = &mut self.chunks;
        match delta {
            Delta::Reasoning(text) => {
                chunks.text_delta(choice, "reasoning_content", text, logprobs, out);
            }
            Delta::Content(text) => chunks.text_delta(choice, "content", text, logprobs, out),
            Delta::ToolStart { index, id, name } => {
                chunks.call(choice, *index, id, name, logprobs, out);
            }
            Delta::ToolArguments { index, fragment } => {
                chunks.arguments(choice, *index, fragment, logprobs, out);
            }
            // The next call, or the end, says it.
            Delta::ToolEnd { .. } => {}
        }
    }
}

impl Encoder for ChatEvents {
    type Event = ConversationEvent;

    fn event(&mut self, event: ConversationEvent, out: &mut EventBuffer) -> ControlFlow<()> {
        let choice = event.choice;
        let mut logprobs = self.logprobs(&event.token, &event.top_tokens);
        let mut untold = logprobs.is_some() || self.tokens.returned;
        let first = event.deltas.iter().find(|delta| self.is_written(delta));
        if first.is_some() || untold || event.end.is_some() {
            self.begin(choice, first, out);
        }
        if self.tokens.returned {
            self.chunks.tell_token(event.token.id);
        }
        for delta in &event.deltas {
            if self.is_written(delta) {
                self.delta(choice, delta, logprobs.take().as_ref(), out);
                untold = false;
            }
        }
        if untold {
            self.chunks
                .text_delta(choice, "content", "", logprobs.as_ref(), out);
        }
        let Some(end) = event.end else {
            return ControlFlow::Continue(());
        };
        self.chunks
            .finish_chat(choice, answer::end_reason(end.reason), out);
        let Some(sizes) = end.request else {
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

#[cfg(test)]
mod tests;
