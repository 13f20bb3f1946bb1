//! Errors in Anthropic's words.

use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{ApiError, Context};

/// An answer that is not a success, and an error event in a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct MessageErrorResponse {
    #[schema(example = "error")]
    pub r#type: &'static str,
    pub error: MessageError,
    #[schema(example = "validation")]
    pub error_type: &'static str,
    #[schema(nullable = true, example = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff")]
    pub request_id: Option<String>,
}

/// What Anthropic's clients read of an error.
#[derive(Debug, Serialize, ToSchema)]
pub struct MessageError {
    #[schema(example = "invalid_request_error")]
    pub r#type: &'static str,
    #[schema(example = "Input validation error: `temperature` must be >= 0. Given: -1")]
    pub message: String,
    /// What clients can do without by themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<MessageErrorDetails>,
}

/// By this the SDKs of Anthropic know that they have to send whole conversations, and do so from then on.
#[derive(Debug, Serialize, ToSchema)]
pub struct MessageErrorDetails {
    #[schema(example = "thread_unsupported_request")]
    pub error_code: &'static str,
    #[schema(example = json!(["thread"]))]
    pub unsupported: [&'static str; 1],
}

/// Code of the error of a request that creates a conversation on the server, or goes on with one.
pub const NO_THREADS: &str = "thread_unsupported_request";

/// The body of an error.
pub fn anthropic(error: &ApiError) -> MessageErrorResponse {
    let context = error.context.as_deref().map(Context::anthropic);
    MessageErrorResponse {
        r#type: "error",
        error: MessageError {
            r#type: kind(error.status),
            message: context.unwrap_or_else(|| error.body.error.clone()),
            details: (error.code == Some(NO_THREADS)).then_some(MessageErrorDetails {
                error_code: NO_THREADS,
                unsupported: ["thread"],
            }),
        },
        error_type: error.body.error_type,
        request_id: error.body.request_id.clone(),
    }
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::FAILED_DEPENDENCY => "api_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}
