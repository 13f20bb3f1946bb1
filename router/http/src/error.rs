//! One error shape for every failure: `{"error": string, "error_type": string}`; the table is `docs/errors.md`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use text_generation_core::error::InferError;
use utoipa::ToSchema;

/// Seconds after which a client may try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// Body of every answer that is not a success, and of error events in streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorResponse {
    #[schema(example = "Input validation error: `temperature` must be strictly positive")]
    pub error: String,
    #[schema(example = "validation")]
    pub error_type: &'static str,
}

impl From<&InferError> for ErrorResponse {
    fn from(error: &InferError) -> Self {
        Self {
            error: error.to_string(),
            error_type: error.error_type(),
        }
    }
}

/// An error with its HTTP status.
///
/// The answer carries it as an extension too, so that the logging layer sees the text without reading the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub body: ErrorResponse,
}

impl ApiError {
    fn new(status: StatusCode, error_type: &'static str, error: impl Into<String>) -> Self {
        let error = error.into();
        Self {
            status,
            body: ErrorResponse { error, error_type },
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
            format!("the request body did not arrive within {seconds} s"),
        )
    }

    /// No or a wrong API key.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "missing or wrong API key: send the header `Authorization: Bearer <key>`",
        )
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

    /// A bug of ours. Details are in the log, not in the answer.
    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "internal error; the log of the router has the details",
        )
    }
}

impl From<InferError> for ApiError {
    fn from(error: InferError) -> Self {
        let status = match &error {
            InferError::Validation(_) => StatusCode::UNPROCESSABLE_ENTITY,
            InferError::Overloaded => StatusCode::TOO_MANY_REQUESTS,
            InferError::Generation(_) => StatusCode::FAILED_DEPENDENCY,
            InferError::IncompleteGeneration | InferError::IncompleteGenerationStream => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            InferError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self {
            status,
            body: (&error).into(),
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
