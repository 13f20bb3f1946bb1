//! The APIs of agents, `/v1/responses` and `/v1/messages`, over a mock shard.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

#[path = "../common/mod.rs"]
mod common;

mod messages;
mod replay;
mod responses;
mod terminal;
mod turns;

use common::{Server, header, saying, with};
use serde_json::{Value, json};
use text_generation_mock_shard::MockConfig;

/// Writes tools, reasoning and calls as models of the Hermes format are told them.
const HERMES: &str = concat!(
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}",
    "{% for m in messages %}<{{ m.role }}>",
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}",
    "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", ",
    "\"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}",
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
);
/// Thinks, says something, and calls a function.
const TURN: &str = concat!(
    "<think>hm</think>Let me see.<tool_call>\n",
    "{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n</tool_call>"
);
/// The mock model has no more room in its context.
const SHORT: &[&str] = &["--max-total-tokens", "64", "--max-input-tokens", "63"];

/// A server whose model answers with `says`, whatever it is asked.
async fn hermes(says: &'static str, flags: &[&str]) -> Server {
    serving(HERMES, saying(says), flags).await
}

/// A server whose model repeats its prompt.
async fn repeating(template: &str) -> Server {
    let model = MockConfig {
        max_total_tokens: 4_096,
        ..common::repeating()
    };
    serving(template, model, &[]).await
}

async fn serving(template: &str, model: MockConfig, flags: &[&str]) -> Server {
    let flags = [&["--tool-call-parser", "hermes"], flags].concat();
    Server::with_template(template, model, &flags).await
}

/// The events of a stream; each has the name that its data has as `type`.
async fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let body = with(body.clone(), json!({"stream": true}));
    let response = server.post_json(path, &body).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    let text = response.text().await.expect("a body");
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    };
    text.split_terminator("\n\n").map(event).collect()
}

fn types(events: &[Value]) -> Vec<&str> {
    let types = events.iter().map(|event| event["type"].as_str());
    types.map(Option::unwrap_or_default).collect()
}
