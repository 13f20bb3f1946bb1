//! The OpenAI routes over a mock shard.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

#[path = "../common/mod.rs"]
mod common;

mod caching;
mod chat;
mod completions;
mod models;
mod refused;
mod sampling;
mod stream;
mod structured;
mod tools;

use std::sync::Arc;

use common::{BYTES, Server, header};
use serde_json::{Value, json};
use text_generation_http::server::ServerLimits;
use text_generation_mock_shard::MockConfig;

const EOS: u32 = 2;
/// Roles and contents one after the other. An answer of the mock alphabet ends after a `!`.
const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}";

/// A server whose model has this chat template.
async fn server_with(template: &str, model: MockConfig, flags: &[&str]) -> Server {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let config = json!({"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"});
    std::fs::write(file.path(), config.to_string()).expect("written");
    let path = file.path().display().to_string();
    let flags: Vec<&str> = ["--tokenizer-config-path", &path]
        .into_iter()
        .chain(flags.iter().copied())
        .collect();
    Server::over(model, &flags, ServerLimits::default()).await
}

/// A server with the plain template that says the alphabet.
async fn server() -> Server {
    server_with(PLAIN, common::alphabet(), &[]).await
}

/// A model that says `text` and ends.
fn saying(text: &'static str) -> MockConfig {
    MockConfig {
        tokens: Arc::new(move |row| byte(text.as_bytes(), row.generated)),
        ..MockConfig::default()
    }
}

/// A model that repeats its prompt and ends.
fn repeating() -> MockConfig {
    MockConfig {
        tokens: Arc::new(|row| {
            let id = row.input_ids.get(row.generated as usize);
            id.copied().unwrap_or(EOS)
        }),
        ..MockConfig::default()
    }
}

fn byte(text: &[u8], index: u32) -> u32 {
    text.get(index as usize)
        .map_or(EOS, |&byte| BYTES + u32::from(byte))
}

/// `keys` beside one message of the user.
fn chat(content: &str, keys: Value) -> Value {
    let messages = json!([{"role": "user", "content": content}]);
    with(json!({ "messages": messages }), keys)
}

/// `keys` beside a prompt.
fn completion(prompt: impl Into<Value>, keys: Value) -> Value {
    with(json!({ "prompt": prompt.into() }), keys)
}

fn with(mut body: Value, keys: Value) -> Value {
    let keys = keys.as_object().cloned().expect("an object");
    body.as_object_mut().expect("an object").extend(keys);
    body
}

async fn ask_chat(server: &Server, body: &Value) -> Value {
    ask(server, "/v1/chat/completions", body).await
}

async fn ask_completion(server: &Server, body: &Value) -> Value {
    ask(server, "/v1/completions", body).await
}

async fn ask(server: &Server, path: &str, body: &Value) -> Value {
    let (status, answer) = server.ask(path, body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// What the mock answered in each choice of a chat.
fn contents(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().expect("choices");
    let content = |choice: &'_ Value| choice["message"]["content"].as_str().map(str::to_owned);
    assert!(choices.iter().all(|choice| content(choice).is_some()));
    choices
        .iter()
        .filter_map(|choice| choice["message"]["content"].as_str())
        .collect()
}

/// The events of a stream, without the `[DONE]` that must end it.
async fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let body = with(body.clone(), json!({"stream": true}));
    let response = server.post_json(path, &body).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    let text = response.text().await.expect("a body");
    let text = text
        .strip_suffix("data: [DONE]\n\n")
        .expect("a stream that ends with [DONE]");
    let event = |event: &str| {
        let json = event.strip_prefix("data: ").expect("an event");
        serde_json::from_str(json).expect("JSON")
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// JSON with what differs from run to run replaced.
fn redacted(value: &Value) -> String {
    let mut value = value.clone();
    let id = value["id"].as_str().expect("an id").to_owned();
    assert!(
        value["created"]
            .as_u64()
            .is_some_and(|time| time > 1_700_000_000)
    );
    value["created"] = json!(0);
    value["id"] = id.split('-').next().into();
    value.to_string()
}
