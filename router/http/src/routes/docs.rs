//! The OpenAPI document at `/api-doc/openapi.json`, and Swagger UI at `/docs`, which shows it.
//!
//! The page is open, and its users type keys into it: it may load nothing but its own files, and ask nobody but this
//! server.

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use utoipa::openapi::OpenApi;
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::error::ApiError;

/// Swagger UI writes styles into its markup, has pictures in its styles, and offers answers as files of its own making.
const CONTENT_SECURITY_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// What a tab of the browser shows, and what Swagger UI would have there.
const TITLE: &str = "<title>text-generation API</title>";
const ITS_TITLE: &str = "<title>Swagger UI</title>";

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
    let path = request.uri().path().to_owned();
    let mut response = named(next.run(request).await, &path).await;
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

/// The answer with our name in a page, and in our words where there is no such file.
async fn named(response: Response, path: &str) -> Response {
    let status = response.status();
    if status == StatusCode::NOT_FOUND || status == StatusCode::BAD_REQUEST {
        return ApiError::not_found(path, None).into_response();
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| !kind.as_bytes().starts_with(b"text/html")) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let Ok(page) = body.collect().await else {
        return ApiError::internal().into_response();
    };
    let page = page.to_bytes();
    let page = String::from_utf8_lossy(&page).replace(ITS_TITLE, TITLE);
    head.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(head, page.into())
}
