//! One form of a conversation for every API, and one stream of what the model says in it.
//!
//! A route reads its body into a [`Conversation`]. [`Conversation::prepare`] renders the prompt and chooses the grammar;
//! [`Prepared::start`] queues the generations; [`RunningConversation`] gives what they say as [`ConversationEvent`]s, or
//! gathers them: a whole answer is made of the same deltas as a stream. Routes only write these in the words of their
//! API.

mod answer;
mod history;
pub mod images;
#[cfg(test)]
mod played;
mod prepare;
mod reader;
mod reading;
mod reads;
mod running;
mod thoughts;
mod tools;
mod wishes;

pub use self::answer::{Answer, Call};
#[cfg(test)]
pub use self::played::{Played, encoded};
pub use self::prepare::Prepared;
pub use self::reader::EndReason;
pub use self::reading::Reading;
pub use self::running::{ConversationEvent, End, Finished, FinishedChoice, RunningConversation};
pub use self::tools::{OfferedTool, ToolWishes, choice_of};
pub use self::wishes::ReasoningWishes;

use std::borrow::Cow;

use text_generation_chat::ChatInput;
use text_generation_core::types::GenerateParameters;

use crate::generations::Names;

/// A request of any API for the next message of a conversation.
#[derive(Debug)]
pub struct Conversation {
    /// What the template renders, but the tools. Messages have the shape of chat completions: `role`, `content`,
    /// `tool_calls`, `tool_call_id`, and `reasoning_content` for what the model thought.
    pub input: ChatInput,
    pub tools: ToolWishes,
    /// How much the model shall reason.
    pub reasoning: ReasoningWishes,
    /// Whether reasoning comes apart from the content; where it is not said, it does when the model's format is known
    /// to have it.
    pub separate_reasoning: Option<bool>,
    /// How tokens are chosen, when a text ends, and the form that the content must have (`grammar`).
    pub parameters: GenerateParameters,
    /// Answers to generate.
    pub n: u32,
    /// What the API calls the fields of `core`, for messages of errors.
    pub names: Cow<'static, Names>,
}
