//! The served model as the lists of OpenAI and of Anthropic have it, which share their path: what clients of both read.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use text_generation_core::adapters::Listed;

use crate::error::{ApiError, OpenAiErrorResponse};
use crate::state::AppState;
use crate::tenant;

/// The models of this server: one, under each of its names, and its adapters.
#[derive(Debug, Serialize, ToSchema)]
pub struct ModelList {
    #[schema(example = "list")]
    pub object: &'static str,
    pub data: Vec<Model>,
    /// False, as in Anthropic's list: this is all.
    pub has_more: bool,
    #[schema(nullable = true, example = "meta-llama/Llama-3.1-8B")]
    pub first_id: Option<String>,
    #[schema(nullable = true, example = "meta-llama/Llama-3.1-8B")]
    pub last_id: Option<String>,
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
    /// Anthropic's name of `object`.
    #[schema(example = "model")]
    pub r#type: &'static str,
    /// The same as `id`.
    #[schema(example = "meta-llama/Llama-3.1-8B")]
    pub display_name: String,
    /// `created` as Anthropic writes it.
    #[schema(example = "2025-10-09T08:53:20Z")]
    pub created_at: String,
    /// Most tokens of a prompt.
    #[schema(example = 8191)]
    pub max_input_tokens: u32,
    /// Most tokens of an answer.
    #[schema(example = 8191)]
    pub max_tokens: u32,
    /// Where it was loaded from; of adapters alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "org/adapter")]
    pub root: Option<String>,
    /// The model that the adapter belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "meta-llama/Llama-3.1-8B")]
    pub parent: Option<String>,
}

/// The model under one of its names.
fn model_named(state: &AppState, name: &str) -> Model {
    Model {
        id: name.to_owned(),
        object: "model",
        created: state.started,
        owned_by: name.to_owned(),
        max_model_len: state.info.max_total_tokens,
        r#type: "model",
        display_name: name.to_owned(),
        created_at: rfc3339(state.started),
        max_input_tokens: state.info.max_input_tokens,
        // A prompt has a token at least.
        max_tokens: state.info.max_total_tokens.saturating_sub(1),
        root: None,
        parent: None,
    }
}

/// An adapter of it.
fn adapter(state: &AppState, adapter: &Listed) -> Model {
    Model {
        root: Some(adapter.source.clone()),
        parent: Some(state.info.model_id.clone()),
        ..model_named(state, &adapter.name)
    }
}

/// A time in seconds since 1970 as `2025-10-09T08:53:20Z`.
fn rfc3339(seconds: u64) -> String {
    const YEAR: u64 = 365;
    let (mut day, second) = (seconds / 86_400, seconds % 86_400);
    let every = |years: u64, year: u64| year.is_multiple_of(years);
    let is_leap = |year| (every(4, year) && !every(100, year)) || every(400, year);
    let mut year = 1970;
    while day >= YEAR + u64::from(is_leap(year)) {
        day -= YEAR + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!(
        "{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{:02}Z",
        day + 1,
        second % 60
    )
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
    let adapters = state.infer.adapters().list_for(&tenant::current().tenant);
    let data: Vec<Model> = names
        .map(|name| model_named(&state, name))
        .chain(adapters.iter().map(|each| adapter(&state, each)))
        .collect();
    let id = |model: Option<&Model>| model.map(|model| model.id.clone());
    Json(ModelList {
        object: "list",
        first_id: id(data.first()),
        last_id: id(data.last()),
        data,
        has_more: false,
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
        name => {
            let (adapters, tenant) = (state.infer.adapters(), tenant::current().tenant);
            let named = |Path(name): Path<String>| {
                let mut all = adapters.list_for(&tenant).into_iter();
                all.find(|adapter| adapter.name == name)
            };
            let found = name.ok().and_then(named);
            let found = found.map(|found| Json(adapter(&state, &found)));
            found.ok_or_else(|| {
                let names = adapters.names(&tenant);
                ApiError::unknown_model(&state.info.model_id, &names)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn times_are_written_as_clients_read_them() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_760_000_000, "2025-10-09T08:53:20Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), written);
        }
    }
}
