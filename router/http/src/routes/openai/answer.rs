//! Bodies of answers and of the events of a stream. Keys are in TGI's order.

use serde::Serialize;
use text_generation_core::types::{FinishReason, PredictedTokens};
use utoipa::ToSchema;
use uuid::Uuid;

use super::logprobs::{ChatLogprobs, CompletionLogprobs};
use crate::conversation::{Answer, EndReason};
use crate::headers::Sizes;
use crate::state::unix_time;

/// Version and build of the server; answers to one seed may differ where it differs.
pub const SYSTEM_FINGERPRINT: &str = concat!(env!("CARGO_PKG_VERSION"), "-native");

/// What all answers to one request say about it.
#[derive(Debug, Clone)]
pub struct Identity {
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
}

impl Identity {
    /// `prefix` tells the endpoint. Ids are random: `x-request-id`, which clients choose, need not be unique.
    pub fn new(prefix: &str, model: String) -> Self {
        Self {
            id: format!("{prefix}-{}", Uuid::new_v4().simple()),
            created: unix_time(),
            model,
        }
    }
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Usage {
    /// Of all prompts, each counted once.
    #[schema(example = 12)]
    pub prompt_tokens: u32,
    /// Of all choices.
    #[schema(example = 32)]
    pub completion_tokens: u32,
    #[schema(example = 44)]
    pub total_tokens: u32,
    pub prompt_tokens_details: PromptTokensDetails,
    /// Where the request had a `prediction` that this server drafts from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// What is known of the tokens of prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Those that were computed for an earlier request.
    #[schema(example = 0)]
    pub cached_tokens: u32,
}

/// What is known of the tokens of a prediction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Those that the answer has.
    #[schema(example = 18)]
    pub accepted_prediction_tokens: u32,
    /// Those that it does not have. They are not in `completion_tokens`.
    #[schema(example = 10)]
    pub rejected_prediction_tokens: u32,
}

impl From<PredictedTokens> for CompletionTokensDetails {
    fn from(tokens: PredictedTokens) -> Self {
        Self {
            accepted_prediction_tokens: tokens.accepted,
            rejected_prediction_tokens: tokens.rejected,
        }
    }
}

impl From<Sizes> for Usage {
    fn from(sizes: Sizes) -> Self {
        Self {
            prompt_tokens: sizes.prompt_tokens,
            completion_tokens: sizes.generated_tokens,
            total_tokens: sizes.prompt_tokens.saturating_add(sizes.generated_tokens),
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: sizes.cached_tokens,
            },
            completion_tokens_details: sizes.predicted.map(Into::into),
        }
    }
}

/// Why a text ended, in OpenAI's words: an end-of-sequence token and a stop string are both `stop`.
pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::EosToken | FinishReason::StopSequence => "stop",
    }
}

/// Why an answer of a chat ended.
pub fn end_reason(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Length => "length",
        EndReason::Stop | EndReason::StopSequence => "stop",
        EndReason::ToolCalls => "tool_calls",
    }
}

/// Answer of `/v1/chat/completions`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    #[schema(example = "chat.completion")]
    pub object: &'static str,
    #[schema(example = "chatcmpl-7d9f4d1b3c5e4f6a8b9c0d1e2f3a4b5c")]
    pub id: String,
    #[schema(example = 1_760_000_000)]
    pub created: u64,
    #[schema(example = "meta-llama/Llama-3.1-8B-Instruct")]
    pub model: String,
    #[schema(example = "0.1.0-native")]
    pub system_fingerprint: &'static str,
    pub choices: Vec<ChatChoice>,
    pub usage: Usage,
    /// With `return_token_ids`: the tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// One answer of a chat.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    pub index: usize,
    pub message: AssistantMessage,
    #[schema(nullable = true)]
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    #[schema(example = "stop")]
    pub finish_reason: &'static str,
    /// With `use_beam_search`: the sum of the log-probabilities, divided by the length to the power of `length_penalty`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beam_score: Option<f32>,
    /// With `return_token_ids`: the tokens that were generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// What the model said.
