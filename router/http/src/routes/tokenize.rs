//! Texts and chats to tokens, and back.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use text_generation_core::types::TokenizedText;

use crate::bounds::{MAX_DETOKENIZE_IDS, MEMORY_PER_DETOKENIZED_ID, MEMORY_PER_TOKENIZED_BYTE};
use crate::error::ApiError;
use crate::extract::ApiJson;
use crate::memory::MemoryShare;
use crate::openapi::BodyErrors;
use crate::routes::openai::{ChatBody, chat};
use crate::schema::{
    ChatTokenizeResponse, DetokenizeBody, DetokenizeResponse, GenerateBody, TokenizeResponse,
};
use crate::state::AppState;
use crate::token_list;

/// The tokens of `inputs`, with the special tokens that a generation would add.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = crate::openapi::tags::TGI,
    request_body = GenerateBody,
    responses(
        (status = 200, description = "Tokens with byte offsets", body = TokenizeResponse),
        BodyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn tokenize(
    State(state): State<Arc<AppState>>,
    Extension(share): Extension<MemoryShare>,
    ApiJson(body): ApiJson<GenerateBody>,
) -> Result<Response, ApiError> {
    let tokens = tokens(&state, body.inputs, true, &share).await?;
    token_list::response(tokens, "[", Bytes::from_static(b"]"), share)
}

async fn tokens(
    state: &AppState,
    text: String,
    add_special_tokens: bool,
    share: &MemoryShare,
) -> Result<TokenizedText, ApiError> {
    share.resize(text.len().saturating_mul(MEMORY_PER_TOKENIZED_BYTE))?;
    Ok(state.infer.tokenize(text, add_special_tokens).await?)
}

/// The prompt that the chat template makes of a conversation, and its tokens.
#[utoipa::path(
    post,
    path = "/chat_tokenize",
    tag = crate::openapi::tags::TGI,
    request_body = ChatBody,
    responses(
        (status = 200, description = "The prompt, and its tokens with byte offsets", body = ChatTokenizeResponse),
        BodyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn chat_tokenize(
    State(state): State<Arc<AppState>>,
    Extension(share): Extension<MemoryShare>,
    ApiJson(body): ApiJson<ChatBody>,
) -> Result<Response, ApiError> {
    let conversation = chat::conversation(&state, body)?;
    let text = conversation.render(&state).await?;
    // The template has written the special tokens.
    let tokens = tokens(&state, text, false, &share).await?;
    let mut tail = br#"],"templated_text":"#.to_vec();
    tail.extend(token_list::bytes(&tokens.text())?);
    tail.push(b'}');
    token_list::response(tokens, r#"{"tokenize_response":["#, tail.into(), share)
}

/// The text of token ids.
#[utoipa::path(
    post,
    path = "/detokenize",
    tag = crate::openapi::tags::TGI,
    request_body = DetokenizeBody,
    responses(
        (status = 200, description = "The text", body = DetokenizeResponse),
        BodyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn detokenize(
    State(state): State<Arc<AppState>>,
    Extension(share): Extension<MemoryShare>,
    ApiJson(body): ApiJson<DetokenizeBody>,
) -> Result<Response, ApiError> {
    let given = body.ids.len();
    if given > MAX_DETOKENIZE_IDS {
        return Err(ApiError::invalid_body(format!(
            "`ids` supports up to {MAX_DETOKENIZE_IDS} token ids. Given: {given}"
        )));
    }
    let lengths = body.ids.iter().map(|&id| state.infer.token_bytes(id).len());
    // The text three times: in the library, joined, and as JSON.
    share.resize(3 * lengths.sum::<usize>() + given * MEMORY_PER_DETOKENIZED_ID)?;
    let text = state
        .infer
        .detokenize(body.ids, body.skip_special_tokens)
        .await?;
    let answer = Bytes::from(token_list::bytes(&DetokenizeResponse { text })?);
    share.resize(answer.len())?;
    Ok(token_list::json(std::iter::once(answer), share))
}
