//! The page that Prometheus reads.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::State;
use axum::http::{HeaderName, header};

use crate::openapi::KeyErrors;
use crate::state::AppState;

/// Prometheus metrics.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = crate::openapi::tags::OPERATION,
    responses(
        (status = 200, description = "Prometheus text format", body = String, content_type = "text/plain",
         example = "tgi_queue_size 0\n"),
        KeyErrors,
    ),
    security((), ("bearer" = []), ("api_key" = []))
)]
pub async fn metrics(
    State(state): State<Arc<AppState>>,
) -> ([(HeaderName, &'static str); 1], String) {
    let mut page = state.metrics.render();
    if let Some(aliases) = state.answers.metrics_aliases {
        aliases.append(&mut page, &state.info.model_id, SystemTime::now());
    }
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], page)
}