#[derive(Debug, Serialize, ToSchema)]
pub struct AssistantMessage {
    #[schema(example = "assistant")]
    pub role: &'static str,
    /// Null where there are calls and nothing else.
    #[schema(nullable = true, example = "Hello!")]
    pub content: Option<String>,
    /// What the model thought, where it is told apart: `separate_reasoning`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A call that the model makes.
#[derive(Debug, Serialize, ToSchema)]
pub struct ToolCall {
    /// Names the call in the message of the role `tool` with its result.
    #[schema(example = "call_k3J9")]
    pub id: String,
    #[schema(example = "function")]
    pub r#type: &'static str,
    pub function: FunctionCall,
}

/// The function that is called, or the custom tool.
#[derive(Debug, Serialize, ToSchema)]
pub struct FunctionCall {
    #[schema(example = "get_weather")]
    pub name: String,
    /// JSON of an object, but where the answer was cut off.
    #[schema(example = "{\"city\": \"Paris\"}")]
    pub arguments: String,
}

impl From<Answer> for AssistantMessage {
    fn from(answer: Answer) -> Self {
        let calls = answer.calls.into_iter().map(|call| ToolCall {
            id: call.id,
            r#type: "function",
            function: FunctionCall {
                name: call.name,
                arguments: call.arguments,
            },
        });
        let tool_calls: Vec<_> = calls.collect();
        let silent = answer.content.is_empty() && !tool_calls.is_empty();
        Self {
            role: "assistant",
            content: (!silent).then_some(answer.content),
            reasoning_content: Some(answer.reasoning).filter(|text| !text.is_empty()),
            tool_calls,
        }
    }
}

/// Answer of `/v1/completions`.
#[derive(Debug, Serialize, ToSchema)]
pub struct Completion {
    #[schema(example = "text_completion")]
    pub object: &'static str,
    #[schema(example = "cmpl-7d9f4d1b3c5e4f6a8b9c0d1e2f3a4b5c")]
    pub id: String,
    #[schema(example = 1_760_000_000)]
    pub created: u64,
    #[schema(example = "meta-llama/Llama-3.1-8B")]
    pub model: String,
    #[schema(example = "0.1.0-native")]
    pub system_fingerprint: &'static str,
    /// In the order of the prompts, all choices of one after each other.
    pub choices: Vec<CompletionChoice>,
    pub usage: Usage,
}

/// One text.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChoice {
    pub index: usize,
    #[schema(example = " there was a little girl")]
    pub text: String,
    #[schema(nullable = true)]
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`.
    #[schema(example = "length")]
    pub finish_reason: &'static str,
    /// With `use_beam_search`: the sum of the log-probabilities, divided by the length to the power of `length_penalty`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beam_score: Option<f32>,
    /// With `return_token_ids`: the tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// With `return_token_ids`: the tokens that were generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// One event of a chat stream. Written by `chunk`; this type is its documentation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "object": "chat.completion.chunk",
    "id": "chatcmpl-7d9f4d1b3c5e4f6a8b9c0d1e2f3a4b5c",
    "created": 1_760_000_000,
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "system_fingerprint": "0.1.0-native",
    "choices": [{"index": 0, "delta": {"content": "Hel"}, "logprobs": null, "finish_reason": null}],
    "usage": null
}))]
pub struct ChatCompletionChunk {
    #[schema(pattern = r"^chat\.completion\.chunk$")]
    pub object: String,
    pub id: String,
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
    /// Empty in the chunk with the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// Null but in the last chunk, which comes when `stream_options.include_usage` is set.
    #[schema(nullable = true)]
    pub usage: Option<Usage>,
    /// With `return_token_ids`, in the first chunk of each choice: the tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// What one choice gained.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChunkChoice {
    pub index: usize,
    pub delta: Delta,
    #[schema(nullable = true)]
    pub logprobs: Option<ChatLogprobs>,
    /// Set in the last chunk of the choice: `stop`, `length` or `tool_calls`.
    #[schema(nullable = true)]
    pub finish_reason: Option<String>,
    /// With `return_token_ids`: the token that the chunk is the first of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// The keys that a chunk has something for.
#[derive(Debug, Serialize, ToSchema)]
pub struct Delta {
    /// In the first chunk of each choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCallDelta>>,
}

/// What a call gained.
#[derive(Debug, Serialize, ToSchema)]
pub struct ToolCallDelta {
    /// Place of the call among those of the message.
    pub index: usize,
    /// With the first delta of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// With the first delta of the call: `function`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
    pub function: FunctionDelta,
}

/// The name comes with the first delta of a call, the arguments piece by piece.
#[derive(Debug, Serialize, ToSchema)]
pub struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}

/// One event of a completion stream. Written by `chunk`; this type is its documentation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "object": "text_completion",
    "id": "cmpl-7d9f4d1b3c5e4f6a8b9c0d1e2f3a4b5c",
    "created": 1_760_000_000,
    "model": "meta-llama/Llama-3.1-8B",
    "system_fingerprint": "0.1.0-native",
    "choices": [{"index": 0, "text": " there", "logprobs": null, "finish_reason": null}],
    "usage": null
}))]
pub struct CompletionChunk {
    #[schema(pattern = r"^text_completion$")]
    pub object: String,
    pub id: String,
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
    /// Empty in the chunk with the usage.
    pub choices: Vec<CompletionChunkChoice>,
    /// Null but in the last chunk, which comes when `stream_options.include_usage` is set.
    #[schema(nullable = true)]
    pub usage: Option<Usage>,
}

/// What one text gained.
#[derive(Debug, Serialize, ToSchema)]
pub struct CompletionChunkChoice {
    pub index: usize,
    pub text: String,
    #[schema(nullable = true)]
    pub logprobs: Option<CompletionLogprobs>,
    /// Set in the last chunk of the choice: `stop` or `length`.
    #[schema(nullable = true)]
    pub finish_reason: Option<String>,
    /// With `return_token_ids`, in the first chunk of the choice: the tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// With `return_token_ids`: the token of the chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}
