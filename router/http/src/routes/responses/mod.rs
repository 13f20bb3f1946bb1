//! OpenAI's newer API of conversations: `/v1/responses`, which stores no conversations.

mod body;
mod custom_input;
mod events;
mod format;
mod items;
mod output;
mod references;
mod repeated;
mod response;
mod tools;

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use tower_http::request_id::RequestId;

pub use self::body::ResponsesBody;
use self::events::ResponseEvents;
use self::output::Output;
use self::response::ResponseHead;
pub use self::response::{InputTokens, ResponseEvent, ResponseObject};
use crate::asked_model::AskedModel;
use crate::conversation::{Finished, Prepared};
use crate::error::ApiError;
use crate::extract::{ApiJson, GenerationJson};
use crate::headers;
use crate::item_memory::TenantItems;
use crate::memory::MemoryShare;
use crate::openapi::ResponsesErrors;
use crate::sse;
use crate::state::AppState;

/// The assistant's next turn: reasoning, texts and calls of tools as items.
#[utoipa::path(
    post,
    path = "/v1/responses",
    tag = crate::openapi::tags::OPENAI,
    request_body = ResponsesBody,
    responses(
        (status = 200, description = "The response, or with `stream` its events", content(
            (ResponseObject = "application/json"),
            (ResponseEvent = "text/event-stream"),
        )),
        ResponsesErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn responses(
    State(state): State<Arc<AppState>>,
    Extension(id): Extension<RequestId>,
    Extension(share): Extension<MemoryShare>,
    GenerationJson(body): GenerationJson<ResponsesBody>,
) -> Result<Response, ApiError> {
    let stream = body.stream.unwrap_or(false);
    let prepared = prepare(&state, body, &share).await;
    let Ready {
        conversation,
        head,
        output,
    } = prepared.inspect_err(ApiError::count)?;
    conversation.forget_body(&share);
    let characters = conversation.reading.characters;
    let running = match conversation.start(&state).await {
        // OpenAI finds this out in its stream, and Codex looks for it nowhere else.
        Err(error) if stream && error.context.is_some() => {
            let headers = headers::streaming(&state.answers.compute_type, characters);
            let mut events = ResponseEvents::new(head, output, id);
            return Ok((headers, events.refusal(error)).into_response());
        }
        started => started?,
    };
    if stream {
        let headers = running.headers(&state);
        let encoder = ResponseEvents::new(head, output, id.clone());
        return sse::begun(&state.answers, headers, running.events(id), encoder).await;
    }
    let Finished {
        choices, headers, ..
    } = running.gather(&state, &id).await?;
    let mut output = output;
    let mut end = None;
    for choice in choices {
        for delta in choice.deltas {
            output.delta(delta, &mut ());
        }
        end = Some(choice.end);
    }
    let end = end.ok_or_else(ApiError::internal)?;
    output.end(head.item_status(&end), &mut ());
    Ok((headers, Json(head.ended(&end, output.items()))).into_response())
}

/// A response that can be generated.
struct Ready {
    conversation: Prepared,
    head: ResponseHead,
    output: Output,
}

async fn prepare(
    state: &AppState,
    mut body: ResponsesBody,
    share: &MemoryShare,
) -> Result<Ready, ApiError> {
    let model = AskedModel::read(body.model.clone(), state)?;
    let remembered = resolve(state, &mut body, share)?;
    let (mut conversation, fields) = body.read(state, remembered.is_some())?;
    conversation.parameters.adapter_id = model.adapter;
    Ok(Ready {
        conversation: conversation.prepare(state).await?,
        head: ResponseHead::new(model.name, fields.repeated),
        output: Output::new(fields.names, fields.seal, remembered),
    })
}

/// Puts the items that the body refers to into it. Gives where those of the response will be remembered.
fn resolve(
    state: &AppState,
    body: &mut ResponsesBody,
    share: &MemoryShare,
) -> Result<Option<TenantItems>, ApiError> {
    let remembered = state.items.of_caller();
    let limit = state.options.body.bytes;
    references::resolve(&mut body.input, remembered.as_ref(), limit, share)?;
    Ok(remembered.filter(|_| body.stores()))
}

/// How many tokens the prompt of a response would have.
#[utoipa::path(
    post,
    path = "/v1/responses/input_tokens",
    tag = crate::openapi::tags::OPENAI,
    request_body = ResponsesBody,
    responses((status = 200, description = "The number of tokens", body = InputTokens), ResponsesErrors),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn input_tokens(
    State(state): State<Arc<AppState>>,
    Extension(share): Extension<MemoryShare>,
    ApiJson(mut body): ApiJson<ResponsesBody>,
) -> Result<Json<InputTokens>, ApiError> {
    AskedModel::read(body.model.clone(), &state)?;
    resolve(&state, &mut body, &share)?;
    let (conversation, _) = body.read(&state, false)?;
    let (prompt, images) = conversation.render(&state).await?;
    Ok(Json(InputTokens {
        object: "response.input_tokens",
        input_tokens: state.infer.count_tokens_with(prompt, images).await?,
    }))
}
