//! The OpenAI API. `*_body` is what clients send, `answer`, `logprobs` and `chunk` are what they get.

mod answer;
pub mod chat;
mod chat_body;
mod chunk;
mod completion_body;
pub mod completions;
mod events;
mod fields;
pub mod generations;
mod logprobs;
pub mod models;
mod reasoning;
mod sampling;

pub use answer::{ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk};
pub use chat_body::ChatBody;
pub use completion_body::CompletionBody;
