//! The APIs of agents, `/v1/responses` and `/v1/messages`, over a mock shard.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

#[path = "../common/mod.rs"]
mod common;

mod messages;
mod responses;

use std::sync::Arc;

use common::{BYTES, Server, header};
use serde_json::{Value, json};
use text_generation_http::server::ServerLimits;
use text_generation_mock_shard::MockConfig;

const EOS: u32 = 2;
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
    let model = MockConfig {
        tokens: Arc::new(move |row| {
            let byte = says.as_bytes().get(row.generated as usize);
            byte.map_or(EOS, |&byte| BYTES + u32::from(byte))
        }),
        ..MockConfig::default()
    };
    serving(HERMES, model, flags).await
}

/// A server whose model repeats its prompt.
async fn repeating(template: &str) -> Server {
    let model = MockConfig {
        tokens: Arc::new(|row| {
            let id = row.input_ids.get(row.generated as usize);
            id.copied().unwrap_or(EOS)
        }),
        max_total_tokens: 4_096,
        ..MockConfig::default()
    };
    serving(template, model, &[]).await
}

async fn serving(template: &str, model: MockConfig, flags: &[&str]) -> Server {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let config = json!({"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"});
    std::fs::write(file.path(), config.to_string()).expect("written");
    let path = file.path().display().to_string();
    let named = [
        "--tokenizer-config-path",
        &path,
        "--tool-call-parser",
        "hermes",
    ];
    let flags: Vec<&str> = named.into_iter().chain(flags.iter().copied()).collect();
    Server::over(model, &flags, ServerLimits::default()).await
}

fn with(mut body: Value, keys: Value) -> Value {
    let keys = keys.as_object().cloned().expect("an object");
    body.as_object_mut().expect("an object").extend(keys);
    body
}

async fn ask(server: &Server, path: &str, body: &Value) -> Value {
    let (status, answer) = server.ask(path, body).await;
    assert_eq!(status, 200, "{answer}");
    answer
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
