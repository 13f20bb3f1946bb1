//! The route that SageMaker calls: one path for the bodies of several others.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tower_http::request_id::RequestId;

use crate::error::ApiError;
use crate::extract::{ApiJson, JsonBytes};
use crate::openapi::GenerateErrors;
use crate::routes::generate::compat_generate;
use crate::schema::{CompatGenerateBody, GenerateResponse, StreamResponse};
use crate::state::AppState;

/// The keys that tell the bodies apart.
#[derive(Debug, Deserialize)]
struct Keys {
    inputs: Option<IgnoredAny>,
}

/// Answers as the route does whose body it gets: `/` where there are `inputs`.
#[utoipa::path(
    post,
    path = "/invocations",
    tag = crate::openapi::TAG,
    request_body = CompatGenerateBody,
    responses(
        (status = 200, description = "The answer of that route, or its stream of events", content(
            (Vec<GenerateResponse> = "application/json"),
            (StreamResponse = "text/event-stream"),
        )),
        GenerateErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn invocations(
    state: State<Arc<AppState>>,
    id: Extension<RequestId>,
    body: JsonBytes,
) -> Result<Response, ApiError> {
    let keys: Keys = body.parse()?;
    if keys.inputs.is_some() {
        compat_generate(state, id, ApiJson(body.parse()?)).await
    } else {
        Err(ApiError::invalid_body(
            "the body must have `inputs`, as for `/`",
        ))
    }
}
