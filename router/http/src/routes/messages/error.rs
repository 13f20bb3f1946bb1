//! Errors of the routes below `/v1/messages`.

use utoipa::IntoResponses;

use crate::error::{Api, ApiError, NO_THREADS, anthropic};
use crate::openapi::{self, Responses};
use crate::routes::openai::sampling::refused;

/// Failures of the routes below `/v1/messages`, for the OpenAPI document.
#[derive(Debug)]
pub struct MessageErrors;

impl IntoResponses for MessageErrors {
    fn responses() -> Responses {
        openapi::describe(&openapi::errors_of(Api::Messages), anthropic)
    }
}

/// Refuses a request that creates a conversation on the server, or goes on with one.
pub fn no_threads() -> ApiError {
    ApiError {
        code: Some(NO_THREADS),
        param: Some("thread"),
        ..refused(
            "`thread`: this server stores no conversations; send the whole one with every request, without `thread`",
        )
    }
}
