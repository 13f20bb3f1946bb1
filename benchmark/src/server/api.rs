//! What the known HTTP APIs want to read and what their events mean.

use std::borrow::Cow;

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::Failure;

/// Which API a server is driven through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// `POST /generate_stream` of TGI
    Tgi,
    /// `POST /v1/completions`
    #[value(alias = "completions")]
    Openai,
    /// `POST /v1/chat/completions`
    #[value(alias = "chat")]
    OpenaiChat,
}

/// A prompt in the form that goes over the wire.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    /// `messages` of a chat, given whole.
    Messages(Value),
}

/// One finished turn of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    pub user: String,
    pub assistant: String,
}

/// What all requests of a benchmark share.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    pub model: String,
    /// 0: greedy.
    pub temperature: f32,
    pub ignore_eos: bool,
}

/// One event, in terms that all APIs share.
#[derive(Debug, PartialEq)]
pub struct Event<'a> {
    /// The event brought at least one token.
    pub token: bool,
    pub text: Cow<'a, str>,
    /// The server says that the answer is complete.
    pub finished: bool,
    pub prompt_tokens: Option<u32>,
    pub output_tokens: Option<u32>,
}

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Self::Tgi => "/generate_stream",
            Self::Openai => "/v1/completions",
            Self::OpenaiChat => "/v1/chat/completions",
        }
    }

    /// Token ids as a prompt are part of the completions API only.
    pub fn takes_ids(self) -> bool {
        self == Self::Openai
    }

    /// The body of a streaming request for `output_tokens` tokens that follow `history` and `prompt`.
    pub fn body(
        self,
        sampling: &Sampling,
        history: &[Exchange],
        prompt: &Prompt,
        output_tokens: u32,
    ) -> Value {
        let mut body = match self {
            Self::Tgi => return tgi_body(sampling, history, prompt, output_tokens),
            Self::Openai => json!({ "prompt": plain(history, prompt) }),
            Self::OpenaiChat => json!({ "messages": messages(history, prompt) }),
        };
        body["model"] = json!(sampling.model);
        body["max_tokens"] = json!(output_tokens);
        body["temperature"] = json!(sampling.temperature);
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
        if sampling.ignore_eos {
            // Known to vLLM, SGLang and this server; others pass over it.
            body["ignore_eos"] = json!(true);
        }
        body
    }

    /// What one event says, or the error that it carries.
    pub fn event(self, data: &[u8]) -> Result<Event<'_>, Failure> {
        match self {
            Self::Tgi => tgi_event(data),
            Self::Openai | Self::OpenaiChat => openai_event(data),
        }
    }
}

fn tgi_body(
    sampling: &Sampling,
    history: &[Exchange],
    prompt: &Prompt,
    output_tokens: u32,
) -> Value {
    let mut parameters = json!({ "max_new_tokens": output_tokens, "details": true });
    if sampling.temperature > 0.0 {
        parameters["do_sample"] = json!(true);
        parameters["temperature"] = json!(sampling.temperature);
    }
    if sampling.ignore_eos {
        parameters["ignore_eos_token"] = json!(true);
    }
    json!({ "inputs": plain(history, prompt), "parameters": parameters })
}

/// Turns as one text, for APIs without messages.
fn plain(history: &[Exchange], prompt: &Prompt) -> Value {
    let last = match prompt {
        Prompt::Ids(ids) => return json!(ids),
        Prompt::Messages(messages) => return messages.clone(),
        Prompt::Text(text) => text,
    };
    let mut text = String::new();
    for turn in history {
        text.push_str(&turn.user);
        text.push_str(&turn.assistant);
    }
    text.push_str(last);
    json!(text)
}

fn messages(history: &[Exchange], prompt: &Prompt) -> Value {
    let last = match prompt {
        Prompt::Messages(messages) => return messages.clone(),
        Prompt::Ids(ids) => json!(ids),
        Prompt::Text(text) => json!(text),
    };
    let mut messages = Vec::with_capacity(2 * history.len() + 1);
    for turn in history {
        messages.push(json!({ "role": "user", "content": turn.user }));
        messages.push(json!({ "role": "assistant", "content": turn.assistant }));
    }
    messages.push(json!({ "role": "user", "content": last }));
    Value::Array(messages)
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

fn tgi_event(data: &[u8]) -> Result<Event<'_>, Failure> {
    let event: TgiEvent<'_> = parse(data)?;
    if let Some(message) = event.error {
        let kind = event.error_type.as_deref().unwrap_or("stream_error");
        return Err(Failure::new(kind, message));
    }
    let details = event.details.as_ref();
    Ok(Event {
        token: event.token.is_some(),
        text: event.token.map_or(Cow::Borrowed(""), |token| token.text),
        finished: event.generated_text.is_some() || details.is_some(),
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

fn openai_event(data: &[u8]) -> Result<Event<'_>, Failure> {
    let mut event = Event {
        token: false,
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
