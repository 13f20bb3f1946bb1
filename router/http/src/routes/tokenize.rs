//! Texts and chats to tokens, and back.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::bounds::MAX_DETOKENIZE_IDS;
use crate::error::ApiError;
use crate::extract::ApiJson;
use crate::openapi::BodyErrors;
use crate::routes::openai::ChatBody;
use crate::schema::{
    ChatTokenizeResponse, DetokenizeBody, DetokenizeResponse, GenerateBody, TokenizeResponse,
};
use crate::state::AppState;

/// The tokens of `inputs`, with the special tokens that a generation would add.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = crate::openapi::TAG,
    request_body = GenerateBody,
    responses(
        (status = 200, description = "Tokens with byte offsets", body = TokenizeResponse),
        BodyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn tokenize(
    State(state): State<Arc<AppState>>,
    ApiJson(body): ApiJson<GenerateBody>,
) -> Result<Json<TokenizeResponse>, ApiError> {
    Ok(Json(state.infer.tokenize(body.inputs, true).await?))
}

/// The prompt that the chat template makes of a conversation, and its tokens.
#[utoipa::path(
    post,
    path = "/chat_tokenize",
    tag = crate::openapi::TAG,
    request_body = ChatBody,
    responses(
        (status = 200, description = "The prompt, and its tokens with byte offsets", body = ChatTokenizeResponse),
        BodyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn chat_tokenize(
    State(state): State<Arc<AppState>>,
    ApiJson(mut body): ApiJson<ChatBody>,
) -> Result<Json<ChatTokenizeResponse>, ApiError> {
    let prompt = state.chats.render(body.take_input()?).await?;
    let templated_text = state.chats.readable(&prompt).into_owned();
    // The template has written the special tokens.
    let tokenize_response = state.infer.tokenize(prompt, false).await?;
    Ok(Json(ChatTokenizeResponse {
        tokenize_response,
        templated_text,
    }))
}

/// The text of token ids.
#[utoipa::path(
    post,
    path = "/detokenize",
    tag = crate::openapi::TAG,
    request_body = DetokenizeBody,
    responses(
        (status = 200, description = "The text", body = DetokenizeResponse),
        BodyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn detokenize(
    State(state): State<Arc<AppState>>,
    ApiJson(body): ApiJson<DetokenizeBody>,
) -> Result<Json<DetokenizeResponse>, ApiError> {
    let given = body.ids.len();
    if given > MAX_DETOKENIZE_IDS {
        return Err(ApiError::invalid_body(format!(
            "`ids` supports up to {MAX_DETOKENIZE_IDS} token ids. Given: {given}"
        )));
    }
    let text = state
        .infer
        .detokenize(body.ids, body.skip_special_tokens)
        .await?;
    Ok(Json(DetokenizeResponse { text }))
}
