//! Events of the known APIs, and their meaning.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::failure::Failure;

/// One event, in terms that all APIs share.
#[derive(Debug, PartialEq)]
pub struct Event<'a> {
    /// The event brought at least one token.
    pub token: bool,
    pub text: Cow<'a, str>,
    /// The end of the answer; its last token may have had no text and so no event of its own.
    pub last: bool,
    /// The server says that the answer is complete.
    pub finished: bool,
    pub prompt_tokens: Option<u32>,
    pub output_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct TgiEvent<'a> {
    #[serde(borrow)]
    token: Option<TgiToken<'a>>,
    #[serde(borrow)]
    generated_text: Option<Cow<'a, str>>,
    details: Option<TgiDetails>,
    #[serde(borrow)]
    error: Option<Cow<'a, str>>,
    #[serde(borrow)]
    error_type: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct TgiToken<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

#[derive(Deserialize)]
struct TgiDetails {
    generated_tokens: Option<u32>,
    input_length: Option<u32>,
}

pub fn tgi(data: &[u8]) -> Result<Event<'_>, Failure> {
    let event: TgiEvent<'_> = parse(data)?;
    if let Some(message) = event.error {
        let kind = event.error_type.as_deref().unwrap_or("stream_error");
        return Err(Failure::new(kind, message));
    }
    let details = event.details.as_ref();
    let last = event.generated_text.is_some() || details.is_some();
    Ok(Event {
        token: event.token.is_some(),
        last,
        text: event.token.map_or(Cow::Borrowed(""), |token| token.text),
        finished: last,
        prompt_tokens: details.and_then(|details| details.input_length),
        output_tokens: details.and_then(|details| details.generated_tokens),
    })
}

#[derive(Deserialize)]
struct OpenAiEvent<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow)]
    reasoning_content: Option<Cow<'a, str>>,
    tool_calls: Option<Value>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

pub fn openai(data: &[u8]) -> Result<Event<'_>, Failure> {
    let mut event = Event {
        token: false,
        last: false,
        text: Cow::Borrowed(""),
        finished: data == b"[DONE]",
        prompt_tokens: None,
        output_tokens: None,
    };
    if event.finished {
        return Ok(event);
    }
    let parsed: OpenAiEvent<'_> = parse(data)?;
    if let Some(error) = parsed.error {
        let kind = error["type"].as_str().unwrap_or("stream_error");
        let message = error["message"].as_str().map(str::to_owned);
        return Err(Failure::new(
            kind,
            message.unwrap_or_else(|| error.to_string()),
        ));
    }
    if let Some(usage) = parsed.usage {
        event.prompt_tokens = usage.prompt_tokens;
        event.output_tokens = usage.completion_tokens;
    }
    if let Some(choice) = parsed.choices.into_iter().next() {
        let last = choice
            .finish_reason
            .is_some_and(|reason| !reason.is_empty());
        let delta = choice.delta;
        // The opening chunk of a chat has a role and no token. A token may have no text: half of a character.
        let opening = delta.as_ref().is_some_and(|delta| delta.role.is_some());
        let other = delta.as_ref().is_some_and(|delta| {
            delta.tool_calls.is_some()
                || delta
                    .reasoning_content
                    .as_ref()
                    .is_some_and(|text| !text.is_empty())
        });
        event.text = choice
            .text
            .or(delta.and_then(|delta| delta.content))
            .unwrap_or_default();
        event.token = !event.text.is_empty() || other || !(last || opening);
        event.last = last;
        event.finished = last;
    }
    Ok(event)
}

fn parse<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(data).map_err(|error| {
        let start = String::from_utf8_lossy(&data[..data.len().min(120)]).into_owned();
        Failure::new("bad_event", format!("{error} in: {start}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(data: &str) -> (bool, bool) {
        let event = openai(data.as_bytes()).unwrap();
        (event.token, event.finished)
    }

    #[test]
    fn events_with_tokens_are_told_from_the_others() {
        // The opening of a chat, a token, half a character, an end without text, an end with text, usage.
        for (data, expected) in [
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
                (false, false),
            ),
            (
                r#"{"choices":[{"delta":{"role":"assistant","content":"a"},"finish_reason":null}]}"#,
                (true, false),
            ),
            (
                r#"{"choices":[{"delta":{"content":""},"finish_reason":null}]}"#,
                (true, false),
            ),
            (
                r#"{"choices":[{"delta":{"reasoning_content":"a"}}]}"#,
                (true, false),
            ),
            (
                r#"{"choices":[{"text":"","finish_reason":"stop"}]}"#,
                (false, true),
            ),
            (
                r#"{"choices":[{"text":"\u00e9","finish_reason":"length"}]}"#,
                (true, true),
            ),
            (
                r#"{"choices":[{"text":"a","finish_reason":""}]}"#,
                (true, false),
            ),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
                (false, false),
            ),
            ("[DONE]", (false, true)),
        ] {
            assert_eq!(seen(data), expected, "{data}");
        }
    }

    #[test]
    fn usage_is_read_from_both_apis() {
        let tgi = br#"{"index":2,"token":{"id":1,"text":"a"},"generated_text":"a","details":{"finish_reason":"length","generated_tokens":2,"seed":null,"input_length":7}}"#;
        let event = super::tgi(tgi).unwrap();
        assert_eq!(
            (event.prompt_tokens, event.output_tokens),
            (Some(7), Some(2))
        );
        assert!(event.token && event.finished);
        let openai = br#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        let event = super::openai(openai).unwrap();
        assert_eq!(
            (event.prompt_tokens, event.output_tokens),
            (Some(3), Some(2))
        );
    }

    #[test]
    fn errors_in_a_stream_keep_their_type() {
        let overloaded = br#"{"error":"Model is overloaded","error_type":"overloaded"}"#;
        let overloaded = tgi(overloaded).unwrap_err();
        assert_eq!(
            overloaded,
            Failure::new("overloaded", "Model is overloaded")
        );
        let tgi_chat = r#"{"error":{"message":"Model is overloaded","http_status_code":422}}"#;
        let kind = |data: &str| openai(data.as_bytes()).unwrap_err().kind;
        assert_eq!(kind(tgi_chat), "stream_error");
        assert_eq!(kind("<html>"), "bad_event");
    }
}
