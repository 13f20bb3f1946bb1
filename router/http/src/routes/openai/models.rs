//! The served model in OpenAI's list.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, OpenAiErrorResponse};
use crate::state::AppState;

/// The models of this server: one, under each of its names.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    #[schema(example = "list")]
    pub object: &'static str,
    pub data: Vec<Model>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub struct Model {
    #[schema(example = "meta-llama/Llama-3.1-8B")]
    pub id: String,
    #[schema(example = "model")]
    pub object: &'static str,
    /// When this server started, in seconds since 1970.
    #[schema(example = 1_760_000_000)]
    pub created: u64,
    #[schema(example = "meta-llama/Llama-3.1-8B")]
    pub owned_by: String,
    /// Most tokens of prompt and answer together.
    #[schema(example = 8192)]
    pub max_model_len: u32,
}

/// The model under one of its names.
fn model_named(state: &AppState, name: &str) -> Model {
    Model {
        id: name.to_owned(),
        object: "model",
        created: state.started,
        owned_by: name.to_owned(),
        max_model_len: state.info.max_total_tokens,
    }
}

/// The served model, as a list.
#[utoipa::path(
    get,
    path = "/v1/models",
    tag = crate::openapi::tags::OPENAI,
    responses(
        (status = 200, description = "The served model", body = ModelList),
        (status = 401, description = "Wrong API key", body = OpenAiErrorResponse),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn models(State(state): State<Arc<AppState>>) -> Json<ModelList> {
    let names = state.answers.model_names.iter();
    Json(ModelList {
        object: "list",
        data: names.map(|name| model_named(&state, name)).collect(),
    })
}

/// The served model, by its name.
#[utoipa::path(
    get,
    path = "/v1/models/{model}",
    tag = crate::openapi::tags::OPENAI,
    params(("model" = String, Path, description = "Name of the model; its slashes need no escape")),
    responses(
        (status = 200, description = "The served model", body = Model),
        (status = 401, description = "Wrong API key", body = OpenAiErrorResponse),
        (status = 404, description = "Another model", body = OpenAiErrorResponse),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn model(
    State(state): State<Arc<AppState>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Model>, ApiError> {
    match name {
        Ok(Path(name)) if state.answers.model_names.contains(&name) => {
            Ok(Json(model_named(&state, &name)))
        }
        // What is no UTF-8 names no model.
        _ => Err(ApiError::unknown_model(&state.info.model_id)),
    }
}
