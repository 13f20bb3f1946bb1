//! Answers that may be a hundred times as large as their request, written piece by piece while the client takes them.

use std::convert::Infallible;
use std::iter::once;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use serde::Serialize;
use text_generation_core::types::{SimpleToken, TokenizedText};

use crate::error::ApiError;
use crate::memory::MemoryShare;

/// Tokens that are written at once.
const PIECE: usize = 512;

/// JSON of the tokens between `head` and `tail`. The share lasts until all is taken, and covers no more than the tokens.
pub fn response(
    tokens: TokenizedText,
    head: &'static str,
    tail: Bytes,
    share: MemoryShare,
) -> Result<Response, ApiError> {
    share.resize(tokens.size() + tail.len())?;
    let head = Bytes::from_static(head.as_bytes());
    let pieces = pieces(tokens.into(), |token| token);
    Ok(json(once(head).chain(pieces).chain(once(tail)), share))
}

/// The same of the ids alone, and behind them, where `text` is given, of what it says of each.
pub fn counted(
    tokens: TokenizedText,
    max_model_len: u32,
    text: Option<impl Fn(u32) -> String + Send + 'static>,
    share: MemoryShare,
) -> Result<Response, ApiError> {
    share.resize(tokens.size())?;
    let count = tokens.len();
    let head = format!(r#"{{"count":{count},"max_model_len":{max_model_len},"tokens":["#);
    let tokens = Arc::new(tokens);
    let texts = text.map(|text| {
        let texts = pieces(tokens.clone(), move |token| text(token.id));
        let open = Bytes::from_static(br#","token_strs":["#);
        once(open)
            .chain(texts)
            .chain(once(Bytes::from_static(b"]")))
    });
    let ids = pieces(tokens, |token| token.id);
    let ids = once(Bytes::from(head))
        .chain(ids)
        .chain(once(Bytes::from_static(b"]")));
    let end = once(Bytes::from_static(b"}"));
    Ok(json(
        ids.chain(texts.into_iter().flatten()).chain(end),
        share,
    ))
}

/// A JSON answer in pieces, for which memory is held until all are taken.
pub fn json(pieces: impl Iterator<Item = Bytes> + Send + 'static, share: MemoryShare) -> Response {
    let held = pieces.map(move |bytes| {
        let _until_the_last = &share;
        Ok::<_, Infallible>(bytes)
    });
    let mut response = Body::from_stream(stream::iter(held)).into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// `value` as JSON.
///
/// # Errors
/// Never for types of ours.
pub fn bytes(value: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(value).map_err(|_| ApiError::internal())
}

/// What `part` says of each token, as JSON with commas between them.
fn pieces<T: Serialize>(
    tokens: Arc<TokenizedText>,
    part: impl Fn(SimpleToken) -> T + Send + 'static,
) -> impl Iterator<Item = Bytes> + Send + 'static {
    (0..tokens.len()).step_by(PIECE).map(move |first| {
        let mut json = Vec::new();
        for (index, token) in (first..).zip(tokens.tokens(first, PIECE)) {
            if index > 0 {
                json.push(b',');
            }
            // A number and text of ours always serialise.
            json.extend(serde_json::to_vec(&part(token)).unwrap_or_default());
        }
        json.into()
    })
}
