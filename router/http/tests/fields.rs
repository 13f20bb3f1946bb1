//! `docs/fields.md` tells the truth: each of its rows is sent to the server.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use common::{BYTES, EOS, Server, with};
use serde_json::{Map, Value, json};
use text_generation_mock_shard::MockConfig;

/// It reads every variable that a field of some API gives.
const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
    {% for d in documents or [] %}[{{ d.text }}]{% endfor %}{{ reasoning_effort }}\
    {% if enable_thinking %}thinking{% endif %}{% if add_generation_prompt %}<answer>{% endif %}";

/// Fields whose effect is not in one answer of a mock: other tests see it.
const UNSEEN: [&str; 6] = [
    "priority",
    "cache_salt",
    "parallel_tool_calls",
    "separate_reasoning",
    "include_reasoning",
    // The tokenizer of the mock adds none.
    "add_special_tokens",
];

#[derive(Debug)]
struct Row {
    route: String,
    field: String,
    becomes: String,
    /// None where the table leads to another page.
    example: Option<Value>,
}

/// The rows of all tables, with one field each.
fn rows() -> Vec<Row> {
    let page = include_str!("../../../docs/fields.md");
    let (mut route, mut rows) = (String::new(), Vec::new());
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## `POST ") {
            route = heading.trim_end_matches('`').to_owned();
        }
        let Some(cells) = line.strip_prefix("| `") else {
            continue;
        };
        let mut cells = cells.split(" | ");
        let mut cell = || cells.next().unwrap_or_default().trim();
        let (fields, becomes, example) = (cell(), cell().to_owned(), cell());
        let example = example
            .strip_prefix('`')
            .and_then(|text| text.strip_suffix('`'));
        let example = example.map(|text| serde_json::from_str(text).expect(text));
        rows.extend(fields.split(',').map(|field| Row {
            route: route.clone(),
            field: field.trim().trim_matches('`').to_owned(),
            becomes: becomes.clone(),
            example: example.clone(),
        }));
    }
    rows
}

/// What every request of a route has.
fn base(route: &str) -> Value {
    let messages = json!([{"role": "user", "content": "Hi, you"}]);
    match route {
        "/v1/chat/completions" => json!({"messages": messages, "max_tokens": 8, "seed": 1}),
        "/v1/completions" => json!({"prompt": "Hi, you", "max_tokens": 8, "seed": 1}),
        "/v1/responses" => json!({"input": "Hi, you", "max_output_tokens": 8, "seed": 1}),
        "/v1/messages" => json!({"messages": messages, "max_tokens": 8}),
        "/generate" => json!({"max_new_tokens": 8}),
        other => panic!("{other} has no body"),
    }
}

/// What a field needs beside it.
fn companions(route: &str, field: &str) -> Value {
    match (route, field) {
        ("/v1/chat/completions", "max_completion_tokens") => json!({"max_tokens": null}),
        ("/v1/chat/completions", "top_logprobs") => json!({"logprobs": true}),
        ("/v1/chat/completions", "return_tokens_as_token_ids") => json!({"logprobs": true}),
        ("/v1/completions", "return_tokens_as_token_ids") => json!({"logprobs": 1}),
        ("/v1/messages", "tool_choice") => json!({"tools": [{"name": "f"}]}),
        ("/v1/responses", "tool_choice") => json!({"tools": [{"type": "function", "name": "f"}]}),
        (_, "tool_choice" | "tool_prompt") => {
            json!({"tools": [{"type": "function", "function": {"name": "f"}}]})
        }
        (_, "stream_options") => json!({"stream": true}),
        ("/generate", "include_stop_str_in_output") => json!({"stop": ["c"]}),
        (_, "include_stop_str_in_output") => json!({"stop": "c"}),
        ("/generate", "best_of" | "seed") => json!({"do_sample": true}),
        ("/generate", "top_n_tokens") => json!({"details": true}),
        _ => json!({}),
    }
}

/// What the shards were asked for: prompts and parameters.
type Asked = Arc<Mutex<Vec<String>>>;

/// Says a letter after the other, among them a special token, and ends after six tokens.
fn model(asked: &Asked) -> MockConfig {
    let asked = asked.clone();
    MockConfig {
        tokens: Arc::new(move |row| {
            if row.generated == 0 {
                let mut parameters = row.parameters.clone();
                // Random where the request says nothing.
                parameters.seed = parameters.seed.min(9);
                let text = format!("{:?} {parameters:?}", row.input_ids);
                asked.lock().expect("no panic").push(text);
            }
            match row.generated {
                3 => 1,
                6 => EOS,
                n => BYTES + u32::from(b'a') + n % 26,
            }
        }),
        ..MockConfig::default()
    }
}

