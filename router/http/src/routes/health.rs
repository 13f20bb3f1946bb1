//! Probes: is the process there, and does it take requests.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use text_generation_core::Health;

use crate::error::{ApiError, ErrorResponse};
use crate::headers;
use crate::routes::ui;
use crate::state::AppState;

/// Whether this server takes requests and its shards make progress.
#[utoipa::path(
    get,
    path = "/health",
    tag = crate::openapi::tags::OPERATION,
    responses(
        (status = 200, description = "Everything is working fine"),
        (status = 503, description = "A shard is down, or the server is stopping", body = ErrorResponse,
         example = json!({"error": "unhealthy", "error_type": "healthcheck"})),
    )
)]
pub async fn health(State(state): State<Arc<AppState>>) -> Result<HeaderMap, ApiError> {
    if state.is_leaving() {
        return Err(ApiError::unhealthy("the server is shutting down"));
    }
    match state.infer.health().await {
        Health::Healthy => {
            let instance = state.instance.clone();
            let name = instance.map(|name| (headers::X_ROUTER_INSTANCE, name));
            Ok(name.into_iter().collect())
        }
        Health::Recovering => Err(ApiError::unhealthy("recovering")),
        Health::Unhealthy => Err(ApiError::unhealthy("unhealthy")),
    }
}

/// The same as `/health`; browsers are led to the page at `/ui`.
#[utoipa::path(
    get,
    path = "/",
    tag = crate::openapi::tags::OPERATION,
    responses(
        (status = 200, description = "Everything is working fine"),
        (status = 303, description = "The request accepts `text/html`: see `/ui`"),
        (status = 503, description = "See `/health`", body = ErrorResponse),
    )
)]
pub async fn root(state: State<Arc<AppState>>, headers: HeaderMap) -> Result<Response, ApiError> {
    if accepts_html(&headers) {
        return Ok(ui::from_root().into_response());
    }
    health(state).await.map(IntoResponse::into_response)
}

/// Whether HTML is among what the sender of these headers names: browsers name it, other clients say `*/*`.
fn accepts_html(headers: &HeaderMap) -> bool {
    let fields = headers.get_all(header::ACCEPT).iter();
    let ranges = fields.filter_map(|field| field.to_str().ok());
    ranges.flat_map(|list| list.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let html = parts
            .next()
            .is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
        let weight = parts.find_map(|part| part.strip_prefix("q="));
        html && weight.is_none_or(|weight| weight.parse::<f32>().is_ok_and(|weight| weight > 0.0))
    })
}

/// The same as `/health`.
#[utoipa::path(
    get,
    path = "/ping",
    tag = crate::openapi::tags::OPERATION,
    responses(
        (status = 200, description = "Everything is working fine"),
        (status = 503, description = "See `/health`", body = ErrorResponse),
    )
)]
pub async fn ping(state: State<Arc<AppState>>) -> Result<HeaderMap, ApiError> {
    health(state).await
}

/// The same as `/health`, under the name that orchestrators use beside `/live`.
#[utoipa::path(
    get,
    path = "/ready",
    tag = crate::openapi::tags::OPERATION,
    responses(
        (status = 200, description = "Everything is working fine"),
        (status = 503, description = "See `/health`", body = ErrorResponse),
    )
)]
pub async fn ready(state: State<Arc<AppState>>) -> Result<HeaderMap, ApiError> {
    health(state).await
}

/// Whether the process answers at all; also while it is stopping, and with shards that hang.
#[utoipa::path(
    get,
    path = "/live",
    tag = crate::openapi::tags::OPERATION,
    responses((status = 200, description = "The process answers"))
)]
pub async fn live() {}
