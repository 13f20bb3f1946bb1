//! Headers of an answer: timings and sizes of a finished request, and what every answer of the compute routes carries.

use std::fmt::Display;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};

use text_generation_core::types::PredictedTokens;

use crate::bounds::MAX_REQUEST_ID_BYTES;
use crate::timings::Timings;

pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Anthropic's name of it.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
pub const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
pub const X_ROUTER_INSTANCE: HeaderName = HeaderName::from_static("x-router-instance");
const COMPUTE_TYPE: HeaderName = HeaderName::from_static("x-compute-type");
const COMPUTE_TIME: HeaderName = HeaderName::from_static("x-compute-time");
const COMPUTE_CHARACTERS: HeaderName = HeaderName::from_static("x-compute-characters");
const TOTAL_TIME: HeaderName = HeaderName::from_static("x-total-time");
const VALIDATION_TIME: HeaderName = HeaderName::from_static("x-validation-time");
const QUEUE_TIME: HeaderName = HeaderName::from_static("x-queue-time");
const INFERENCE_TIME: HeaderName = HeaderName::from_static("x-inference-time");
const TIME_PER_TOKEN: HeaderName = HeaderName::from_static("x-time-per-token");
const PROMPT_TOKENS: HeaderName = HeaderName::from_static("x-prompt-tokens");
const CACHED_TOKENS: HeaderName = HeaderName::from_static("x-cached-tokens");
const GENERATED_TOKENS: HeaderName = HeaderName::from_static("x-generated-tokens");
const GRAMMAR_NOT_ENFORCED: HeaderName = HeaderName::from_static("x-grammar-not-enforced");
const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-ignored-fields");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

/// About the longest list of what is not enforced.
const MAX_NOT_ENFORCED_BYTES: usize = 2_000;
/// About the longest name in it.
const MAX_FEATURE_BYTES: usize = 250;
/// Longest text of a client that goes to logs and answers.
pub const MAX_PLAIN_BYTES: usize = MAX_REQUEST_ID_BYTES;

/// A text of a client that may go to logs and answers: it is short, not empty, and holds nothing but letters, digits and
/// `-_.:/+=@`.
pub fn plain(value: &HeaderValue) -> Option<&str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte);
    let text = value.to_str().ok()?;
    let fits = !text.is_empty() && text.len() <= MAX_PLAIN_BYTES;
    (fits && text.bytes().all(plain)).then_some(text)
}

/// What a page of another origin may read.
pub const EXPOSED: [HeaderName; 16] = [
    X_REQUEST_ID,
    REQUEST_ID,
    COMPUTE_TYPE,
    COMPUTE_TIME,
    COMPUTE_CHARACTERS,
    TOTAL_TIME,
    VALIDATION_TIME,
    QUEUE_TIME,
    INFERENCE_TIME,
    TIME_PER_TOKEN,
    PROMPT_TOKENS,
    CACHED_TOKENS,
    GENERATED_TOKENS,
    GRAMMAR_NOT_ENFORCED,
    IGNORED_FIELDS,
    header::RETRY_AFTER,
];

/// Tokens of a finished request.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub prompt_tokens: u32,
    /// Of the prompt's, those that were found in the prefix tree.
    pub cached_tokens: u32,
    pub generated_tokens: u32,
    /// Of predictions, where there were any.
    pub predicted: Option<PredictedTokens>,
}

/// Headers of a finished, not streamed generation. Times are whole milliseconds, but `x-compute-time` is in seconds.
pub fn finished(
    compute_type: &HeaderValue,
    characters: usize,
    timings: &Timings,
    sizes: Sizes,
) -> HeaderMap {
    let mut headers = computed(compute_type, characters);
    insert(&mut headers, COMPUTE_TIME, timings.total.as_secs_f64());
    insert(&mut headers, TOTAL_TIME, timings.total.as_millis());
    insert(
        &mut headers,
        VALIDATION_TIME,
        timings.validation.as_millis(),
    );
    insert(&mut headers, QUEUE_TIME, timings.queue.as_millis());
    insert(&mut headers, INFERENCE_TIME, timings.inference.as_millis());
    insert(&mut headers, TIME_PER_TOKEN, timings.per_token.as_millis());
    insert(&mut headers, PROMPT_TOKENS, sizes.prompt_tokens);
    insert(&mut headers, CACHED_TOKENS, sizes.cached_tokens);
    insert(&mut headers, GENERATED_TOKENS, sizes.generated_tokens);
    headers
}

