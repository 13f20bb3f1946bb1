//! Templates of the tests.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

use serde_json::{Map, Value, json};
use text_generation_chat::{ChatInput, ChatTemplate, ChatTemplateError, Limits};

/// A model with one template and the tokens `<s>` and `</s>`.
pub fn template(source: &str) -> Result<ChatTemplate, ChatTemplateError> {
    limited(source, Limits::default())
}

pub fn limited(source: &str, limits: Limits) -> Result<ChatTemplate, ChatTemplateError> {
    let templates = [("default".to_owned(), source.to_owned())].into();
    ChatTemplate::new(templates, tokens(), limits)
}

pub fn tokens() -> Map<String, Value> {
    let tokens = json!({"bos_token": "<s>", "eos_token": "</s>"});
    tokens.as_object().cloned().unwrap_or_default()
}

/// A conversation that ends with the header of an answer.
pub fn input(messages: Value) -> ChatInput {
    ChatInput {
        messages: messages.as_array().cloned().unwrap_or_default(),
        add_generation_prompt: true,
        ..ChatInput::default()
    }
}

pub fn user(text: &str) -> ChatInput {
    input(json!([{"role": "user", "content": text}]))
}

/// What `source` makes of a one-word conversation.
pub fn render(source: &str) -> Result<String, ChatTemplateError> {
    template(source)?.render(&user("hi"))
}

pub fn rendered(source: &str) -> String {
    render(source).expect("a prompt")
}
