//! Answers that may be a hundred times as large as their request, written piece by piece while the client takes them.

use std::convert::Infallible;
use std::iter::once;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use serde::Serialize;
use text_generation_core::types::TokenizedText;

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
    let pieces = (0..tokens.len()).step_by(PIECE);
    let pieces = pieces.map(move |first| piece(&tokens, first));
    let pieces = once(Bytes::from_static(head.as_bytes())).chain(pieces);
    Ok(json(pieces.chain(once(tail)), share))
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

fn piece(tokens: &TokenizedText, first: usize) -> Bytes {
    let mut json = Vec::new();
    for (index, token) in (first..).zip(tokens.tokens(first, PIECE)) {
        if index > 0 {
            json.push(b',');
        }
        // A number and text of ours always serialise.
        json.extend(serde_json::to_vec(&token).unwrap_or_default());
    }
    json.into()
}
