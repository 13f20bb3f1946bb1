//! The response as it stands at its beginning and at its end.

use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::conversation::{End, EndReason};
use crate::error::ApiError;
use crate::state::unix_time;

/// What all forms of one response say.
#[derive(Debug)]
pub struct ResponseHead {
    id: String,
    /// Seconds since 1970.
    created_at: u64,
    model: String,
    /// What repeats the request.
    repeated: Map<String, Value>,
}

impl ResponseHead {
    pub fn new(model: String, repeated: Map<String, Value>) -> Self {
        Self {
            id: format!("resp_{}", Uuid::new_v4().simple()),
            created_at: unix_time(),
            model,
            repeated,
        }
    }

    /// While it runs.
    pub fn running(&self) -> Value {
        self.with("in_progress", &[], json!({}))
    }

    /// After its last token.
    pub fn ended(&self, end: &End, output: &[Value]) -> Value {
        let own = json!({
            "completed_at": unix_time(),
            "incomplete_details": cut(end).then(|| json!({"reason": "max_output_tokens"})),
            "usage": usage(end),
        });
        let status = if cut(end) { "incomplete" } else { "completed" };
        self.with(status, output, own)
    }

    /// When it could not be ended.
    pub fn failed(&self, error: &ApiError, output: &[Value]) -> Value {
        let error = error.openai().error;
        let code = match (error.code, error.r#type) {
            ("context_length_exceeded", _) => "context_length_exceeded",
            (_, "rate_limit_error") => "rate_limit_exceeded",
            _ => "server_error",
        };
        let own = json!({"error": {"code": code, "message": error.message}});
        self.with("failed", output, own)
    }

    /// The status of the item that was open at the end.
    pub fn item_status(&self, end: &End) -> &'static str {
        if cut(end) { "incomplete" } else { "completed" }
    }

    fn with(&self, status: &str, output: &[Value], own: Value) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": null,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": output,
            "usage": null,
        });
        if let (Some(response), Value::Object(own)) = (response.as_object_mut(), own) {
            response.extend(self.repeated.clone());
            response.extend(own);
        }
        response
    }
}

/// Whether the limit of tokens ended it.
fn cut(end: &End) -> bool {
    end.reason == EndReason::Length
}

fn usage(end: &End) -> Option<Value> {
    let sizes = end.request?;
    let (input, output) = (sizes.prompt_tokens, sizes.generated_tokens);
    Some(json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": sizes.cached_tokens},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
        "total_tokens": input.saturating_add(output),
    }))
}

/// Answer of `/v1/responses`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResponseObject {
    #[schema(example = "resp_7d9f4d1b3c5e4f6a8b9c0d1e2f3a4b5c")]
    pub id: String,
    #[schema(example = "response")]
    pub object: String,
    #[schema(example = 1_760_000_000)]
    pub created_at: u64,
    /// `in_progress`, `completed`, `incomplete` or `failed`.
    #[schema(example = "completed")]
    pub status: String,
    #[schema(nullable = true, value_type = Option<Object>)]
    pub error: Option<Value>,
    /// `{"reason": "max_output_tokens"}` where the limit of tokens ended it.
    #[schema(nullable = true, value_type = Option<Object>)]
    pub incomplete_details: Option<Value>,
    #[schema(example = "meta-llama/Llama-3.1-8B-Instruct")]
    pub model: String,
    /// Items of the types `reasoning`, `message`, `function_call` and `custom_tool_call`.
    #[schema(value_type = Vec<Object>)]
    pub output: Vec<Value>,
    #[schema(nullable = true, value_type = Option<Object>)]
    pub usage: Option<Value>,
    /// Whether the output is remembered for a while, for requests that refer to it.
    pub store: bool,
}

/// Event of a stream of `/v1/responses`; the other keys depend on the type.
#[derive(Debug, Serialize, ToSchema)]
pub struct ResponseEvent {
    #[schema(example = "response.output_text.delta")]
    pub r#type: String,
    /// Counts the events of the stream from 0.
    #[schema(example = 4)]
    pub sequence_number: u64,
}

/// Answer of `/v1/responses/input_tokens`.
#[derive(Debug, Serialize, ToSchema)]
pub struct InputTokens {
    #[schema(example = "response.input_tokens")]
    pub object: &'static str,
    /// Tokens of the prompt.
    #[schema(example = 12)]
    pub input_tokens: usize,
}
