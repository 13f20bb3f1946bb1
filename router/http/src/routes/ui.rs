//! The playground at `/ui`: a page with its scripts and styles, embedded in the binary.
//!
//! The page holds nothing of this server and is open, as `/docs` is; what it asks the other routes carries the key that
//! its user types. It may load nothing but its own files, and its scripts cannot turn text into markup.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, Uri, header};
use axum::response::{IntoResponse, Redirect};

use crate::error::ApiError;

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // An older page must not meet a newer server.
    (header::CACHE_CONTROL, "no-cache"),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

const PAGE: &str = include_str!("../../ui/index.html");

/// Name, type and text of a file of the page.
macro_rules! embedded {
    ($name:literal, $kind:expr) => {
        ($name, $kind, include_str!(concat!("../../ui/", $name)))
    };
}

/// What the page loads.
const FILES: [(&str, &str, &str); 15] = [
    embedded!("style.css", CSS),
    embedded!("answer.js", JAVASCRIPT),
    embedded!("api.js", JAVASCRIPT),
    embedded!("app.js", JAVASCRIPT),
    embedded!("calls.js", JAVASCRIPT),
    embedded!("chat.js", JAVASCRIPT),
    embedded!("conversations.js", JAVASCRIPT),
    embedded!("dom.js", JAVASCRIPT),
    embedded!("generate.js", JAVASCRIPT),
    embedded!("inline.js", JAVASCRIPT),
    embedded!("markdown.js", JAVASCRIPT),
    embedded!("message.js", JAVASCRIPT),
    embedded!("parameters.js", JAVASCRIPT),
    embedded!("store.js", JAVASCRIPT),
    embedded!("tokens.js", JAVASCRIPT),
];

/// The page.
pub async fn page() -> impl IntoResponse {
    (HEADERS, [(header::CONTENT_TYPE, HTML)], PAGE)
}

/// The links of the page are relative to `/ui`, so that it also works below a path of a proxy.
pub async fn with_slash() -> Redirect {
    Redirect::permanent("../ui")
}

/// A file of the page.
pub async fn file(
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
) -> Result<impl IntoResponse, ApiError> {
    // What is no UTF-8 names no file.
    let found = name
        .ok()
        .and_then(|Path(name)| FILES.iter().find(|(file, ..)| *file == name));
    let (_, kind, text) = found.ok_or_else(|| ApiError::not_found(uri.path()))?;
    Ok((HEADERS, [(header::CONTENT_TYPE, *kind)], *text))
}
