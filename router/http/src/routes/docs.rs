//! The OpenAPI document at `/api-doc/openapi.json`, and Swagger UI at `/docs`, which shows it.
//!
//! The page is open, and its users type keys into it: it may load nothing but its own files, and ask nobody but this
//! server.

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use utoipa::openapi::OpenApi;
use utoipa_swagger_ui::{Config, SwaggerUi};

/// Swagger UI writes styles into its markup, has pictures in its styles, and offers answers as files of its own making.
const CONTENT_SECURITY_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// The routes.
pub fn pages<S: Clone + Send + Sync + 'static>(document: OpenApi) -> Router<S> {
    // By default the page shows a picture that a server of others makes of the document.
    let config = Config::default().validator_url("none");
    let pages = SwaggerUi::new("/docs")
        .config(config)
        .url("/api-doc/openapi.json", document);
    Router::from(pages).layer(from_fn(protect))
}

async fn protect(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY);
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    response
}