/// Headers of a stream of server-sent events.
pub fn streaming(compute_type: &HeaderValue, characters: usize) -> HeaderMap {
    let mut headers = computed(compute_type, characters);
    headers.insert(header::CONTENT_TYPE, EVENT_STREAM);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Reverse proxies that buffer would hold the tokens back.
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    headers
}

/// Whether an answer is a stream of server-sent events.
pub fn is_stream<B>(response: &Response<B>) -> bool {
    response.headers().get(header::CONTENT_TYPE) == Some(&EVENT_STREAM)
}

/// Names the parts of a schema that the answer need not follow, where there are any: the first of them, because many
/// clients read no more than 8 kB of headers.
pub fn not_enforced(headers: &mut HeaderMap, features: &[String]) {
    if features.is_empty() {
        return;
    }
    let mut listed = String::new();
    for (index, feature) in features.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        let named = escaped(feature);
        if listed.len() + named.len() > MAX_NOT_ENFORCED_BYTES {
            let more = features.len() - index;
            listed.push_str(&format!("{separator}and {more} more"));
            break;
        }
        listed.push_str(separator);
        listed.push_str(&named);
    }
    insert(headers, GRAMMAR_NOT_ENFORCED, listed);
}

/// Names the fields of the request that come to nothing with this model, where there are any.
pub fn ignored_fields(headers: &mut HeaderMap, fields: &[&'static str]) {
    if !fields.is_empty() {
        insert(headers, IGNORED_FIELDS, fields.join(", "));
    }
}

/// A text in the characters that any client reads in a header, others as `%` and hexadecimal bytes; the end of a long one
/// is left out.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if escaped.len() > MAX_FEATURE_BYTES {
            escaped.push_str("...");
            break;
        }
        match character {
            ' '..='~' if character != '%' => escaped.push(character),
            _ => {
                let mut buffer = [0; 4];
                let bytes = character.encode_utf8(&mut buffer).bytes();
                escaped.extend(bytes.map(|byte| format!("%{byte:02X}")));
            }
        }
    }
    escaped
}

fn computed(compute_type: &HeaderValue, characters: usize) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(COMPUTE_TYPE, compute_type.clone());
    insert(&mut headers, COMPUTE_CHARACTERS, characters);
    headers
}

/// Says that the connection of HTTP/1 ends with this answer.
pub fn close_after<B>(response: &mut Response<B>) {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: impl Display) {
    if let Ok(value) = HeaderValue::try_from(value.to_string()) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(features: &[String]) -> String {
        let mut headers = HeaderMap::new();
        not_enforced(&mut headers, features);
        let value = headers.get(GRAMMAR_NOT_ENFORCED);
        value.unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn what_is_not_enforced_fits_a_header() {
        let two = ["`not` at /a".to_owned(), "`format: x` at /".to_owned()];
        assert_eq!(named(&two), "`not` at /a, `format: x` at /");
        let many = vec!["`not` at /properties/name".to_owned(); 100];
        let listed = named(&many);
        assert!(listed.len() < 2_100, "{}", listed.len());
        let shown = listed.matches("`not`").count();
        assert!(listed.ends_with(&format!(", and {} more", 100 - shown)));
        let long = vec![format!("`not` at /{}", "k".repeat(10_000)); 100];
        let listed = named(&long);
        assert!(listed.len() < 2_100, "{}", listed.len());
        assert!(listed.starts_with("`not` at /kkk") && listed.contains("kkk..., `not` at /kkk"));
    }

    #[test]
    fn names_of_any_characters_are_listed() {
        let strange = ["`not` at /a\n\u{0}é%".to_owned()];
        assert_eq!(named(&strange), "`not` at /a%0A%00%C3%A9%25");
    }
}
