//! One endpoint family a file: parse, call `core`, map.

mod adapters;
mod docs;
mod generate;
mod health;
mod hosted;
mod info;
mod invocations;
pub(crate) mod messages;
mod metrics;
pub(crate) mod openai;
pub(crate) mod responses;
mod tokenize;
mod ui;
mod vertex;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use self::hosted::{InvocationAnswer, InvocationBody, InvocationEvent, VertexInstance};
pub use self::openai::{ChatEvent, CompletionEvent};
pub use self::tokenize::TokenizeBody;
use crate::error::{ApiError, MessageErrorResponse};
use crate::middleware;
use crate::openapi::Document;
use crate::paths::KnownPaths;
use crate::state::AppState;

/// What the routes do not add themselves: paths that the document has to write in its own way, and bodies that only
/// errors have.
#[derive(Debug, OpenApi)]
#[openapi(
    paths(openai::models::model),
    components(schemas(MessageErrorResponse))
)]
struct Unlisted;

/// Every route with its description.
fn documented() -> OpenApiRouter<Arc<AppState>> {
    OpenApiRouter::with_openapi(Document::openapi().merge_from(Unlisted::openapi()))
        .routes(routes!(generate::compat_generate))
        .routes(routes!(generate::generate))
        .routes(routes!(generate::generate_stream))
        .routes(routes!(invocations::invocations))
        .routes(routes!(vertex::vertex))
        .routes(routes!(openai::chat::chat_completions))
        .routes(routes!(openai::completions::completions))
        .routes(routes!(openai::score::score))
        .routes(routes!(openai::classify::classify))
        .routes(routes!(openai::render::render_chat))
        .routes(routes!(openai::render::render_completion))
        .routes(routes!(responses::responses))
        .routes(routes!(responses::input_tokens))
        .routes(routes!(messages::messages))
        .routes(routes!(messages::count_tokens))
        .routes(routes!(openai::models::models))
        // Names of models have slashes; the document, which knows no such paths, lists it by `Unlisted`.
        .route("/v1/models/{*model}", get(openai::models::model))
        .routes(routes!(tokenize::tokenize))
        .routes(routes!(tokenize::chat_tokenize))
        .routes(routes!(tokenize::detokenize))
        .routes(routes!(info::info))
        .routes(routes!(info::version))
        .routes(routes!(info::tokenizer_info))
        .routes(routes!(health::health))
        .routes(routes!(health::root))
        .routes(routes!(health::ping))
        .routes(routes!(health::ready))
        .routes(routes!(health::live))
        .routes(routes!(metrics::metrics))
        .routes(routes!(adapters::load))
        .routes(routes!(adapters::unload))
        .routes(routes!(adapters::load_as_sglang))
        .routes(routes!(adapters::unload_as_sglang))
}

/// The OpenAPI document of [`router`].
pub fn openapi() -> utoipa::openapi::OpenApi {
    documented().into_openapi()
}

/// The whole HTTP surface: routes, documentation, fallbacks and layers.
pub fn router(state: Arc<AppState>) -> Router {
    let options = state.options.clone();
    let (router, document) = documented().split_for_parts();
    let pages = ["/docs", "/ui"].map(str::to_owned);
    let known = KnownPaths::new(document.paths.paths.keys().cloned().chain(pages));
    let router = router
        .route("/ui", get(ui::page))
        .route("/ui/", get(ui::with_slash))
        .route("/ui/{file}", get(ui::file))
        .merge(docs::pages(document))
        .fallback(async move |request: Request| not_found(&request, &known))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(state);
    middleware::apply(router, &options)
}

/// What the management port answers: the probes and `/metrics`, without a key.
pub fn management(state: Arc<AppState>) -> Router {
    let router = Router::new()
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/live", get(health::live))
        .route("/metrics", get(metrics::metrics))
        .fallback(async |request: Request| not_found(&request, &KnownPaths::default()))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(state);
    middleware::apply_open(router)
}

fn not_found(request: &Request, known: &KnownPaths) -> ApiError {
    let path = request.uri().path();
    ApiError::not_found(path, known.meant(path).as_deref())
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::method_not_allowed(request.method().as_str(), request.uri().path())
}
