//! The layers around the routes, all in one place.

use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_http::request_id::{
    MakeRequestUuid, PropagateRequestIdLayer, RequestId, SetRequestIdLayer,
};

use crate::error::ApiError;
use crate::headers;
use crate::timings::request_id;

/// What the layers need to know.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Largest request body in bytes.
    pub payload_limit: usize,
    /// Asked for on the routes that compute.
    pub api_key: Option<ApiKey>,
    /// Origins whose pages may call; empty for all.
    pub cors_allow_origin: Vec<HeaderValue>,
}

/// A secret. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(Arc<str>);

impl ApiKey {
    /// Whether the request may pass: the header is `Bearer <key>`, compared in constant time.
    fn admits(&self, authorization: Option<&HeaderValue>) -> bool {
        authorization
            .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
            .is_some_and(|given| given.ct_eq(self.0.as_bytes()).into())
    }
}

impl FromStr for ApiKey {
    type Err = &'static str;

    fn from_str(key: &str) -> Result<Self, Self::Err> {
        // An empty key would look like protection and be none; control characters never fit in a header.
        if key.trim().is_empty() || key.chars().any(char::is_control) {
            return Err("the API key must not be empty or hold control characters");
        }
        Ok(Self(key.into()))
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(***)")
    }
}

/// Refuses requests without the key. A layer of routes, not of paths: what has no handler has nothing to protect.
pub async fn require_api_key(
    State(key): State<Option<ApiKey>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    match key {
        Some(key) if !key.admits(request.headers().get(header::AUTHORIZATION)) => {
            Err(ApiError::unauthorized())
        }
        _ => Ok(next.run(request).await),
    }
}

/// Puts the layers around `router`, the first of the list outermost.
pub fn apply(router: Router, options: &HttpOptions) -> Router {
    router.layer(
        ServiceBuilder::new()
            .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
            .layer(PropagateRequestIdLayer::x_request_id())
            .layer(from_fn(log_errors))
            .layer(cors(&options.cors_allow_origin))
            .layer(CatchPanicLayer::custom(answer_panic))
            .layer(DefaultBodyLimit::max(options.payload_limit)),
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
        .allow_headers([
            header::CONTENT_TYPE,
            header::AUTHORIZATION,
            headers::X_REQUEST_ID,
        ])
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

/// Failures of ours are errors in the log. Refused requests are noise there, and their messages may quote the body.
async fn log_errors(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let id = request.extensions().get::<RequestId>().cloned();
    let response = next.run(request).await;
    if let Some(error) = response.extensions().get::<ApiError>() {
        let request_id = id.as_ref().map(request_id);
        let status = error.status.as_u16();
        let error_type = error.body.error_type;
        if error.status.is_server_error() || error.status == StatusCode::FAILED_DEPENDENCY {
            tracing::error!(request_id, %method, path, status, error_type, "{}", error.body.error);
        } else {
            tracing::debug!(request_id, %method, path, status, error_type, "request refused");
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;

    fn admits(key: &str, header: &str) -> bool {
        let key: ApiKey = key.parse().expect("a good key");
        key.admits(Some(&HeaderValue::from_str(header).expect("a good header")))
    }

    #[test]
    fn the_key_is_compared_exactly() {
        assert!(admits("Secret", "Bearer Secret"));
        for wrong in [
            "Bearer secret",
            "Bearer Secret ",
            "Bearer ",
            "Secret",
            "Basic Secret",
        ] {
            assert!(!admits("Secret", wrong), "{wrong}");
        }
        assert!(!"k".parse::<ApiKey>().expect("a good key").admits(None));
    }

    #[test]
    fn an_empty_key_is_refused_and_none_is_shown() {
        assert!("".parse::<ApiKey>().is_err());
        assert!(" ".parse::<ApiKey>().is_err());
        let key: ApiKey = "hunter2".parse().expect("a good key");
        assert!(!format!("{key:?}").contains("hunter2"));
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_without_its_text() {
        let options = HttpOptions {
            payload_limit: 1,
            api_key: None,
            cors_allow_origin: Vec::new(),
        };
        async fn failing() -> StatusCode {
            panic!("secret detail")
        }
        let router = apply(
            Router::new().route("/", axum::routing::get(failing)),
            &options,
        );
        let request = Request::new(axum::body::Body::empty());
        let response = router.oneshot(request).await.expect("an answer");
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert!(response.headers().contains_key(headers::X_REQUEST_ID));
        let body = axum::body::to_bytes(response.into_body(), 1000)
            .await
            .expect("a body");
        let body = String::from_utf8_lossy(&body);
        assert!(body.ends_with(r#""error_type":"internal"}"#), "{body}");
        assert!(!body.contains("secret"), "{body}");
    }
}
