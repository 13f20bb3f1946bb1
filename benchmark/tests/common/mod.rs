//! A server without a model that speaks both APIs over loopback, and the benchmark as a process.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "helpers of tests may panic as they do, and not every test uses all"
)]

use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use text_generation_benchmark::report::Report;

/// How the stub misbehaves.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Fault {
    #[default]
    None,
    /// From request `n` on, streams break off after their second token and nobody listens any more.
    DieAt(usize),
    /// Request `n` gets an error event after its first token.
    ErrorAt(usize),
    /// Every request is refused with 429.
    Overloaded,
    /// Streams end without usage and without a last event.
    Cut,
}

/// What the stub does.
#[derive(Debug, Clone, Default)]
pub struct StubConfig {
    pub fault: Fault,
    /// Between tokens.
    pub step: Duration,
    /// Tokens that travel in one event.
    pub tokens_per_event: u32,
}

/// A running stub.
pub struct Stub {
    pub url: String,
    state: Stubbed,
}

#[derive(Clone)]
struct Stubbed {
    config: StubConfig,
    bodies: Arc<Mutex<Vec<Value>>>,
    stop: tokio_util::sync::CancellationToken,
}

impl Stub {
    pub async fn start(config: StubConfig) -> Self {
        let state = Stubbed {
            config,
            bodies: Arc::default(),
            stop: tokio_util::sync::CancellationToken::new(),
        };
        let app = Router::new()
            .route("/v1/models", get(models))
            .route("/generate_stream", post(generate))
            .route("/v1/completions", post(completions))
            .route("/v1/chat/completions", post(chat))
            .with_state(state.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = state.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                result = axum::serve(listener, app) => result.unwrap(),
                () = stop.cancelled() => {}
            }
        });
        Self { url, state }
    }

    /// Bodies of all requests so far.
    pub fn bodies(&self) -> Vec<Value> {
        self.state.bodies.lock().unwrap().clone()
    }

    /// Runs the benchmark against this stub; `arguments` are split at spaces.
    pub async fn bench(&self, arguments: &str) -> Output {
        bench(&format!("server --url {} {arguments}", self.url)).await
    }

    /// Runs the benchmark against this stub, and reads the report that it saves.
    pub async fn measured(&self, arguments: &str) -> (Output, Report) {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("x.json");
        let output = self
            .bench(&format!("{arguments} --output-json {}", json.display()))
            .await;
        assert!(json.exists(), "{}", stderr(&output));
        (output, report(&json))
    }
}

