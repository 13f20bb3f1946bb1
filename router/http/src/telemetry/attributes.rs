//! Attributes of spans: the semantic conventions of OpenTelemetry for HTTP and for generative AI, and for times the
//! names of vLLM and SGLang, because the conventions have none for a server's span.

use std::time::Duration;

use axum::http::Method;
use opentelemetry::{Array, KeyValue, StringValue, Value};
use text_generation_core::types::observer::{GenerationRecord, Outcome};
use text_generation_core::types::{FinishReason, GenerateParameters};

/// Known before the body is read.
pub(super) fn of_request(method: &Method, route: &str, model: &str) -> Vec<KeyValue> {
    vec![
        KeyValue::new("http.request.method", method.to_string()),
        KeyValue::new("http.route", route.to_owned()),
        KeyValue::new("url.scheme", "http"),
        KeyValue::new("gen_ai.operation.name", operation(route)),
        KeyValue::new("gen_ai.provider.name", "text-generation"),
        KeyValue::new("gen_ai.request.model", model.to_owned()),
        KeyValue::new("gen_ai.response.model", model.to_owned()),
    ]
}

fn operation(route: &str) -> &'static str {
    let chats = [
        "/v1/chat",
        "/v1/messages",
        "/v1/responses",
        "/chat_tokenize",
        "/invocations",
        "/vertex",
    ];
    if chats.iter().any(|chat| route.starts_with(chat)) {
        "chat"
    } else {
        "text_completion"
    }
}

/// Only what is set, by the client or by the model's defaults. Stop strings are text of the client, and not here.
pub(super) fn of_parameters(asked: &GenerateParameters) -> Vec<KeyValue> {
    let float = |value: Option<f32>| value.map(|value| Value::F64(value.into()));
    let integer = |value: Option<i64>| value.map(Value::I64);
    let seed = asked.seed.and_then(|seed| i64::try_from(seed).ok());
    let given = [
        (
            "gen_ai.request.max_tokens",
            integer(asked.max_new_tokens.map(i64::from)),
        ),
        ("gen_ai.request.temperature", float(asked.temperature)),
        ("gen_ai.request.top_p", float(asked.top_p)),
        ("gen_ai.request.top_k", integer(asked.top_k.map(i64::from))),
        (
            "gen_ai.request.frequency_penalty",
            float(asked.frequency_penalty),
        ),
        (
            "gen_ai.request.presence_penalty",
            float(asked.presence_penalty),
        ),
        ("gen_ai.request.seed", integer(seed)),
    ];
    let given = given.into_iter();
    given
        .filter_map(|(name, value)| Some(KeyValue::new(name, value?)))
        .collect()
}

/// Usage, ends and times of all generations of a request together; nothing where there were none.
pub(super) fn of_generations(generations: &[GenerationRecord]) -> Vec<KeyValue> {
    if generations.is_empty() {
        return Vec::new();
    }
    // Samples share their prompt.
    let prompts = || {
        generations
            .iter()
            .filter(|generation| generation.index == 0)
    };
    let total = |count: u32| Value::I64(count.into());
    let input = prompts().map(|one| one.input_length).sum();
    let cached = prompts().map(|one| one.cached_tokens).sum();
    let output = generations.iter().map(|one| one.generated_tokens).sum();
    let mut attributes = vec![
        KeyValue::new("gen_ai.usage.input_tokens", total(input)),
        KeyValue::new("gen_ai.usage.cache_read.input_tokens", total(cached)),
        KeyValue::new("gen_ai.usage.output_tokens", total(output)),
        KeyValue::new(
            "gen_ai.response.finish_reasons",
            finish_reasons(generations),
        ),
    ];
    if generations.len() > 1 {
        let count = i64::try_from(generations.len()).unwrap_or(i64::MAX);
        attributes.push(KeyValue::new("gen_ai.request.choice.count", count));
    }
    attributes.extend(latencies(generations));
    attributes
}

fn finish_reasons(generations: &[GenerationRecord]) -> Value {
    let reasons = generations.iter().map(|one| match one.outcome {
        Outcome::Finished(FinishReason::Length) => "length",
        Outcome::Finished(FinishReason::EosToken | FinishReason::StopSequence) => "stop",
        Outcome::Failed(_) => "error",
        Outcome::Dropped => "cancelled",
    });
    Value::Array(Array::String(reasons.map(StringValue::from).collect()))
}

/// Seconds, of the first that got a token, and to the end of the last.
fn latencies(generations: &[GenerationRecord]) -> Vec<KeyValue> {
    let first = generations
        .iter()
        .filter_map(|one| Some((one.first_token?, one)));
    let last = generations.iter().map(|one| one.ended).max();
    let (Some((token, first)), Some(last)) = (first.min_by_key(|(token, _)| *token), last) else {
        return Vec::new();
    };
    let instants = &first.instants;
    let seconds = |duration: Duration| Value::F64(duration.as_secs_f64());
    let since =
        |later: tokio::time::Instant, earlier| seconds(later.saturating_duration_since(earlier));
    vec![
        KeyValue::new(
            "gen_ai.latency.time_to_first_token",
            since(token, instants.received),
        ),
        KeyValue::new(
            "gen_ai.latency.time_in_queue",
            since(instants.started, instants.queued),
        ),
        KeyValue::new(
            "gen_ai.latency.time_in_model_prefill",
            since(token, instants.started),
        ),
        KeyValue::new("gen_ai.latency.time_in_model_decode", since(last, token)),
        KeyValue::new("gen_ai.latency.e2e", since(last, instants.received)),
    ]
}
