//! The known HTTP APIs: the bodies that they read, and the meaning of their events.

use std::sync::Arc;

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use super::event::{self, Event};
use super::failure::Failure;

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

/// An image as requests have it; those that send it again share it.
pub type DataUrl = Arc<str>;

/// A prompt in the form that goes over the wire.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    Text(String),
    /// Images, and the text behind them.
    Seen {
        text: String,
        images: Vec<DataUrl>,
    },
    Ids(Vec<u32>),
    /// `messages` of a chat, given whole.
    Messages(Value),
}

impl Prompt {
    /// Its text, if it is one.
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Seen { text, .. } => text,
            Self::Ids(_) | Self::Messages(_) => "",
        }
    }

    /// How many images it has.
    pub fn images(&self) -> usize {
        match self {
            Self::Text(_) | Self::Ids(_) => 0,
            Self::Seen { images, .. } => images.len(),
            Self::Messages(messages) => {
                let messages = messages.as_array().into_iter().flatten();
                let parts = messages.filter_map(|message| message["content"].as_array());
                parts
                    .flatten()
                    .filter(|part| part["type"] == "image_url")
                    .count()
            }
        }
    }
}

/// One finished turn of a chat.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    pub user: Prompt,
    pub assistant: String,
}

/// What all requests of a benchmark share.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    pub model: String,
    /// 0: greedy.
    pub temperature: f32,
    pub ignore_eos: bool,
    /// More keys of every body.
    pub extra: Map<String, Value>,
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
            Self::Tgi => tgi_body(sampling, history, prompt, output_tokens),
            Self::Openai => openai_body(sampling, "prompt", plain(history, prompt), output_tokens),
            Self::OpenaiChat => openai_body(
                sampling,
                "messages",
                messages(history, prompt),
                output_tokens,
            ),
        };
        for (key, value) in &sampling.extra {
            body[key] = value.clone();
        }
        body
    }

    /// What one event says, or the error that it carries.
    pub fn event(self, data: &[u8]) -> Result<Event<'_>, Failure> {
        match self {
            Self::Tgi => event::tgi(data),
            Self::Openai | Self::OpenaiChat => event::openai(data),
        }
    }
}

fn openai_body(sampling: &Sampling, key: &str, prompt: Value, output_tokens: u32) -> Value {
    let mut body = json!({
        key: prompt,
        "model": sampling.model,
        "max_tokens": output_tokens,
        "temperature": sampling.temperature,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    if sampling.ignore_eos {
        // Known to vLLM, SGLang and this server; others pass over it.
        body["ignore_eos"] = json!(true);
    }
    body
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
    let mut whole = String::new();
    for turn in history {
        whole.push_str(turn.user.text());
        whole.push_str(&turn.assistant);
    }
    match prompt {
        Prompt::Ids(ids) => json!(ids),
        Prompt::Messages(messages) => messages.clone(),
        Prompt::Text(text) | Prompt::Seen { text, .. } => json!(whole + text),
    }
}

fn messages(history: &[Exchange], prompt: &Prompt) -> Value {
    if let Prompt::Messages(messages) = prompt {
        return messages.clone();
    }
    let mut messages = Vec::with_capacity(2 * history.len() + 1);
    for turn in history {
        messages.push(json!({ "role": "user", "content": content(&turn.user) }));
        messages.push(json!({ "role": "assistant", "content": turn.assistant }));
    }
    messages.push(json!({ "role": "user", "content": content(prompt) }));
    Value::Array(messages)
}

/// What a message of a chat says.
fn content(prompt: &Prompt) -> Value {
    match prompt {
        Prompt::Text(text) => json!(text),
        Prompt::Ids(ids) => json!(ids),
        Prompt::Messages(messages) => messages.clone(),
        Prompt::Seen { text, images } => images
            .iter()
            .map(|url| json!({ "type": "image_url", "image_url": { "url": &**url } }))
            .chain([json!({ "type": "text", "text": text })])
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling() -> Sampling {
        Sampling {
            model: "m".to_owned(),
            temperature: 0.0,
            ignore_eos: true,
            extra: Map::new(),
        }
    }

    #[test]
    fn more_keys_reach_every_body_and_win() {
        let extra = json!({"response_format": {"type": "json_object"}, "temperature": 0.5});
        let sampling = Sampling {
            extra: extra.as_object().cloned().unwrap_or_default(),
            ..sampling()
        };
        for api in [Api::Tgi, Api::Openai, Api::OpenaiChat] {
            let body = api.body(&sampling, &[], &Prompt::Text("a".to_owned()), 4);
            assert_eq!(body["response_format"], extra["response_format"]);
            assert_eq!(body["temperature"], 0.5);
        }
    }

    #[test]
    fn a_conversation_is_sent_in_the_terms_of_each_api() {
        let history = [Exchange {
            user: Prompt::Text(" a".to_owned()),
            assistant: " b".to_owned(),
        }];
        let prompt = Prompt::Text(" c".to_owned());
        let body = |api: Api| api.body(&sampling(), &history, &prompt, 4);
        assert_eq!(body(Api::Tgi)["inputs"], " a b c");
        assert_eq!(body(Api::Openai)["prompt"], " a b c");
        let roles: Vec<String> = body(Api::OpenaiChat)["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| format!("{}{}", message["role"], message["content"]))
            .collect();
        assert_eq!(
            roles,
            [r#""user"" a""#, r#""assistant"" b""#, r#""user"" c""#]
        );
    }

    #[test]
    fn images_stand_before_the_text_and_stay_in_the_conversation() {
        let seen = |url: &str, text: &str| Prompt::Seen {
            text: text.to_owned(),
            images: vec![url.into()],
        };
        let history = [Exchange {
            user: seen("data:1", "a"),
            assistant: "b".to_owned(),
        }];
        let prompt = seen("data:2", "c");
        let body = Api::OpenaiChat.body(&sampling(), &history, &prompt, 4);
        let parts = |url, text| {
            json!([
                { "type": "image_url", "image_url": { "url": url } },
                { "type": "text", "text": text },
            ])
        };
        assert_eq!(body["messages"][0]["content"], parts("data:1", "a"));
        assert_eq!(body["messages"][2]["content"], parts("data:2", "c"));
        assert_eq!(Prompt::Messages(body["messages"].clone()).images(), 2);
        assert_eq!(prompt.images(), 1);
    }

    #[test]
    fn greedy_tgi_requests_do_not_sample() {
        let prompt = Prompt::Text("a".to_owned());
        let body = Api::Tgi.body(&sampling(), &[], &prompt, 4);
        let expected = json!({ "max_new_tokens": 4, "details": true, "ignore_eos_token": true });
        assert_eq!(body["parameters"], expected);
    }
}
