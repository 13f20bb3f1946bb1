//! Schemas of the events of streams: their data is JSON of these types, written elsewhere.

use serde::Serialize;
use utoipa::ToSchema;

use super::StreamResponse;
use crate::error::{ErrorResponse, OpenAiErrorResponse};
use crate::routes::openai::{ChatCompletionChunk, CompletionChunk};

/// Event of a stream of `/` and `/generate_stream`: a token, or the error that ends the stream.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum GenerateEvent {
    Token(StreamResponse),
    Error(ErrorResponse),
}

/// Event of a stream of `/v1/chat/completions`: a chunk, or the error that ends the stream. `[DONE]` follows the last.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ChatEvent {
    Chunk(ChatCompletionChunk),
    Error(OpenAiErrorResponse),
}

/// Event of a stream of `/v1/completions`: a chunk, or the error that ends the stream. `[DONE]` follows the last.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum CompletionEvent {
    Chunk(CompletionChunk),
    Error(OpenAiErrorResponse),
}

/// Event of a stream of `/invocations`: of `/`, of `/v1/chat/completions` or of `/v1/completions`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum InvocationEvent {
    Generate(StreamResponse),
    Chat(ChatCompletionChunk),
    Completion(CompletionChunk),
    Error(ErrorResponse),
    OpenAiError(OpenAiErrorResponse),
}
