//! A server that is asked what becomes of a field.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use text_generation_mock_shard::MockConfig;

use crate::common::{BYTES, EOS, Server, adapters, lora_adapters, with};
use crate::rows::Row;

/// It reads every variable that a field of some API gives.
const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
    {% for d in documents or [] %}[{{ d.text }}]{% endfor %}{{ reasoning_effort }}\
    {% if enable_thinking %}thinking{% endif %}{% if add_generation_prompt %}<answer>{% endif %}";

/// Fields whose effect is not in one answer of a mock: other tests see it.
const UNSEEN: [&str; 9] = [
    "priority",
    "cache_salt",
    // It changes how fast an answer comes.
    "prediction",
    // It changes how long a search goes on.
    "early_stopping",
    // The prompt ends with a whole token.
    "token_healing",
    "parallel_tool_calls",
    "separate_reasoning",
    "include_reasoning",
    // The tokenizer of the mock adds none.
    "add_special_tokens",
];

/// The route of classifiers.
const CLASSIFY: &str = "/v1/classify";

/// What every request of a route has.
fn base(route: &str) -> Value {
    let messages = json!([{"role": "user", "content": "Hi, you"}]);
    match route {
        "/v1/chat/completions" => json!({"messages": messages, "max_tokens": 8, "seed": 1}),
        "/v1/completions" => json!({"prompt": "Hi, you", "max_tokens": 8, "seed": 1}),
        CLASSIFY => json!({"input": "Hi, you"}),
        "/v1/score" => json!({"prompt": "Hi, you", "choices": ["a", "bc"]}),
        "/v1/responses" => json!({"input": "Hi, you", "max_output_tokens": 8, "seed": 1}),
        "/v1/messages" => json!({"messages": messages, "max_tokens": 8}),
        "/generate" => json!({"max_new_tokens": 8}),
        "/" => json!({"inputs": "Hi, you", "parameters": {"max_new_tokens": 8}}),
        other => panic!("{other} has no body"),
    }
}

/// Names of the limit, of which every request has one.
const LIMITS: [&str; 4] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
];

/// What a field needs beside it.
fn companions(route: &str, field: &str) -> Value {
    match (route, field) {
        ("/v1/chat/completions", "top_logprobs") => json!({"logprobs": true}),
        ("/v1/chat/completions", "return_tokens_as_token_ids") => json!({"logprobs": true}),
        ("/v1/completions", "return_tokens_as_token_ids") => json!({"logprobs": 1}),
        ("/v1/messages", "tool_choice") => json!({"tools": [{"name": "f"}]}),
        ("/v1/responses", "tool_choice") => json!({"tools": [{"type": "function", "name": "f"}]}),
        (_, "tool_choice" | "tool_prompt") => {
            json!({"tools": [{"type": "function", "function": {"name": "f"}}]})
        }
        (CLASSIFY, "add_generation_prompt" | "chat_template_kwargs") => {
            json!({"messages": [{"role": "user", "content": "Hi, you"}]})
        }
        (_, "stream_options") => json!({"stream": true}),
        ("/generate", "include_stop_str_in_output") => json!({"stop": ["c"]}),
        ("/v1/messages", "include_stop_str_in_output") => json!({"stop_sequences": ["c"]}),
        (_, "include_stop_str_in_output") => json!({"stop": "c"}),
        ("/generate", "beam_width") => json!({"details": true}),
        ("/generate", "length_penalty" | "early_stopping") => {
            json!({"beam_width": 2, "details": true})
        }
        // A search takes no seed.
        (_, "use_beam_search") => json!({"n": 2, "seed": null}),
        (_, "length_penalty" | "early_stopping") => {
            json!({"use_beam_search": true, "n": 2, "seed": null})
        }
        ("/generate", "best_of" | "seed") => json!({"do_sample": true}),
        ("/generate", "top_n_tokens") => json!({"details": true}),
        _ => json!({}),
    }
}

/// What the shards were asked for: prompts and parameters.
type Asked = Arc<Mutex<Vec<String>>>;

