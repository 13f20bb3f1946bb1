//! Extractor of JSON bodies. Every rejection is an [`ApiError`].

mod fields;
mod whole;
mod wrong_value;

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use text_generation_chat::mend_surrogates;
use text_generation_core::error::{InferError, ValidationError};
use text_generation_core::media::Vision;
use tokio_util::sync::CancellationToken;

use self::fields::FromObject;
pub use self::fields::{not_null, nullable_object, object, token_limit};
pub use self::whole::{Whole, whole};
pub use self::wrong_value::wrong_field;
use crate::body_files;
use crate::bounds::{
    MAX_JSON_DEPTH, MAX_MEMORY_PER_BODY_BYTE, MEMORY_PER_BODY_BYTE, MEMORY_PER_BODY_MARK,
};
use crate::error::ApiError;
use crate::json_text::json_shape;
use crate::memory::MemoryShare;

/// What the body of a request may take.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Largest body.
    pub bytes: usize,
    /// How long a client may take to send it.
    pub time: Duration,
}

/// What reading a body needs to know of the server.
#[derive(Debug, Clone)]
pub struct Reading {
    pub limits: BodyLimits,
    /// Cancelled when the server stops: no body is waited for any more.
    pub stopping: CancellationToken,
    /// How the model sees, if it does.
    pub vision: Option<Vision>,
    /// The model is a classifier: no route generates.
    pub classifies: bool,
}

impl Reading {
    /// Whether the model generates text. Nothing of the body is right where it does not, whatever is wrong with it.
    ///
    /// # Errors
    /// 422 of a classifier.
    pub fn check_generates(&self) -> Result<(), ApiError> {
        match self.classifies {
            true => Err(InferError::from(ValidationError::Classifies).into()),
            false => Ok(()),
        }
    }
}

/// The bytes of a body that is called JSON, read to its end; of images it has marks alone ([`body_files`]).
#[derive(Debug)]
pub struct JsonBytes(Bytes);

/// A JSON object read into `T`. Unknown keys are ignored, messages name the path of the wrong value.
#[derive(Debug)]
pub struct ApiJson<T>(pub T);

/// [`ApiJson`] of a route that generates: a body that is refused is a request that failed.
#[derive(Debug)]
pub struct GenerationJson<T>(pub T);

impl<S> FromRequest<S> for JsonBytes
where
    S: Send + Sync,
    Reading: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        Self::read(request, Reading::from_ref(state)).await
    }
}

impl JsonBytes {
    async fn read(request: Request, reading: Reading) -> Result<Self, ApiError> {
        check_headers(request.headers())?;
        let Reading {
            limits,
            stopping,
            vision,
            ..
        } = reading;
        let share = request.extensions().get::<MemoryShare>().cloned();
        let share = share.ok_or_else(ApiError::internal)?;
        let read = read(request.into_body(), limits.bytes, &share);
        let body = tokio::select! {
            biased;
            read = tokio::time::timeout(limits.time, read) => match read {
                Ok(body) => body?,
                Err(_) => return Err(ApiError::request_timeout(limits.time.as_secs())),
            },
            () = stopping.cancelled() => return Err(InferError::ShuttingDown.into()),
        };
        let body = match &vision {
            Some(vision) => body_files::take_out(body, vision).await?,
            None => body,
        };
        weighed(body, &share).map(Self)
    }

    /// Reads the object into `T`, as [`ApiJson`] does.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        parse(&self.0)
    }
}

/// Reads a body to its end. One that is said to be too large is not asked for: a client that waits for `100 Continue`
/// sends none of it.
async fn read(mut body: Body, limit: usize, share: &MemoryShare) -> Result<BytesMut, ApiError> {
    let said = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if said > limit {
        return Err(ApiError::payload_too_large(limit));
    }
    let mut bytes = BytesMut::with_capacity(said);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            ApiError::malformed_json("the request body could not be read to its end")
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if data.len() > limit - bytes.len() {
            return Err(ApiError::payload_too_large(limit));
        }
        share.resize(bytes.len() + data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// A body that may be read as JSON: `share` holds what it takes.
fn weighed(mut bytes: BytesMut, share: &MemoryShare) -> Result<Bytes, ApiError> {
    let shape = json_shape(&bytes);
    if shape.depth > MAX_JSON_DEPTH {
        return Err(ApiError::malformed_json(format!(
            "malformed JSON: more than {MAX_JSON_DEPTH} lists and objects inside each other"
        )));
    }
    let (texts, values) = memory_of(bytes.len(), shape.marks);
    share.hold_body(texts, values)?;
    mend_surrogates(&mut bytes);
    Ok(bytes.freeze())
}

/// What the texts of a body may take until its request is queued, and what its values do beside that: small ones take far
/// more than the bytes that they are written in.
pub fn memory_of(bytes: usize, marks: usize) -> (usize, usize) {
    let texts = bytes.saturating_mul(MEMORY_PER_BODY_BYTE);
    let values = marks.saturating_mul(MEMORY_PER_BODY_MARK);
    let most = bytes.saturating_mul(MAX_MEMORY_PER_BODY_BYTE);
    (texts, values.min(most - texts))
}

impl<T, S> FromRequest<S> for ApiJson<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
    Reading: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = JsonBytes::from_request(request, state).await?;
        bytes.parse().map(Self)
    }
}

