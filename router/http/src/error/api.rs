//! APIs by path, and what an error is in each: its status and its body.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::{ApiError, anthropic};
use crate::paths;

/// An API with statuses and bodies of its own for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Tgi,
    /// Everything below `/v1` that is not one of those that follow.
    OpenAi,
    /// Below `/v1/responses`.
    Responses,
    /// Anthropic's, below `/v1/messages`.
    Messages,
}

impl Api {
    /// That of a path as it was sent, also where no route has it: who asks there expects its errors.
    pub fn of(path: &str) -> Self {
        let path = paths::plain(path);
        let is = |route: &str| {
            let rest = path.strip_prefix(route);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match () {
            () if is("/v1/messages") => Self::Messages,
            () if is("/v1/responses") => Self::Responses,
            () if is("/v1") => Self::OpenAi,
            () => Self::Tgi,
        }
    }

    /// Clients of OpenAI and Anthropic know a request that is wrong by 400. On the routes that TGI has too, 422 stays
    /// what it is there; but a prompt that is too long is always found by those who look for it.
    pub fn status(self, error: &ApiError) -> StatusCode {
        let wrong = error.status == StatusCode::UNPROCESSABLE_ENTITY;
        let is_400 = match self {
            Self::Tgi => false,
            Self::OpenAi => error.context.is_some(),
            Self::Responses | Self::Messages => true,
        };
        if wrong && is_400 {
            StatusCode::BAD_REQUEST
        } else {
            error.status
        }
    }

    /// The body of `error`.
    pub fn body(self, error: &ApiError) -> Response {
        match self {
            Self::Tgi => Json(&error.body).into_response(),
            Self::OpenAi | Self::Responses => Json(error.openai()).into_response(),
            Self::Messages => Json(anthropic(error)).into_response(),
        }
    }
}
