//! One endpoint family a file: parse, call `core`, map.

mod generate;
mod health;
mod info;
mod metrics;
mod tokenize;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::error::ApiError;
use crate::middleware::{self, ApiKey, require_api_key};
use crate::openapi::Document;
use crate::state::AppState;

/// Every route with its description. `key` guards the ones that compute.
fn documented(key: Option<ApiKey>) -> OpenApiRouter<Arc<AppState>> {
    let computing = OpenApiRouter::new()
        .routes(routes!(generate::compat_generate))
        .routes(routes!(generate::generate))
        .routes(routes!(generate::generate_stream))
        .routes(routes!(tokenize::tokenize))
        .route_layer(from_fn_with_state(key, require_api_key));
    OpenApiRouter::with_openapi(Document::openapi())
        .merge(computing)
        .routes(routes!(info::info))
        .routes(routes!(health::health))
        .routes(routes!(health::root))
        .routes(routes!(health::ping))
        .routes(routes!(metrics::metrics))
}

/// The OpenAPI document of [`router`].
pub fn openapi() -> utoipa::openapi::OpenApi {
    documented(None).into_openapi()
}

/// The whole HTTP surface: routes, documentation, fallbacks and layers.
pub fn router(state: Arc<AppState>) -> Router {
    let options = state.options.clone();
    let (router, document) = documented(options.api_key.clone()).split_for_parts();
    let router = router
        .merge(SwaggerUi::new("/docs").url("/api-doc/openapi.json", document))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(state);
    middleware::apply(router, &options)
}

async fn not_found(request: Request) -> ApiError {
    ApiError::not_found(request.uri().path())
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::method_not_allowed(request.method().as_str(), request.uri().path())
}
