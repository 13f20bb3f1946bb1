//! One error for every failure, in the shape of the API that was called; the table is `docs/errors.md`.
//!
//! TGI: `{"error": string, "error_type": string}`. OpenAI, under `/v1/`: an object, with `error_type` beside it.

mod anthropic;
mod api;
mod context;
mod found;

use std::fmt;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use text_generation_chat::ChatTemplateError;
use text_generation_core::error::{InferError, ValidationError};
use text_generation_core::metrics::request_refused;
use utoipa::ToSchema;

pub use self::anthropic::{MessageErrorResponse, NO_THREADS, anthropic};
pub use self::api::Api;
use self::context::CONTEXT_LENGTH_EXCEEDED;
pub use self::context::Context;

/// Characters of a message.
const LONGEST_MESSAGE: usize = 2000;

/// Body of an answer that is not a success, and of an error event in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorResponse {
    #[schema(example = "Input validation error: `temperature` must be strictly positive")]
    pub error: String,
    #[schema(example = "validation")]
    pub error_type: &'static str,
    /// The id of the request, as in the header `x-request-id` and in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff")]
    pub request_id: Option<String>,
}

/// Body of an answer below `/v1` that is not a success, and of an error event in a stream of these routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct OpenAiErrorResponse {
    pub error: OpenAiError,
    #[schema(example = "validation")]
    pub error_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff")]
    pub request_id: Option<String>,
}

/// What OpenAI's clients read of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct OpenAiError {
    #[schema(example = "Input validation error: `temperature` must be strictly positive")]
    pub message: String,
    #[schema(example = "invalid_request_error")]
    pub r#type: &'static str,
    /// The field that is wrong, where one is.
    #[schema(nullable = true, example = "temperature")]
    pub param: Option<String>,
    #[schema(example = "validation")]
    pub code: &'static str,
}

/// An error with its HTTP status.
///
/// The answer carries it as an extension too, so that the logging layer sees the text without reading the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub body: ErrorResponse,
    /// A finer name for OpenAI clients than `error_type`, where that API has one.
    pub code: Option<&'static str>,
    /// The field that is wrong, where the message does not name it first.
    pub param: Option<&'static str>,
    /// Set where the request does not fit into the context of the model.
    pub context: Option<Box<Context>>,
    /// Seconds after which a client may try again, with a status that says so.
    pub retry_after: u64,
}

impl ApiError {
    /// Refusals are the client's affair: noise in the log, and their messages may quote the body.
    pub fn is_refusal(&self) -> bool {
        !self.status.is_server_error() && self.status != StatusCode::FAILED_DEPENDENCY
    }

    /// The log line of the error that ends a stream, whose status was sent before.
    pub fn log_in_stream(&self, request_id: &str) {
        let error_type = self.body.error_type;
        if self.is_refusal() {
            tracing::debug!(request_id, error_type, "request refused");
        } else {
            tracing::error!(request_id, error_type, "{}", self.body.error);
        }
    }

    fn new(status: StatusCode, error_type: &'static str, error: impl Into<String>) -> Self {
        Self {
            status,
            body: ErrorResponse {
                error: bounded(error.into()),
                error_type,
                request_id: None,
            },
            code: None,
            param: None,
            context: None,
            retry_after: 1,
        }
    }

    /// Counts the refusal of a request that has not reached `core`, which counts all others.
    pub fn count(&self) {
        request_refused(match (self.status, self.body.error_type) {
            (_, "template_error") => "template",
            (StatusCode::UNPROCESSABLE_ENTITY, _) => "validation",
            (_, error_type) => error_type,
        });
    }

    /// The body of this error below `/v1`.
    pub fn openai(&self) -> OpenAiErrorResponse {
        // The messages of validation name the field first.
        let named = self.body.error_type == "validation";
        let first = || named.then(|| self.body.error.split('`').nth(1)).flatten();
        let param = self.param.or_else(first);
        let context = self.context.as_deref().map(Context::openai);
        OpenAiErrorResponse {
            error: OpenAiError {
                param: param.map(str::to_owned),
                message: context.unwrap_or_else(|| self.body.error.clone()),
                r#type: openai_type(self.status),
                code: self.code.unwrap_or(self.body.error_type),
            },
            error_type: self.body.error_type,
            request_id: self.body.request_id.clone(),
        }
    }
}

/// The `type` by which OpenAI's clients tell errors apart.
fn openai_type(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::FAILED_DEPENDENCY => "server_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

impl From<ChatTemplateError> for ApiError {
    fn from(error: ChatTemplateError) -> Self {
        match error {
            ChatTemplateError::Input { .. } => {
                Self::invalid_body(format!("Input validation error: {error}"))
            }
            _ => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                error.error_type(),
                format!("Template error: {error}"),
            ),
        }
    }
}

impl From<InferError> for ApiError {
    fn from(error: InferError) -> Self {
        let status = match &error {
            InferError::Validation(_) | InferError::Grammar(_) => StatusCode::UNPROCESSABLE_ENTITY,
            InferError::Overloaded(_) | InferError::QueueTime(_) => StatusCode::TOO_MANY_REQUESTS,
            InferError::Generation(_) => StatusCode::FAILED_DEPENDENCY,
            InferError::ShardLost
            | InferError::AdapterChanged
            | InferError::IncompleteGeneration
            | InferError::IncompleteGenerationStream => StatusCode::INTERNAL_SERVER_ERROR,
            InferError::GrammarsStuck | InferError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        };
        let invalid = match &error {
            InferError::Validation(invalid) => Some(invalid),
            _ => None,
        };
        let context = invalid.and_then(ValidationError::overflow);
        Self {
            code: match error {
                InferError::ShardLost => Some("shard_lost"),
                InferError::AdapterChanged => Some("adapter_changed"),
                _ => context.map(|_| CONTEXT_LENGTH_EXCEEDED),
            },
            context: context.map(|overflow| Box::new(Context::new(overflow))),
            param: invalid.and_then(ValidationError::field),
            retry_after: error.retry_after().as_secs(),
            ..Self::new(status, error.error_type(), error.to_string())
        }
    }
}

/// The message with its middle left out where it is long: it may name a value of the request, of any size.
fn bounded(message: String) -> String {
    let length = message.chars().count();
    if length <= LONGEST_MESSAGE {
        return message;
    }
    let head: String = message.chars().take(LONGEST_MESSAGE / 2).collect();
    let tail = message.chars().skip(length - LONGEST_MESSAGE / 4);
    format!("{head} [...] {}", tail.collect::<String>())
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(&self.body)).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, self.retry_after.into());
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// A 422 with this text, which names the field first.
pub fn refused(message: impl fmt::Display) -> ApiError {
    ApiError::invalid_body(format!("Input validation error: {message}"))
}
