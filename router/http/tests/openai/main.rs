//! The OpenAI routes over a mock shard.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

#[path = "../common/mod.rs"]
mod common;

mod beams;
mod caching;
mod chat;
mod classify;
mod completions;
mod healing;
mod models;
mod refused;
mod sampling;
mod score;
mod stream;
mod structured;
mod tokens;
mod tools;

use std::sync::Arc;

use common::{BYTES, EOS, Server, header, repeating, saying, with};
use serde_json::{Value, json};
use text_generation_http::connection::ServerLimits;
use text_generation_mock_shard::MockConfig;

/// Roles and contents one after the other. An answer of the mock alphabet ends after a `!`.
const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}";

/// A server with the plain template that says the alphabet.
async fn server() -> Server {
    Server::with_template(PLAIN, common::alphabet(), &[]).await
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

async fn ask_chat(server: &Server, body: &Value) -> Value {
    server.good("/v1/chat/completions", body).await
}

async fn ask_completion(server: &Server, body: &Value) -> Value {
    server.good("/v1/completions", body).await
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
