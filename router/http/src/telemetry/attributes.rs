//! What spans say: the semantic conventions of OpenTelemetry for HTTP and for generative AI, and for times the names of vLLM
//! and SGLang, because the conventions have none for a server's span.

use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use text_generation_core::observer::{GenerationRecord, Outcome};
use text_generation_core::types::{FinishReason, GenerateParameters};

pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

pub(super) fn text(value: &str) -> Value {
    Value::StringValue(value.to_owned())
}

/// Known before the body is read.
pub(super) fn of_request(route: &str, model: &str) -> [KeyValue; 7] {
    [
        attribute("http.request.method", text("POST")),
        attribute("http.route", text(route)),
        attribute("url.scheme", text("http")),
        attribute("gen_ai.operation.name", text(operation(route))),
        attribute("gen_ai.provider.name", text("text-generation")),
        attribute("gen_ai.request.model", text(model)),
        attribute("gen_ai.response.model", text(model)),
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
pub(super) fn of_parameters(asked: &GenerateParameters) -> impl Iterator<Item = KeyValue> {
    let float = |value: Option<f32>| value.map(|value| Value::DoubleValue(value.into()));
    let integer = |value: Option<i64>| value.map(Value::IntValue);
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
    given.filter_map(|(name, value)| Some(attribute(name, value?)))
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
    let total = |count: u32| Value::IntValue(count.into());
    let input = prompts().map(|one| one.input_length).sum();
    let cached = prompts().map(|one| one.cached_tokens).sum();
    let output = generations.iter().map(|one| one.generated_tokens).sum();
    let mut attributes = vec![
        attribute("gen_ai.usage.input_tokens", total(input)),
        attribute("gen_ai.usage.cache_read.input_tokens", total(cached)),
        attribute("gen_ai.usage.output_tokens", total(output)),
        attribute(
            "gen_ai.response.finish_reasons",
            finish_reasons(generations),
        ),
    ];
    if generations.len() > 1 {
        let count = i64::try_from(generations.len()).unwrap_or(i64::MAX);
        attributes.push(attribute(
            "gen_ai.request.choice.count",
            Value::IntValue(count),
        ));
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
    let values = reasons.map(|reason| AnyValue {
        value: Some(text(reason)),
    });
    Value::ArrayValue(ArrayValue {
        values: values.collect(),
    })
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
    let seconds = |duration: Duration| Value::DoubleValue(duration.as_secs_f64());
    let since =
        |later: tokio::time::Instant, earlier| seconds(later.saturating_duration_since(earlier));
    vec![
        attribute(
            "gen_ai.latency.time_to_first_token",
            since(token, instants.received),
        ),
        attribute(
            "gen_ai.latency.time_in_queue",
            since(instants.started, instants.queued),
        ),
        attribute(
            "gen_ai.latency.time_in_model_prefill",
            since(token, instants.started),
        ),
        attribute("gen_ai.latency.time_in_model_decode", since(last, token)),
        attribute("gen_ai.latency.e2e", since(last, instants.received)),
    ]
}
