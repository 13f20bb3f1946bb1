//! The route that SageMaker calls: one path for the bodies of several others.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{FromRef, State};
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tower_http::request_id::RequestId;

use super::hosted::{InvocationAnswer, InvocationBody, InvocationEvent};
use crate::error::ApiError;
use crate::extract::{GenerationJson, JsonBytes, Reading};
use crate::memory::MemoryShare;
use crate::openapi::GenerateErrors;
use crate::routes::generate::compat_generate;
use crate::routes::openai::chat::chat_completions;
use crate::routes::openai::completions::completions;
use crate::routes::openai::{ChatBody, CompletionBody};
use crate::schema::CompatGenerateBody;
use crate::state::AppState;

/// The keys that tell the bodies apart.
#[derive(Debug, Deserialize)]
struct Keys {
    inputs: Option<IgnoredAny>,
    messages: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
}

/// Answers as the route does whose body it gets: `/` where there are `inputs`, `/v1/chat/completions` where there are
/// `messages`, `/v1/completions` where there is a `prompt`. Errors have the shape of `/` whatever the body.
#[utoipa::path(
    post,
    path = "/invocations",
    tag = crate::openapi::tags::TGI,
    request_body = InvocationBody,
    responses(
        (status = 200, description = "The answer of that route, or its stream of events", content(
            (InvocationAnswer = "application/json"),
            (InvocationEvent = "text/event-stream"),
        )),
        GenerateErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn invocations(
    state: State<Arc<AppState>>,
    id: Extension<RequestId>,
    share: Extension<MemoryShare>,
    body: Result<JsonBytes, ApiError>,
) -> Result<Response, ApiError> {
    let read = Reading::from_ref(&state.0).check_generates();
    let read = read.and(body).and_then(|body| Invocation::read(&body));
    match read.inspect_err(ApiError::count)? {
        Invocation::Generate(body) => compat_generate(state, id, GenerationJson(*body)).await,
        Invocation::Chat(body) => chat_completions(state, id, share, GenerationJson(*body)).await,
        Invocation::Completion(body) => completions(state, id, share, GenerationJson(*body)).await,
    }
}

/// The body of the route that it is for.
enum Invocation {
    Generate(Box<CompatGenerateBody>),
    Chat(Box<ChatBody>),
    Completion(Box<CompletionBody>),
}

impl Invocation {
    fn read(body: &JsonBytes) -> Result<Self, ApiError> {
        let keys: Keys = body.parse()?;
        if keys.inputs.is_some() {
            body.parse().map(Self::Generate)
        } else if keys.messages.is_some() {
            body.parse().map(Self::Chat)
        } else if keys.prompt.is_some() {
            body.parse().map(Self::Completion)
        } else {
            Err(ApiError::invalid_body(
                "the body must have `inputs` as for `/`, `messages` as for `/v1/chat/completions`, or `prompt` as for \
                 `/v1/completions`",
            ))
        }
    }
}