/// Runs the benchmark; `arguments` are split at spaces.
pub async fn bench(arguments: &str) -> Output {
    tokio::process::Command::new(env!("CARGO_BIN_EXE_text-generation-benchmark"))
        .args(arguments.split(' ').filter(|argument| !argument.is_empty()))
        .output()
        .await
        .unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn report(path: &Path) -> Report {
    Report::load(path).unwrap()
}

async fn models() -> Json<Value> {
    Json(json!({ "object": "list", "data": [{ "id": "stub", "object": "model" }] }))
}

async fn generate(State(state): State<Stubbed>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let tokens = body["parameters"]["max_new_tokens"].as_u64().unwrap() as u32;
    let input = body["inputs"].as_str().unwrap().split_whitespace().count();
    let last = json!({
        "index": tokens, "token": token("end"), "generated_text": "all of it",
        "details": { "finish_reason": "length", "generated_tokens": tokens, "seed": null, "input_length": input },
    });
    let error = json!({ "error": "Request failed during generation", "error_type": "generation" });
    let event = json!({ "index": 1, "token": token("w"), "generated_text": null, "details": null });
    answer(
        state,
        body,
        Events {
            event,
            last: vec![last.to_string()],
            error,
            tokens,
        },
    )
    .await
}

fn token(text: &str) -> Value {
    json!({ "id": 5, "text": text, "logprob": -0.5, "special": false })
}

async fn completions(State(state): State<Stubbed>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let input = match &body["prompt"] {
        Value::Array(ids) => ids.len(),
        prompt => prompt.as_str().unwrap().split_whitespace().count(),
    };
    let event = json!({ "choices": [{ "index": 0, "text": "w", "finish_reason": null }] });
    let end = json!({ "choices": [{ "index": 0, "text": "w", "finish_reason": "length" }] });
    openai(state, body, event, end, input).await
}

async fn chat(State(state): State<Stubbed>, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap();
    let words = |message: &Value| {
        let content = &message["content"];
        let text = content.as_str().or_else(|| {
            let parts = content.as_array()?;
            parts.iter().find_map(|part| part["text"].as_str())
        });
        text.unwrap().split_whitespace().count()
    };
    let input = body["messages"].as_array().unwrap().iter().map(words).sum();
    let choice = |finish: Value| json!({ "choices": [{ "index": 0, "delta": { "content": " w" }, "finish_reason": finish }] });
    let (event, end) = (choice(Value::Null), choice(json!("length")));
    openai(state, body, event, end, input).await
}

async fn openai(state: Stubbed, body: Value, event: Value, end: Value, input: usize) -> Response {
    let tokens = body["max_tokens"].as_u64().unwrap() as u32;
    assert_eq!(body["stream_options"]["include_usage"], true);
    let usage =
        json!({ "choices": [], "usage": { "prompt_tokens": input, "completion_tokens": tokens } });
    let last = vec![end.to_string(), usage.to_string(), "[DONE]".to_owned()];
    let error = json!({ "error": { "message": "shard lost", "type": "server_error" } });
    answer(
        state,
        body,
        Events {
            event,
            last,
            error,
            tokens,
        },
    )
    .await
}

struct Events {
    event: Value,
    last: Vec<String>,
    error: Value,
    tokens: u32,
}

async fn answer(state: Stubbed, body: Value, events: Events) -> Response {
    let number = {
        let mut bodies = state.bodies.lock().unwrap();
        bodies.push(body);
        bodies.len()
    };
    let fault = state.config.fault;
    if fault == Fault::Overloaded {
        let body = json!({ "error": "Model is overloaded", "error_type": "overloaded" });
        return (StatusCode::TOO_MANY_REQUESTS, Json(body)).into_response();
    }
    let count = events.tokens.div_ceil(state.config.tokens_per_event.max(1)) as usize;
    let mut lines = vec![events.event.to_string(); count - 1];
    lines.extend(events.last);
    let mut die = false;
    match fault {
        Fault::DieAt(from) if number >= from => {
            lines.truncate(2);
            die = true;
        }
        Fault::ErrorAt(at) if number == at => {
            lines.truncate(1);
            lines.push(events.error.to_string());
        }
        Fault::Cut => lines.truncate(1),
        _ => {}
    }
    let step = state.config.step;
    let frames = stream::iter(lines).then(move |line| async move {
        if !step.is_zero() {
            tokio::time::sleep(step).await;
        }
        Ok::<_, std::io::Error>(Bytes::from(format!("data: {line}\n\n")))
    });
    let stop = state.stop;
    let end = stream::iter(die.then_some(())).map(move |()| {
        stop.cancel();
        Err(std::io::Error::other("the stub died"))
    });
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(Body::from_stream(frames.chain(end)))
        .unwrap()
}

/// A tokenizer of words of two letters, each one token.
pub fn tokenizer() -> String {
    let words = ('a'..='z').flat_map(|a| ('a'..='c').map(move |b| format!("▁{a}{b}")));
    let vocab: serde_json::Map<String, Value> = std::iter::once("<unk>".to_owned())
        .chain(words)
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": [],
        "pre_tokenizer": metaspace, "decoder": metaspace, "post_processor": null,
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" },
    })
    .to_string()
}

/// The images of a message: what each data URL holds.
pub fn images(message: &Value) -> Vec<Vec<u8>> {
    let parts = message["content"].as_array().unwrap().iter();
    let urls = parts.filter_map(|part| part["image_url"]["url"].as_str());
    urls.map(|url| {
        let (_, base64) = url.split_once(";base64,").unwrap();
        STANDARD.decode(base64).unwrap()
    })
    .collect()
}
