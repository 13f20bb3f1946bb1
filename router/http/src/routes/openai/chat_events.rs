//! Streams of `/v1/chat/completions`: what the model says in, server-sent events out.
//!
//! For each choice: its role, with `content: null` where a call follows; reasoning, content and calls as they come, where a call begins with its id, its name and
//! no arguments; the reason of its end. After the last choice the usage, where it was asked for, and `[DONE]`.

use std::ops::ControlFlow;

use text_generation_core::error::InferError;
use text_generation_core::infer::Infer;
use text_generation_core::types::Token;
use text_generation_formats::Delta;
use tower_http::request_id::RequestId;

use super::answer::{self, Identity};
use super::chunk::Chunks;
use super::logprobs::ChatLogprobs;
use crate::conversation::ConversationEvent;
use crate::sse::{Encoder, EventBuffer};

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
        }
    }

    /// The log-probabilities of a token. They come with the first delta of the token, in a chunk of no text where it
    /// has none.
    fn logprobs(&self, token: &Token, top: &[Token]) -> Option<ChatLogprobs> {
        let infer = self.logprobs.as_ref()?;
        let mut logprobs = ChatLogprobs::default();
        logprobs.push(token, top, infer);
        Some(logprobs)
    }

    fn delta(
        &self,
        choice: usize,
        delta: &Delta,
        logprobs: Option<&ChatLogprobs>,
        out: &mut EventBuffer,
    ) {
        let chunks = &self.chunks;
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
        let written = |delta: &&Delta| !matches!(delta, Delta::ToolEnd { .. });
        let first = event.deltas.iter().find(written);
        let says_something = first.is_some() || logprobs.is_some() || event.end.is_some();
        if let Some(begun) = self.begun.get_mut(choice)
            && !*begun
            && says_something
        {
            *begun = true;
            let begins_with_call = matches!(first, Some(Delta::ToolStart { .. }));
            self.chunks.role(choice, begins_with_call, out);
        }
        for delta in event.deltas.iter().filter(written) {
            self.delta(choice, delta, logprobs.take().as_ref(), out);
        }
        if logprobs.is_some() {
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
