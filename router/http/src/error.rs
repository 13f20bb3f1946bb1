//! One error for every failure, in the shape of the API that was called; the table is `docs/errors.md`.
//!
//! TGI: `{"error": string, "error_type": string}`. OpenAI, under `/v1/`: an object, with `error_type` beside it.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use text_generation_chat::ChatTemplateError;
use text_generation_core::error::{InferError, ValidationError};
use text_generation_core::metrics::request_refused;
use utoipa::ToSchema;

/// Seconds after which a client may try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

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
        let error = error.into();
        Self {
            status,
            body: ErrorResponse {
                error,
                error_type,
                request_id: None,
            },
            code: None,
            param: None,
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
        let message = self.body.error.clone();
        // The messages of validation name the field first.
        let named = self.body.error_type == "validation";
        let first = || named.then(|| message.split('`').nth(1)).flatten();
        let param = self.param.or_else(first);
        OpenAiErrorResponse {
            error: OpenAiError {
                param: param.map(str::to_owned),
                message,
                r#type: openai_type(self.status),
                code: self.code.unwrap_or(self.body.error_type),
            },
            error_type: self.body.error_type,
            request_id: self.body.request_id.clone(),
        }
    }

    /// The body is not JSON.
    pub fn malformed_json(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed_json", error)
    }

    /// The body is JSON of the wrong shape.
    pub fn invalid_body(error: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "validation", error)
    }

    /// The body has a content type or an encoding that is not understood.
    pub fn unsupported_media_type(error: impl Into<String>) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            error,
        )
    }

    /// The body is larger than `limit` bytes.
    pub fn payload_too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "payload_too_large",
            format!("the request body is larger than {limit} bytes (`--payload-limit`)"),
        )
    }

    /// The client did not send its body in time.
    pub fn request_timeout(seconds: u64) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "request_timeout",
            format!("the request body did not arrive within {seconds} s (`--client-timeout`)"),
        )
    }

    /// Other requests hold what memory there is for requests.
    pub fn out_of_memory() -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "overloaded",
            "Model is overloaded: other requests hold the memory that there is for requests",
        )
    }

    /// The head breaks a rule of HTTP.
    pub fn bad_request(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", error)
    }

    /// No or a wrong API key.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "missing or wrong API key: send the header `Authorization: Bearer <key>` or `x-api-key: <key>`",
        )
    }

    /// `suffix` of a completion.
    pub fn suffix_not_supported() -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "suffix not supported",
            "`suffix` is not supported: write what the model needs for it into `prompt`",
        )
    }

    /// `/vertex` without a request; the type is that of TGI.
    pub fn no_instances() -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Input validation error",
            "Input validation error: `instances` must not be empty",
        )
    }

    /// More prompts than one completion may have.
    pub fn too_many_prompts(max: u32) -> Self {
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "batch size exceeded",
            format!(
                "Number of prompts exceeds the maximum allowed batch size of {max} (`--max-client-batch-size`)"
            ),
        )
    }

    /// Another model than the one that is served.
    pub fn unknown_model(served: &str) -> Self {
        let message = format!("no such model: this server serves `{served}`");
        let mut error = Self::new(StatusCode::NOT_FOUND, "not_found", message);
        error.code = Some("model_not_found");
        error
    }

    /// No route has this path.
    pub fn not_found(path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("no such path: {path}; `/docs` lists the routes"),
        )
    }

    /// The path exists, with other methods.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            format!("{method} is not allowed for {path}"),
        )
    }

    /// The readiness probe fails.
    pub fn unhealthy(reason: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "healthcheck", reason)
    }

    /// Every connection that there may be is at work.
    pub fn too_many_connections() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_connections",
            "too many connections: see `--max-connections`",
        )
    }

    /// A bug of ours. Details are in the log, not in the answer.
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "internal error; the log of the router has the details",
        )
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
            InferError::Overloaded | InferError::QueueTime(_) => StatusCode::TOO_MANY_REQUESTS,
            InferError::Generation(_) => StatusCode::FAILED_DEPENDENCY,
            InferError::ShardLost
            | InferError::IncompleteGeneration
            | InferError::IncompleteGenerationStream => StatusCode::INTERNAL_SERVER_ERROR,
            InferError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        };
        let invalid = match &error {
            InferError::Validation(invalid) => Some(invalid),
            _ => None,
        };
        let too_long = matches!(
            invalid,
            Some(
                ValidationError::MaxTotalTokens { .. }
                    | ValidationError::InputLength { .. }
                    | ValidationError::InputBytes { .. }
            )
        );
        Self {
            status,
            body: ErrorResponse {
                error: error.to_string(),
                error_type: error.error_type(),
                request_id: None,
            },
            code: match error {
                InferError::ShardLost => Some("shard_lost"),
                _ => too_long.then_some("context_length_exceeded"),
            },
            param: invalid.and_then(ValidationError::field),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(&self.body)).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER);
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
