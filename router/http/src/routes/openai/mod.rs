//! The OpenAI API. `*_body` is what clients send, `answer`, `logprobs` and `chunk` are what they get.

mod answer;
pub mod chat;
mod chat_body;
mod chat_events;
mod choices_body;
mod chunk;
pub mod classify;
mod completion_body;
mod completion_events;
pub mod completions;
mod earlier_calls;
pub mod fields;
mod logprobs;
pub mod models;
mod prediction;
pub mod render;
pub mod sampling;
pub(super) mod sampling_body;
pub mod score;
pub mod structured;
mod tools;

pub use answer::{ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk};
pub use chat_body::ChatBody;
pub use chat_events::ChatEvent;
pub use completion_body::CompletionBody;
pub use completion_events::CompletionEvent;
