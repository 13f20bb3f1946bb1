//! Prompts as token ids, for routers that look at prefixes: `/v1/chat/completions/render`, `/v1/completions/render`.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use futures::future::try_join_all;
use serde::Serialize;
use text_generation_core::types::{GenerateParameters, Inputs};
use utoipa::ToSchema;

use super::chat;
use super::chat_body::ChatBody;
use super::completion_body::CompletionBody;
use super::completions;
use crate::asked_model::AskedModel;
use crate::bounds::MEMORY_PER_TOKENIZED_BYTE;
use crate::error::ApiError;
use crate::extract::ApiJson;
use crate::generations::{Names, renamed};
use crate::memory::MemoryShare;
use crate::openapi::OpenAiErrors;
use crate::state::AppState;

/// A prompt as the model gets it.
#[derive(Debug, Serialize, ToSchema)]
pub struct RenderedPrompt {
    #[schema(example = "meta-llama/Llama-3.1-8B-Instruct")]
    pub model: String,
    #[schema(example = json!([128000, 9906]))]
    pub token_ids: Vec<u32>,
}

/// The token ids of the prompt that a chat makes; nothing is generated.
#[utoipa::path(
    post,
    path = "/v1/chat/completions/render",
    tag = crate::openapi::tags::OPENAI,
    request_body = ChatBody,
    responses((status = 200, description = "The prompt", body = RenderedPrompt), OpenAiErrors),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn render_chat(
    State(state): State<Arc<AppState>>,
    Extension(share): Extension<MemoryShare>,
    ApiJson(mut body): ApiJson<ChatBody>,
) -> Result<Json<RenderedPrompt>, ApiError> {
    let model = AskedModel::read(body.model.take(), &state)?.name;
    let conversation = chat::conversation(&state, body)?;
    let parameters = conversation.parameters.clone();
    let (text, images) = conversation.render(&state).await?;
    hold(&text, &share)?;
    // The template has written the special tokens.
    let tokens = state.infer.tokenize_with(text, false, images).await;
    let tokens = tokens.map_err(|error| renamed(error, chat::NAMES))?;
    let token_ids = tokens.ids().to_vec();
    let token_ids = cut(&state, token_ids, &parameters);
    Ok(Json(RenderedPrompt { model, token_ids }))
}

/// The token ids of each prompt of a completion; nothing is generated.
#[utoipa::path(
    post,
    path = "/v1/completions/render",
    tag = crate::openapi::tags::OPENAI,
    request_body = CompletionBody,
    responses((status = 200, description = "The prompts, in their order", body = Vec<RenderedPrompt>), OpenAiErrors),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn render_completion(
    State(state): State<Arc<AppState>>,
    Extension(share): Extension<MemoryShare>,
    ApiJson(mut body): ApiJson<CompletionBody>,
) -> Result<Json<Vec<RenderedPrompt>>, ApiError> {
    body.check_features(state.info.max_client_batch_size)?;
    let model = AskedModel::read(body.model.take(), &state)?.name;
    let parameters = body.take_sampling().parameters(body.max_tokens)?;
    let special = body.add_special_tokens.unwrap_or(true);
    let prompts = body.prompt.into_inputs();
    let lists = prompts
        .into_iter()
        .map(|prompt| ids(&state, prompt, special, &share, completions::NAMES));
    let lists = try_join_all(lists).await?;
    let rendered = lists.into_iter().map(|token_ids| RenderedPrompt {
        model: model.clone(),
        token_ids: cut(&state, token_ids, &parameters),
    });
    Ok(Json(rendered.collect()))
}

/// What is left of a prompt, as `truncate_prompt_tokens` says.
fn cut(state: &AppState, mut ids: Vec<u32>, parameters: &GenerateParameters) -> Vec<u32> {
    let kept = state.infer.kept(ids.len(), parameters);
    ids.drain(..ids.len() - kept);
    ids
}

async fn ids(
    state: &AppState,
    prompt: Inputs,
    add_special_tokens: bool,
    share: &MemoryShare,
    names: &Names,
) -> Result<Vec<u32>, ApiError> {
    match prompt {
        Inputs::Ids(ids) => Ok(ids),
        Inputs::Text(text) => {
            hold(&text, share)?;
            let tokens = state.infer.tokenize(text, add_special_tokens).await;
            let tokens = tokens.map_err(|error| renamed(error, names))?;
            Ok(tokens.ids().to_vec())
        }
    }
}

/// Holds what a text takes while it becomes tokens.
fn hold(text: &str, share: &MemoryShare) -> Result<(), ApiError> {
    share.resize(text.len().saturating_mul(MEMORY_PER_TOKENIZED_BYTE))
}
