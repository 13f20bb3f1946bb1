//! The playground at `/ui`: a page with its scripts and styles, embedded in the binary.
//!
//! The page holds nothing of this server and is open, as `/docs` is; what it asks the other routes carries the key that
//! its user types. It may load nothing but its own files, and its scripts cannot turn text into markup.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};

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
const TEXT: &str = "text/plain; charset=utf-8";

/// A file of the page.
struct Embedded {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
    /// Changes with the text, so that a browser need not load again what it has.
    tag: LazyLock<String>,
}

/// A file in the folder of the page, and its type.
macro_rules! embedded {
    ($name:literal, $kind:expr) => {
        Embedded {
            name: $name,
            kind: $kind,
            text: include_str!(concat!("../../ui/", $name)),
            tag: LazyLock::new(|| tag(include_str!(concat!("../../ui/", $name)))),
        }
    };
}

static PAGE: Embedded = embedded!("index.html", HTML);

/// What the page loads, and the licences of what others wrote of it.
static FILES: [Embedded; 28] = [
    embedded!("answer.css", CSS),
    embedded!("libraries.css", CSS),
    embedded!("style.css", CSS),
    embedded!("answer.js", JAVASCRIPT),
    embedded!("api.js", JAVASCRIPT),
    embedded!("app.js", JAVASCRIPT),
    embedded!("attached.js", JAVASCRIPT),
    embedded!("calls.js", JAVASCRIPT),
    embedded!("chat.js", JAVASCRIPT),
    embedded!("clipboard.js", JAVASCRIPT),
    embedded!("code.js", JAVASCRIPT),
    embedded!("content.js", JAVASCRIPT),
    embedded!("conversations.js", JAVASCRIPT),
    embedded!("dom.js", JAVASCRIPT),
    embedded!("drawers.js", JAVASCRIPT),
    embedded!("follow.js", JAVASCRIPT),
    embedded!("generate.js", JAVASCRIPT),
    embedded!("libraries.js", JAVASCRIPT),
    embedded!("markdown.js", JAVASCRIPT),
    embedded!("math.js", JAVASCRIPT),
    embedded!("message.js", JAVASCRIPT),
    embedded!("parameters.js", JAVASCRIPT),
    embedded!("patch.js", JAVASCRIPT),
    embedded!("picture.js", JAVASCRIPT),
    embedded!("store.js", JAVASCRIPT),
    embedded!("theme.js", JAVASCRIPT),
    embedded!("tokens.js", JAVASCRIPT),
    embedded!("libraries.txt", TEXT),
];

fn tag(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

/// The file, or that the sender of these headers has it already.
fn answer(file: &'static Embedded, headers: &HeaderMap) -> Response {
    let tag = file.tag.as_str();
    let known = headers.get(header::IF_NONE_MATCH);
    // A proxy that compresses says `W/"..."`.
    let is_known = known.is_some_and(|known| known.as_bytes().ends_with(tag.as_bytes()));
    let tag = [(header::ETAG, tag)];
    if is_known {
        return (StatusCode::NOT_MODIFIED, HEADERS, tag).into_response();
    }
    (HEADERS, tag, [(header::CONTENT_TYPE, file.kind)], file.text).into_response()
}

/// The page.
pub async fn page(headers: HeaderMap) -> Response {
    answer(&PAGE, &headers)
}

/// The links of the page are relative to `/ui`, so that it also works below a path of a proxy.
pub async fn with_slash() -> Redirect {
    Redirect::permanent("../ui")
}

/// Leads from `/` to the page.
pub fn from_root() -> impl IntoResponse {
    ([(header::VARY, "accept")], Redirect::to("ui"))
}

/// A file of the page.
pub async fn file(
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    // What is no UTF-8 names no file.
    let found = name
        .ok()
        .and_then(|Path(name)| FILES.iter().find(|file| file.name == name));
    let file = found.ok_or_else(|| ApiError::not_found(uri.path(), None))?;
    Ok(answer(file, &headers))
}
