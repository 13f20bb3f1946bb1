//! Tokens of a text.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::error::{ApiError, ErrorResponse};
use crate::extract::ApiJson;
use crate::schema::{GenerateBody, TokenizeResponse};
use crate::state::AppState;

/// The tokens of `inputs`, with the special tokens that a generation would add.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = crate::openapi::TAG,
    request_body = GenerateBody,
    responses(
        (status = 200, description = "Tokens with byte offsets", body = TokenizeResponse),
        (status = 400, description = "Malformed JSON", body = ErrorResponse),
        (status = 401, description = "Wrong API key", body = ErrorResponse),
        (status = 422, description = "Input validation error", body = ErrorResponse),
    ),
    security((), ("api_key" = []))
)]
pub async fn tokenize(
    State(state): State<Arc<AppState>>,
    ApiJson(body): ApiJson<GenerateBody>,
) -> Result<Json<TokenizeResponse>, ApiError> {
    Ok(Json(state.infer.tokenize(body.inputs, true).await?))
}