impl<T, S> FromRequest<S> for GenerationJson<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
    Reading: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let reading = Reading::from_ref(state);
        let read = async {
            reading.check_generates()?;
            JsonBytes::read(request, reading).await?.parse()
        };
        read.await.map(Self).inspect_err(ApiError::count)
    }
}

/// The body must be called JSON, and must not be compressed.
fn check_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if !is_json(content_type) {
        return Err(ApiError::unsupported_media_type(
            "the request body must be JSON: send the header `Content-Type: application/json`",
        ));
    }
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") => {
            Err(ApiError::unsupported_media_type(
                "compressed request bodies are not supported: leave out the header `Content-Encoding`",
            ))
        }
        _ => Ok(()),
    }
}

/// `application/json` and `application/<anything>+json`, with or without parameters.
fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let Some((kind, subtype)) = essence.split_once('/') else {
        return false;
    };
    let subtype = subtype.to_ascii_lowercase();
    kind.eq_ignore_ascii_case("application") && (subtype == "json" || subtype.ends_with("+json"))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    if body.trim_ascii().is_empty() {
        return Err(ApiError::malformed_json(
            "the request body is empty: send a JSON object",
        ));
    }
    if body.starts_with(b"\xef\xbb\xbf") {
        return Err(ApiError::malformed_json(
            "malformed JSON: the body starts with a UTF-8 byte order mark; send it without",
        ));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    // serde takes an array for a struct, field by field; no client means that. Of a text or a number it would say what
    // structure of ours it is not.
    let object = body.trim_ascii_start().first() == Some(&b'{');
    let value = serde_path_to_error::deserialize(Whole(&mut reader)).map_err(|error| {
        let path = error.path().to_string();
        match error.into_inner() {
            error if !object && error.is_data() => not_an_object(),
            error if is_no_name(&error, body) => wrong("expected a string", &path),
            error => rejection(error, &path),
        }
    })?;
    reader.end().map_err(|error| rejection(error, "."))?;
    if object {
        Ok(value)
    } else {
        Err(not_an_object())
    }
}

fn not_an_object() -> ApiError {
    ApiError::invalid_body("the body must be a JSON object")
}

/// Reads an object of a body whose kind was not known when the body was read; `at` is its path.
pub fn from_raw<T: DeserializeOwned>(raw: &RawValue, at: &str) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_str(raw.get());
    serde_path_to_error::deserialize(Whole(&mut reader))
        .map(|object: FromObject<T>| object.0)
        .map_err(|error| {
            let path = path_below(at, &error.path().to_string());
            match error.into_inner() {
                error if is_no_name(&error, raw.get().as_bytes()) => {
                    wrong("expected a string", &path)
                }
                error => rejection(error, &path),
            }
        })
}

/// Reads an object inside of a body that was read as JSON; `at` is its path.
pub fn from_value<T: DeserializeOwned>(value: &serde_json::Value, at: &str) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(Whole(value))
        .map(|object: FromObject<T>| object.0)
        .map_err(|error| {
            let path = path_below(at, &error.path().to_string());
            rejection(error.into_inner(), &path)
        })
}

fn path_below(at: &str, path: &str) -> String {
    match path {
        "." => at.to_owned(),
        path => format!("{at}.{path}"),
    }
}

/// Whether a name out of several was expected, and something that is no text came: the library calls that a text that is
/// not JSON.
fn is_no_name(error: &serde_json::Error, json: &[u8]) -> bool {
    error.is_syntax()
        && error.to_string().starts_with("expected value")
        && serde_json::from_slice::<IgnoredAny>(json).is_ok()
}

fn rejection(error: serde_json::Error, path: &str) -> ApiError {
    if !error.is_data() {
        return ApiError::malformed_json(format!("malformed JSON: {error}"));
    }
    // The path says where it is; a sentence goes on with the place in a line that nobody has written.
    let place = format!(" at line {} column {}", error.line(), error.column());
    let problem = error.to_string();
    let problem = problem.strip_suffix(&place).unwrap_or(&problem);
    wrong(problem, path)
}

/// What the library says of the value at `path`, as an error of ours.
fn wrong(problem: &str, path: &str) -> ApiError {
    let described = wrong_value::described(problem, path);
    ApiError::invalid_body(format!("Input validation error: {described}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_bodies() {
        let memory = |json: &str| memory_of(json.len(), json_shape(json.as_bytes()).marks);
        let text = format!(r#"{{"inputs": "{}"}}"#, "[0],".repeat(1_000));
        assert_eq!(memory(&text), (text.len() * 8, 2 * 400));
        let lists = format!("[{}0]", "[0],".repeat(1_000));
        assert_eq!(memory(&lists), (lists.len() * 8, 2_001 * 400));
        let lists = format!("[{}0]", "[],".repeat(1_000));
        assert_eq!(memory(&lists), (lists.len() * 8, lists.len() * 212));
    }

    #[test]
    fn json_content_types() {
        for yes in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/vnd.x+json",
        ] {
            assert!(is_json(yes), "{yes}");
        }
        for no in ["", "text/plain", "application/jsonp", "text/json", "json"] {
            assert!(!is_json(no), "{no}");
        }
    }
}
