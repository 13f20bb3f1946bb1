//! The served model in OpenAI's list.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::{ApiError, OpenAiErrorResponse};
use crate::state::AppState;

/// The models of this server: one.
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

fn served(state: &AppState) -> Model {
    Model {
        id: state.info.model_id.clone(),
        object: "model",
        created: state.started,
        owned_by: state.info.model_id.clone(),
        max_model_len: state.info.max_total_tokens,
    }
}

/// The served model, as a list.
#[utoipa::path(
    get,
    path = "/v1/models",
    tag = crate::openapi::TAG,
    responses(
        (status = 200, description = "The served model", body = ModelList),
        (status = 401, description = "Wrong API key", body = OpenAiErrorResponse),
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn models(State(state): State<Arc<AppState>>) -> Json<ModelList> {
    Json(ModelList {
        object: "list",
        data: vec![served(&state)],
    })
}

/// The served model, by its name.
#[utoipa::path(
    get,
    path = "/v1/models/{model}",
    tag = crate::openapi::TAG,
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
    Path(name): Path<String>,
) -> Result<Json<Model>, ApiError> {
    let model = served(&state);
    if name == model.id {
        Ok(Json(model))
    } else {
        Err(ApiError::unknown_model(&model.id))
    }
}
