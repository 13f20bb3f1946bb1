//! Bodies of the routes that hosting platforms call.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use text_generation_core::types::GenerateParameters;
use utoipa::ToSchema;

use super::openai::{
    ChatBody, ChatCompletion, ChatCompletionChunk, Completion, CompletionBody, CompletionChunk,
};
use crate::error::{ErrorResponse, OpenAiErrorResponse};
use crate::extract::not_null;
use crate::fields::own_fields;
use crate::schema::{CompatGenerateBody, GenerateResponse, StreamResponse};

/// Body of `/invocations`: that of `/`, of `/v1/chat/completions` or of `/v1/completions`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum InvocationBody {
    Generate(Box<CompatGenerateBody>),
    Chat(Box<ChatBody>),
    Completion(Box<CompletionBody>),
}

/// Answer of `/invocations`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum InvocationAnswer {
    Generate(Vec<GenerateResponse>),
    Chat(ChatCompletion),
    Completion(Completion),
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

/// One request of `/vertex`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum VertexInstance {
    Chat(Box<ChatBody>),
    Generate(VertexGenerateBody),
}

/// A request of `/vertex` with a prompt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
#[schema(example = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 20}}))]
pub struct VertexGenerateBody {
    /// The prompt.
    pub inputs: String,
    /// As for `/generate`, but that tokens are sampled unless `do_sample` is false.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(value_type = GenerateParameters)]
    pub parameters: Option<Box<RawValue>>,
}

own_fields!(VertexGenerateBody);

/// Body of `/vertex`.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"instances": [{"inputs": "Once upon a time", "parameters": {"max_new_tokens": 20}}]}))]
pub struct VertexBody {
    /// At most `--max-client-batch-size`.
    #[schema(value_type = Vec<VertexInstance>)]
    pub instances: Vec<Box<RawValue>>,
}

/// Answer of `/vertex`.
#[derive(Debug, Serialize, ToSchema)]
pub struct VertexResponse {
    #[schema(example = json!([", there was a little girl"]))]
    pub predictions: Vec<String>,
}
