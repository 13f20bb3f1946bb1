//! Reads what one generation says.

use text_generation_core::types::{FinishReason, Token};
use text_generation_formats::{Delta, OutputParser};

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The model had said all.
    Stop,
    /// A stop string of the request.
    StopSequence,
    /// The token limit, maybe in the middle of a call.
    Length,
    /// The model has called tools and waits for their results.
    ToolCalls,
}

/// Turns the texts of one generation's tokens into deltas.
#[derive(Debug)]
pub(super) struct Reader {
    /// Nothing where all text is content.
    parser: Option<OutputParser>,
    called: bool,
    /// Whether the last call has begun and not ended.
    in_call: bool,
    reasoning_tokens: u32,
}

impl Reader {
    pub fn new(parser: Option<OutputParser>) -> Self {
        Self {
            parser,
            called: false,
            in_call: false,
            reasoning_tokens: 0,
        }
    }

    /// Takes the text of the next token; with the `last` one also what was held back until now.
    pub fn read(&mut self, token: &mut Token, last: bool) -> Vec<Delta> {
        let text = std::mem::take(&mut token.text);
        let mut deltas = Vec::new();
        match &mut self.parser {
            None if text.is_empty() => {}
            None => deltas.push(Delta::Content(text)),
            Some(parser) => {
                if !text.is_empty() {
                    parser.push(&text, &mut deltas);
                }
                if last {
                    parser.finish(&mut deltas);
                }
            }
        }
        for delta in &deltas {
            match delta {
                Delta::ToolStart { .. } => (self.called, self.in_call) = (true, true),
                Delta::ToolEnd { .. } => self.in_call = false,
                _ => {}
            }
        }
        let reasons = |delta: &Delta| matches!(delta, Delta::Reasoning(_));
        self.reasoning_tokens += u32::from(deltas.iter().any(reasons));
        deltas
    }

    /// Why the generation ended, after all of it was read.
    pub fn reason(&self, reason: FinishReason) -> EndReason {
        match reason {
            FinishReason::Length => EndReason::Length,
            // Nobody shall run a call whose arguments a stop string, a stop token or the model itself has cut.
            _ if self.called && !self.in_call => EndReason::ToolCalls,
            FinishReason::EosToken => EndReason::Stop,
            FinishReason::StopSequence => EndReason::StopSequence,
        }
    }

    /// Tokens that brought reasoning.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }
}
