//! The model and its limits, its tokenizer, and the version of this server.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value};

use crate::openapi::KeyErrors;
use crate::schema::{AdapterSummary, Info, TokenizerInfo, Version};
use crate::state::AppState;
use crate::tenant;

/// The model and the limits of this server.
#[utoipa::path(
    get,
    path = "/info",
    tag = crate::openapi::tags::OPERATION,
    responses((status = 200, description = "Served model and limits", body = Info), KeyErrors),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn info(State(state): State<Arc<AppState>>) -> Json<Info> {
    let adapters = state.infer.adapters().list_for(&tenant::current().tenant);
    Json(Info {
        waiting_served_ratio: state.infer.waiting_served_ratio(),
        adapters: adapters.iter().map(AdapterSummary::of).collect(),
        ..state.info.clone()
    })
}

/// The version of this server, where routers look for it.
///
/// SMG reads the load of a server at `/metrics`, under vLLM's names, only where it finds this.
#[utoipa::path(
    get,
    path = "/version",
    tag = crate::openapi::tags::OPERATION,
    responses((status = 200, description = "Version of this server", body = Version), KeyErrors),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn version(State(state): State<Arc<AppState>>) -> Json<Version> {
    Json(Version {
        version: state.info.version,
    })
}

/// The configuration of the tokenizer, as vLLM has it.
///
/// lm-eval reads special tokens and the chat template here, and makes prompts with `/tokenize`.
#[utoipa::path(
    get,
    path = "/tokenizer_info",
    tag = crate::openapi::tags::OPERATION,
    responses((status = 200, description = "Configuration of the tokenizer", body = TokenizerInfo), KeyErrors),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn tokenizer_info(State(state): State<Arc<AppState>>) -> Json<Map<String, Value>> {
    Json(state.tokenizer_info.clone())
}
