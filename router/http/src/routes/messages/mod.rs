//! Anthropic's API: `/v1/messages`.

mod answer;
mod blocks;
mod body;
mod content;
pub(crate) mod error;
mod events;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use tower_http::request_id::RequestId;

use self::answer::MessageHead;
pub use self::answer::{MessageEvent, MessageObject, TokenCount};
use self::blocks::Blocks;
pub use self::body::MessagesBody;
use self::error::MessageErrors;
use self::events::MessageEvents;
use crate::asked_model::AskedModel;
use crate::conversation::{Finished, RunningConversation};
use crate::error::ApiError;
use crate::extract::{ApiJson, GenerationJson};
use crate::memory::MemoryShare;
use crate::sse;
use crate::state::AppState;

/// The assistant's next turn: thoughts, texts and uses of tools as blocks.
#[utoipa::path(
    post,
    path = "/v1/messages",
    tag = crate::openapi::tags::ANTHROPIC,
    request_body = MessagesBody,
    responses(
        (status = 200, description = "The message, or with `stream` its events", content(
            (MessageObject = "application/json"),
            (MessageEvent = "text/event-stream"),
        )),
        MessageErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn messages(
    State(state): State<Arc<AppState>>,
    Extension(id): Extension<RequestId>,
    Extension(share): Extension<MemoryShare>,
    GenerationJson(body): GenerationJson<MessagesBody>,
) -> Result<Response, ApiError> {
    let stream = body.stream.unwrap_or(false);
    let (running, model) = start(&state, body, &share).await?;
    let head = MessageHead::new(model, running.generations.prompt_tokens);
    if stream {
        let headers = running.headers(&state);
        let encoder = MessageEvents::new(head, id.clone());
        return sse::begun(&state.answers, headers, running.events(id), encoder).await;
    }
    let Finished {
        choices, headers, ..
    } = running.gather(&state, &id).await?;
    let choice = choices.into_iter().next().ok_or_else(ApiError::internal)?;
    let mut blocks = Blocks::default();
    for delta in choice.deltas {
        blocks.delta(delta, &mut ());
    }
    Ok((headers, Json(head.ended(&choice.end, blocks))).into_response())
}

async fn start(
    state: &AppState,
    body: MessagesBody,
    share: &MemoryShare,
) -> Result<(RunningConversation, String), ApiError> {
    let prepare = async {
        let model = AskedModel::read(body.model.clone(), state)?;
        let mut conversation = body.read(false, state)?;
        conversation.parameters.adapter_id = model.adapter;
        Ok((conversation.prepare(state).await?, model.name))
    };
    let (prepared, model) = prepare.await.inspect_err(ApiError::count)?;
    prepared.forget_body(share);
    Ok((prepared.start(state).await?, model))
}

/// How many tokens the prompt of a conversation has.
#[utoipa::path(
    post,
    path = "/v1/messages/count_tokens",
    tag = crate::openapi::tags::ANTHROPIC,
    request_body = MessagesBody,
    responses((status = 200, description = "The number of tokens", body = TokenCount), MessageErrors),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn count_tokens(
    State(state): State<Arc<AppState>>,
    ApiJson(body): ApiJson<MessagesBody>,
) -> Result<Json<TokenCount>, ApiError> {
    AskedModel::read(body.model.clone(), &state)?;
    let conversation = body.read(true, &state)?;
    let (prompt, images) = conversation.render(&state).await?;
    let input_tokens = state.infer.count_tokens_with(prompt, images).await?;
    Ok(Json(TokenCount { input_tokens }))
}