/// It has an adapter. Says a letter after the other, among them a special token, and ends after six tokens.
fn model(asked: &Asked) -> MockConfig {
    let asked = asked.clone();
    MockConfig {
        adapters: adapters(&["other"]),
        tokens: Arc::new(move |row| {
            if row.generated == 0 {
                let mut parameters = row.parameters.clone();
                // Random where the request says nothing.
                parameters.seed = parameters.seed.min(9);
                let text = format!("{:?} {parameters:?} {}", row.input_ids, row.adapter);
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

pub struct Probe {
    server: Server,
    /// The same of a model that classifies.
    classifier: Server,
    /// The same with a prefix cache, for searches.
    searching: Server,
    searched: AtomicU32,
    asked: Asked,
}

impl Probe {
    pub async fn start() -> Self {
        let asked = Asked::default();
        let server = async |model, prefix_caching| {
            let flags = [
                "--max-best-of=4",
                prefix_caching,
                &lora_adapters(&["other"]),
            ];
            Server::with_template(TEMPLATE, model, &flags).await
        };
        // Without a cache no answer depends on those before it.
        let alone = "--prefix-caching=false";
        let classes = MockConfig {
            classes: 2,
            ..model(&asked)
        };
        Self {
            server: server(model(&asked), alone).await,
            classifier: server(classes, alone).await,
            searching: server(model(&asked), "--prefix-caching=true").await,
            searched: AtomicU32::new(0),
            asked,
        }
    }

    /// What is untrue of the rows.
    pub async fn wrong(&self, rows: &[Row]) -> String {
        let mut wrong = Vec::new();
        for row in rows {
            wrong.extend(self.judge(row).await.err());
        }
        wrong.join("\n")
    }

    /// Status, answer, and what came of it to the shards.
    pub async fn send(&self, route: &str, keys: Value) -> (u16, Value, Vec<String>) {
        self.asked.lock().expect("no panic").clear();
        let mut base = base(route);
        if LIMITS.iter().any(|name| keys.get(name).is_some()) {
            let base = base.as_object_mut().expect("an object");
            base.retain(|name, _| !LIMITS.contains(&name.as_str()));
        }
        if route == CLASSIFY && keys.get("messages").is_some() {
            base = json!({});
        }
        let mut body = with(base, keys);
        let searches =
            body.get("beam_width").is_some() || body["use_beam_search"] == Value::Bool(true);
        if searches {
            let salt = self.searched.fetch_add(1, Ordering::Relaxed).to_string();
            body = with(body, json!({"cache_salt": salt}));
        }
        if route == "/generate" {
            body = json!({"inputs": "Hi, you", "parameters": body});
        }
        let server = match route {
            CLASSIFY => &self.classifier,
            _ if searches => &self.searching,
            _ => &self.server,
        };
        let response = server.post_json(route, &body).await;
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

    /// As [`Probe::send`], with what the field needs beside it.
    pub async fn send_field(&self, row: &Row, value: Value) -> (u16, Value, Vec<String>) {
        let field = Map::from_iter([(row.field.clone(), value)]);
        let beside = companions(&row.route, &row.field);
        self.send(&row.route, with(beside, Value::Object(field)))
            .await
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
        let field_alone = Value::Object(Map::from_iter([(field.clone(), example.clone())]));
        if becomes == "refused" {
            let (status, answer, _) = self.send(route, field_alone).await;
            let named = answer.to_string().to_lowercase().contains(field);
            return if (400..500).contains(&status) && named {
                Ok(())
            } else {
                Err(format!(
                    "`{field}` of {route} is not refused: {status} {answer}"
                ))
            };
        }
        let beside = companions(route, field);
        let without = self.send(route, beside.clone()).await;
        let (status, answer, asked) = self.send(route, with(beside, field_alone)).await;
        let same = (&answer, &asked) == (&without.1, &without.2);
        let right = match becomes.as_str() {
            "obeyed" => !same || UNSEEN.contains(&field.as_str()),
            "ignored" => same,
            _ => false,
        };
        if (without.0, status) == (200, 200) && right {
            return Ok(());
        }
        Err(format!(
            "`{field}` of {route} is not {becomes}: {status} {answer}, not as {}",
            without.1
        ))
    }
}
