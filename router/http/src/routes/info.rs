//! The model and its limits.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::openapi::KeyErrors;
use crate::schema::Info;
use crate::state::AppState;

/// The model and the limits of this server.
#[utoipa::path(
    get,
    path = "/info",
    tag = crate::openapi::TAG,
    responses((status = 200, description = "Served model and limits", body = Info), KeyErrors),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn info(State(state): State<Arc<AppState>>) -> Json<Info> {
    Json(state.info.clone())
}
