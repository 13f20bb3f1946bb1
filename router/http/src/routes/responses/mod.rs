//! OpenAI's newer API of conversations: `/v1/responses`, without a store.

mod body;
mod custom_input;
mod events;
mod format;
mod items;
mod output;
mod response;
mod sealed;
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
pub use self::response::{ResponseEvent, ResponseObject};
pub use self::sealed::Seal;
use crate::conversation::Finished;
use crate::error::ApiError;
use crate::extract::GenerationJson;
use crate::memory::MemoryShare;
use crate::openapi::OpenAiErrors;
use crate::routes::openai::sampling::model_name;
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
        OpenAiErrors,
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
    let started = start(&state, body, &share).await;
    let (running, head, output) = started?;
    if stream {
        let headers = running.headers(&state);
        let encoder = ResponseEvents::new(head, output, id.clone());
        let events = Ok(running.events(id));
        return Ok(sse::response(&state.answers, headers, events, encoder));
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

async fn start(
    state: &AppState,
    body: ResponsesBody,
    share: &MemoryShare,
) -> Result<(crate::conversation::Running, ResponseHead, Output), ApiError> {
    let prepare = async {
        let model = model_name(body.model.clone(), &state.info.model_id)?;
        let (conversation, fields) = body.read(state)?;
        let prepared = conversation.prepare(state).await?;
        let head = ResponseHead::new(model, fields.repeated);
        Ok((prepared, head, Output::new(fields.names, fields.seal)))
    };
    let (prepared, head, output) = prepare.await.inspect_err(ApiError::count)?;
    share.forget_values();
    Ok((prepared.start(state).await?, head, output))
}
