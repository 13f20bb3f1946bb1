//! The message as it stands at its beginning and at its end.

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::blocks::Blocks;
use crate::conversation::{End, EndReason};
use crate::error::MessageErrorResponse;

/// What all forms of one message say.
#[derive(Debug)]
pub struct MessageHead {
    id: String,
    model: String,
    prompt_tokens: u32,
}

impl MessageHead {
    pub fn new(model: String, prompt_tokens: u32) -> Self {
        Self {
            id: format!("msg_{}", Uuid::new_v4().simple()),
            model,
            prompt_tokens,
        }
    }

    /// Before its first token.
    pub fn begun(&self) -> Value {
        self.with(&[], (None, None), tokens(self.prompt_tokens, 0, 0))
    }

    /// After its last token.
    pub fn ended(&self, end: &End, blocks: Blocks) -> Value {
        self.with(&blocks.into_content(), stop(end), self.usage(end))
    }

    pub fn usage(&self, end: &End) -> Value {
        let cached = end.request.map_or(0, |sizes| sizes.cached_tokens);
        tokens(self.prompt_tokens, cached, end.generated_tokens)
    }

    fn with(&self, content: &[Value], stop: (Option<&str>, Option<&str>), usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop.0,
            "stop_sequence": stop.1,
            "usage": usage,
        })
    }
}

/// Why the message ended, and the stop sequence that ended it.
pub fn stop(end: &End) -> (Option<&'static str>, Option<&str>) {
    let reason = match end.reason {
        EndReason::Length => "max_tokens",
        EndReason::StopSequence => "stop_sequence",
        EndReason::ToolCalls => "tool_use",
        EndReason::Stop => "end_turn",
    };
    (Some(reason), end.stop_sequence.as_deref())
}

/// Anthropic counts tokens of the cache apart.
fn tokens(prompt: u32, cached: u32, generated: u32) -> Value {
    json!({
        "input_tokens": prompt.saturating_sub(cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    })
}

/// Answer of `/v1/messages`.
#[derive(Debug, Serialize, ToSchema)]
pub struct MessageObject {
    #[schema(example = "msg_7d9f4d1b3c5e4f6a8b9c0d1e2f3a4b5c")]
    pub id: String,
    #[schema(example = "message")]
    pub r#type: String,
    #[schema(example = "assistant")]
    pub role: String,
    #[schema(example = "meta-llama/Llama-3.1-8B-Instruct")]
    pub model: String,
    /// Blocks of the types `thinking`, `text` and `tool_use`.
    #[schema(value_type = Vec<Object>)]
    pub content: Vec<Value>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    #[schema(nullable = true, example = "end_turn")]
    pub stop_reason: Option<String>,
    #[schema(nullable = true)]
    pub stop_sequence: Option<String>,
    #[schema(value_type = Object)]
    pub usage: Value,
}

/// Event of a stream of `/v1/messages`, or the error that ends it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "documents what is written as JSON")]
pub enum MessageEvent {
    Event(BlockEvent),
    Error(MessageErrorResponse),
}

/// One step of a message; the other keys depend on the type.
#[derive(Debug, Serialize, ToSchema)]
pub struct BlockEvent {
    #[schema(example = "content_block_delta")]
    pub r#type: String,
}

/// Answer of `/v1/messages/count_tokens`.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenCount {
    /// Tokens of the prompt.
    #[schema(example = 12)]
    pub input_tokens: usize,
}