/// Replaces what differs from answer to answer.
fn redact(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(redact),
        Value::Object(map) => {
            for (key, value) in map {
                match key.as_str() {
                    "id" | "item_id" | "call_id" | "created" | "created_at" | "completed_at" => {
                        *value = Value::Null;
                    }
                    _ => redact(value),
                }
            }
        }
        _ => {}
    }
}

struct Probe {
    server: Server,
    asked: Asked,
}

impl Probe {
    /// Status, answer, and what came of it to the shards.
    async fn send(&self, route: &str, keys: Value) -> (u16, Value, Vec<String>) {
        self.asked.lock().expect("no panic").clear();
        let mut body = with(base(route), keys);
        if route == "/generate" {
            body = json!({"inputs": "Hi, you", "parameters": body});
        }
        let response = self.server.post_json(route, &body).await;
        let status = response.status().as_u16();
        let text = response.text().await.expect("a body");
        let mut answer = match serde_json::from_str(&text) {
            Ok(answer) => answer,
            Err(_) => text
                .lines()
                .map(|line| line.strip_prefix("data: ").unwrap_or(line))
                .map(|line| serde_json::from_str(line).unwrap_or_else(|_| Value::from(line)))
                .collect(),
        };
        redact(&mut answer);
        let mut asked = std::mem::take(&mut *self.asked.lock().expect("no panic"));
        asked.sort();
        (status, answer, asked)
    }

    /// What is untrue of a row.
    async fn judge(&self, row: &Row) -> Result<(), String> {
        let Row {
            route,
            field,
            becomes,
            ..
        } = row;
        let Some(example) = &row.example else {
            return Ok(());
        };
        let beside = companions(route, field);
        let field_alone = Value::Object(Map::from_iter([(field.clone(), example.clone())]));
        let without = self.send(route, beside.clone()).await;
        let (status, answer, asked) = self.send(route, with(beside, field_alone)).await;
        let same = (&answer, &asked) == (&without.1, &without.2);
        let right = match becomes.as_str() {
            "obeyed" => status == 200 && (!same || UNSEEN.contains(&field.as_str())),
            "ignored" => status == 200 && same,
            "refused" => {
                (400..500).contains(&status) && answer.to_string().to_lowercase().contains(field)
            }
            _ => false,
        };
        if without.0 == 200 && right {
            return Ok(());
        }
        Err(format!(
            "`{field}` of {route} is not {becomes}: {status} {answer}, not as {}",
            without.1
        ))
    }
}

#[tokio::test]
async fn every_row_of_the_tables_is_true() {
    let asked = Asked::default();
    let server = Server::with_template(TEMPLATE, model(&asked), &["--max-best-of=4"]).await;
    let probe = Probe { server, asked };
    let rows = rows();
    assert!(rows.len() > 200, "{}", rows.len());
    let mut wrong = Vec::new();
    for row in &rows {
        wrong.extend(probe.judge(row).await.err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The fields that the server's own description has.
fn described(schema: &str) -> BTreeSet<String> {
    let document = serde_json::to_value(text_generation_http::routes::openapi()).expect("JSON");
    let properties = &document["components"]["schemas"][schema]["properties"];
    let properties = properties.as_object().expect(schema);
    properties.keys().cloned().collect()
}

#[test]
fn the_tables_have_every_field_that_is_described() {
    let rows = rows();
    for (route, schema) in [
        ("/v1/chat/completions", "ChatBody"),
        ("/v1/completions", "CompletionBody"),
        ("/v1/responses", "ResponsesBody"),
        ("/v1/messages", "MessagesBody"),
        ("/generate", "GenerateParameters"),
    ] {
        let listed = rows.iter().filter(|row| row.route == route);
        let listed: Vec<&String> = listed.map(|row| &row.field).collect();
        let unique: BTreeSet<String> = listed.iter().copied().cloned().collect();
        assert_eq!(listed.len(), unique.len(), "{route} has a field twice");
        let missing: Vec<_> = described(schema).difference(&unique).cloned().collect();
        assert!(missing.is_empty(), "{route} lacks {missing:?}");
    }
}
