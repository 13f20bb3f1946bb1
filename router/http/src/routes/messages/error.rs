//! Errors in Anthropic's words.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::error::ApiError;

/// Paths whose errors are written so.
pub fn is_ours(path: &str) -> bool {
    path == "/v1/messages" || path.starts_with("/v1/messages/")
}

/// The body of an error.
pub fn anthropic(error: &ApiError) -> Value {
    json!({
        "type": "error",
        "error": {"type": kind(error.status), "message": error.body.error},
        "error_type": error.body.error_type,
        "request_id": error.body.request_id,
    })
}

/// The status that Anthropic's clients expect of a wrong body.
pub fn status(error: &ApiError) -> StatusCode {
    match error.status {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
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
