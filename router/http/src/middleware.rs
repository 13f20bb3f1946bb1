//! The layers around the routes, all in one place.

mod unread;

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, Version, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use tower_http::request_id::{
    MakeRequestUuid, PropagateRequestIdLayer, RequestId, SetRequestIdLayer,
};

use self::unread::announce_close;
use crate::access::{Access, require_api_key};
use crate::body_files;
use crate::error::{Api, ApiError};
use crate::extract::BodyLimits;
use crate::headers;
use crate::memory::{self, MemoryBudget};
use crate::metrics::http_error;
use crate::telemetry::{self, Tracer};
use crate::timings::request_id;

/// What the layers need to know.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    pub body: BodyLimits,
    /// For all requests together.
    pub memory: MemoryBudget,
    pub access: Access,
    /// Origins whose pages may call; empty for all.
    pub cors_allow_origin: Vec<HeaderValue>,
    /// Traces requests, where that is asked for.
    pub tracer: Option<Arc<Tracer>>,
}

/// Puts the layers around `router`, the first of the list outermost.
pub fn apply(router: Router, options: &HttpOptions) -> Router {
    router.layer(
        ServiceBuilder::new()
            .layer(from_fn(announce_close))
            .layer(from_fn(drop_odd_request_id))
            .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
            .layer(PropagateRequestIdLayer::x_request_id())
            .layer(from_fn(repeat_request_id))
            .layer(from_fn_with_state(options.tracer.clone(), telemetry::trace))
            .layer(from_fn(finish_errors))
            .layer(from_fn(check_host))
            .layer(cors(&options.cors_allow_origin))
            .layer(CatchPanicLayer::custom(answer_panic))
            .layer(from_fn_with_state(options.access.clone(), require_api_key))
            .layer(from_fn_with_state(options.memory.clone(), memory::meter))
            .layer(from_fn(body_files::scope)),
    )
}

/// The layers around routes that nobody has to show a key for, where they are all that there is.
pub fn apply_open(router: Router) -> Router {
    router.layer(
        ServiceBuilder::new()
            .layer(from_fn(drop_odd_request_id))
            .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
            .layer(PropagateRequestIdLayer::x_request_id())
            .layer(from_fn(finish_errors))
            .layer(CatchPanicLayer::custom(answer_panic)),
    )
}

fn cors(origins: &[HeaderValue]) -> CorsLayer {
    let origin = if origins.is_empty() {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().cloned())
    };
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST])
        // Libraries for browsers send headers of their own, such as `x-stainless-os` and `anthropic-version`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(headers::EXPOSED)
}

fn answer_panic(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    tracing::error!("a handler panicked: {text}");
    ApiError::internal().into_response()
}

/// An id that is long or holds anything but letters, digits and `-_.:/+=@` is replaced: it goes to logs and answers.
async fn drop_odd_request_id(mut request: Request, next: Next) -> Response {
    let headers = request.headers_mut();
    let given = headers.get(headers::X_REQUEST_ID);
    if given.is_some_and(|id| headers::plain(id).is_none()) {
        headers.remove(headers::X_REQUEST_ID);
    }
    next.run(request).await
}

/// A request of HTTP/1.1 names its host, and once (RFC 9112, 3.2): what stands between a client and this server may read
/// another of two.
async fn check_host(request: Request, next: Next) -> Result<Response, ApiError> {
    let given = request.headers().get_all(header::HOST).iter().count();
    let missing = given == 0 && request.version() == Version::HTTP_11;
    if missing || given > 1 {
        return Err(ApiError::bad_request(
            "the request must have one `Host` header",
        ));
    }
    Ok(next.run(request).await)
}

/// Anthropic's clients read the id of a request under a name of their own.
async fn repeat_request_id(request: Request, next: Next) -> Response {
    let read = Api::of(request.uri().path()) == Api::Messages;
    let id = request.extensions().get::<RequestId>().cloned();
    let mut response = next.run(request).await;
    if let Some(id) = id.filter(|_| read) {
        let id = id.into_header_value();
        response.headers_mut().insert(headers::REQUEST_ID, id);
    }
    response
}

/// Counts and logs an error and writes its body in the shape of its API, with the id of the request.
///
/// Failures of ours are errors in the log; see [`ApiError::is_refusal`].
async fn finish_errors(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let id = request.extensions().get::<RequestId>().cloned();
    let mut response = next.run(request).await;
    let Some(mut error) = response.extensions_mut().remove::<ApiError>() else {
        return response;
    };
    let api = Api::of(&path);
    error.status = api.status(&error);
    let request_id = id.as_ref().map(request_id);
    let status = error.status.as_u16();
    let error_type = error.body.error_type;
    http_error(error.status, error_type);
    if let Some(span) = telemetry::current() {
        span.failed(&error);
    }
    if error.is_refusal() {
        tracing::debug!(request_id, %method, path, status, error_type, "request refused");
    } else {
        tracing::error!(request_id, %method, path, status, error_type, "{}", error.body.error);
    }
    error.body.request_id = request_id.map(str::to_owned);
    *response.status_mut() = error.status;
    let body = api.body(&error);
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = body.into_body();
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::StatusCode;
    use tower::ServiceExt;

    use super::*;
    use crate::api_keys::ApiKeys;
    use crate::tenant::PrefixCaching;

    #[tokio::test]
    async fn a_panic_is_an_answer_without_its_text() {
        let options = HttpOptions {
            body: BodyLimits {
                bytes: 1,
                time: Duration::from_secs(1),
            },
            memory: MemoryBudget::new(0),
            access: Access {
                keys: ApiKeys::default(),
                prefix_caching: PrefixCaching::On,
                open_metrics: false,
                tenant_header: None,
                priority_header: None,
            },
            cors_allow_origin: Vec::new(),
            tracer: None,
        };
        async fn failing() -> StatusCode {
            panic!("secret detail")
        }
        let router = apply(
            Router::new().route("/", axum::routing::get(failing)),
            &options,
        );
        let request = Request::builder()
            .header(header::HOST, "x")
            .body(axum::body::Body::empty())
            .expect("a request");
        let response = router.oneshot(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(response.headers().contains_key(headers::X_REQUEST_ID));
        let body = axum::body::to_bytes(response.into_body(), 1000)
            .await
            .expect("a body");
        let body = String::from_utf8_lossy(&body);
        assert!(
            body.contains(r#""error_type":"internal","request_id":"#),
            "{body}"
        );
        assert!(!body.contains("secret"), "{body}");
    }
}
