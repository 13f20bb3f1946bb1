//! Bodies that clients send to `/v1/chat/completions`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use text_generation_chat::ChatInput;
use text_generation_core::types::EarlyStopping;
use utoipa::ToSchema;

use super::choices_body::choices_body;
use super::earlier_calls::check_calls;
use super::fields::{Seed, Stop, StreamOptions, ThinkingBody};
use super::prediction::PredictionBody;
use super::sampling::{Sampling, TokenIds, check, refused};
use super::sampling_body::sampling_body;
use super::structured::{Forms, ResponseFormat, StructuredOutputs};
use super::tools::{self, ToolBody, ToolChoiceBody};
use crate::bounds::MAX_MESSAGES;
use crate::conversation::{ReasoningWishes, ToolWishes};
use crate::error::ApiError;
use crate::extract::nullable_object;
use crate::fields::Unsupported;

choices_body! {
    /// Body of `/v1/chat/completions`. Keys that no API knows are ignored.
    #[derive(Debug, Deserialize, ToSchema)]
    #[serde(remote = "Self")]
    #[schema(example = json!({
        "model": "tgi",
        "messages": [{"role": "user", "content": "What is deep learning?"}],
        "max_tokens": 64
    }))]
    pub struct ChatBody {
        /// The conversation so far. Every key of a message reaches the template.
        #[schema(value_type = Vec<Message>, min_items = 1, max_items = 4096)]
        pub messages: Vec<Map<String, Value>>,
        /// The newer name of `max_tokens`.
        #[serde(default, deserialize_with = "crate::extract::token_limit")]
        #[schema(nullable = true, minimum = 1)]
        pub max_completion_tokens: Option<u32>,
        /// What the answer may be, such as the file that it is an edit of. It changes nothing of the answer: a server that
        /// drafts (`speculate` of `/info`) gets there sooner where both agree.
        #[serde(default, deserialize_with = "nullable_object")]
        #[schema(nullable = true)]
        pub prediction: Option<PredictionBody>,
        /// Return the log-probabilities of the answer's tokens.
        #[schema(nullable = true)]
        pub logprobs: Option<bool>,
        /// Return this many of the most likely tokens of every step, up to `--max-logprobs`; needs `logprobs`.
        #[schema(nullable = true, minimum = 0, maximum = 20)]
        pub top_logprobs: Option<u32>,
        /// Functions that the model may call.
        #[schema(nullable = true, value_type = Option<Vec<ToolBody>>)]
        pub tools: Option<Vec<Value>>,
        /// `auto`, `none`, `required`, or the tools that may be called by name.
        #[schema(nullable = true)]
        pub tool_choice: Option<ToolChoiceBody>,
        /// Whether the model may call several tools in one answer, as is the default.
        #[schema(nullable = true)]
        pub parallel_tool_calls: Option<bool>,
        /// What the model is told of tools, where its template cannot do so. Not in OpenAI's API, but in TGI's.
        #[schema(nullable = true)]
        pub tool_prompt: Option<String>,
        /// Put what the model thinks in `reasoning_content`, as is the default where the format of its thoughts is known
        /// (`reasoning_parser` of `/info`). With `true` elsewhere it is what stands between `<think>` and `</think>`.
        /// Not in OpenAI's API.
        #[schema(nullable = true)]
        pub separate_reasoning: Option<bool>,
        /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`, for templates that read it or can switch
        /// reasoning off; else ignored, as the header `x-ignored-fields` says.
        #[schema(nullable = true, example = "low")]
        pub reasoning_effort: Option<String>,
        /// OpenRouter's place of the same.
        #[serde(default, deserialize_with = "nullable_object")]
        #[schema(nullable = true)]
        pub reasoning: Option<ChatReasoning>,
        /// Whether the model reasons, as in Anthropic's API; for templates that can switch it, else ignored like
        /// `reasoning_effort`.
        #[serde(default, deserialize_with = "nullable_object")]
        #[schema(nullable = true)]
        pub thinking: Option<ThinkingBody>,
        /// Texts to answer from, for templates that read `documents`. Not in OpenAI's API.
        #[schema(nullable = true, value_type = Option<Vec<Object>>, example = json!([{"title": "Tides", "text": "..."}]))]
        pub documents: Option<Vec<Map<String, Value>>>,
        /// Variables for the template, of those that it may be given. Not in OpenAI's API.
        #[schema(nullable = true, value_type = Option<Object>, example = json!({"enable_thinking": false}))]
        pub chat_template_kwargs: Option<Map<String, Value>>,
        /// Start the answer after the conversation, as is the default. Not in OpenAI's API.
        #[schema(nullable = true)]
        pub add_generation_prompt: Option<bool>,
        /// Go on with the last message, as is the default after one of the assistant. Not in OpenAI's API.
        #[schema(nullable = true)]
        pub continue_final_message: Option<bool>,
        /// With `false` the answer is without what the model thought. Not in OpenAI's API.
        #[schema(nullable = true, example = json!(null))]
        pub include_reasoning: Option<bool>,
        #[serde(default)]
        #[schema(ignore)]
        pub add_special_tokens: Unsupported,
    }
}

/// How much the model reasons.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatReasoning {
    /// As `reasoning_effort`.
    #[schema(nullable = true, example = "low")]
    pub effort: Option<String>,
    /// Whether the model reasons.
    #[schema(nullable = true)]
    pub enabled: Option<bool>,
}

/// One message of a conversation. Other keys reach the template too.
#[derive(Debug, ToSchema)]
#[schema(example = json!({"role": "user", "content": "What is deep learning?"}))]
#[expect(dead_code, reason = "documents what is kept as JSON for the template")]
pub struct Message {
    /// `system`, `developer`, `user`, `assistant`, `tool`, or another that the template knows.
    #[schema(example = "user")]
    pub role: String,
    /// A text, or a list of parts of the types `text`, `input_text`, `output_text`, `refusal` and, for an assistant,
    /// `thinking`. May be missing in messages of the assistant.
    #[schema(nullable = true, value_type = Option<String>)]
    pub content: Option<Value>,
    #[schema(nullable = true)]
    pub name: Option<String>,
    /// Calls that the assistant made.
    #[schema(nullable = true, value_type = Option<Vec<Object>>)]
    pub tool_calls: Option<Vec<Value>>,
    /// The call that a message of the role `tool` answers.
    #[schema(nullable = true)]
    pub tool_call_id: Option<String>,
    /// What the assistant thought, for templates that read it; `reasoning` means the same.
    #[schema(nullable = true)]
    pub reasoning_content: Option<String>,
}

impl ChatBody {
    /// The most tokens to generate; the body has one name of the limit only.
    ///
    /// # Errors
    /// 422 when it is 0.
    pub fn max_tokens(&self) -> Result<Option<u32>, ApiError> {
        let (old, new) = (self.max_tokens, self.max_completion_tokens);
        let field = if new.is_some() {
            "max_completion_tokens"
        } else {
            "max_tokens"
        };
        let given = new.or(old);
        check(given != Some(0), || {
            format!("`{field}` must be >= 1. Given: 0")
        })?;
        Ok(given)
    }

    /// How many alternatives of each token are asked for; None without log-probabilities. How many there may be is for
    /// `core` to say.
    ///
    /// # Errors
    /// 422 when alternatives are asked for without log-probabilities.
    pub fn top_logprobs(&self) -> Result<Option<u32>, ApiError> {
        let top = self.top_logprobs.unwrap_or(0);
        if !self.logprobs.unwrap_or(false) {
            check(top == 0, || {
                "`top_logprobs` needs `logprobs` to be true".to_owned()
            })?;
            return Ok(None);
        }
        Ok(Some(top))
    }

    /// What is said of tools, taken out of the body.
    ///
    /// # Errors
    /// 422 that names the field that is wrong.
    pub fn take_tools(&mut self) -> Result<ToolWishes, ApiError> {
        tools::wishes(
            self.tools.take(),
            self.tool_choice.take(),
            self.parallel_tool_calls,
            self.tool_prompt.take(),
        )
    }

    /// What is said of reasoning.
    ///
    /// # Errors
    /// 422 that names the field that is wrong.
    pub fn reasoning_wishes(&self) -> Result<ReasoningWishes, ApiError> {
        let mut wishes = ReasoningWishes::default();
        wishes.effort("reasoning_effort", self.reasoning_effort.as_deref())?;
        if let Some(reasoning) = &self.reasoning {
            wishes.effort("reasoning.effort", reasoning.effort.as_deref())?;
            if let Some(enabled) = reasoning.enabled {
                wishes.reasons("reasoning.enabled", enabled);
            }
        }
        if let Some(thinking) = &self.thinking {
            wishes.thinking("thinking", &thinking.r#type)?;
        }
        Ok(wishes)
    }

    /// Whether a stream ends with the usage.
    pub fn includes_usage(&self) -> bool {
        let options = self.stream_options.as_ref();
        options.and_then(|options| options.include_usage) == Some(true)
    }

    /// What the template renders, but the tools; takes the conversation out of the body.
    ///
    /// # Errors
    /// 422 that names the field that is wrong.
    pub fn take_input(&mut self) -> Result<ChatInput, ApiError> {
        let messages = read_messages(std::mem::take(&mut self.messages))?;
        // As in TGI, a last message of the assistant is gone on with, if it has a text.
        let text_of_assistant = |message: &Map<String, Value>| {
            let has = |key: &str| message.get(key).is_some_and(|value| !value.is_null());
            message.get("role").is_some_and(|role| role == "assistant")
                && has("content")
                && !has("tool_calls")
        };
        let continues = messages.last().is_some_and(text_of_assistant)
            && self.add_generation_prompt != Some(true);
        let continue_final_message = self.continue_final_message.unwrap_or(continues);
        let add_generation_prompt = self
            .add_generation_prompt
            .unwrap_or(!continue_final_message);
        check(!(continue_final_message && add_generation_prompt), || {
            "`continue_final_message` and `add_generation_prompt` exclude each other".to_owned()
        })?;
        let mut kwargs = self.chat_template_kwargs.take().unwrap_or_default();
        if let Some(documents) = self.documents.take().filter(|list| !list.is_empty()) {
            kwargs.entry("documents").or_insert(documents.into());
        }
        Ok(ChatInput {
            messages: completed(messages),
            tools: None,
            add_generation_prompt,
            continue_final_message,
            chat_template_kwargs: kwargs,
            ..ChatInput::default()
        })
    }
}

/// The messages of a conversation that nothing goes on with, as templates get them.
///
/// # Errors
/// 422 that names what is wrong.
pub fn checked_messages(messages: Vec<Map<String, Value>>) -> Result<Vec<Value>, ApiError> {
    read_messages(messages).map(completed)
}

fn read_messages(
    mut messages: Vec<Map<String, Value>>,
) -> Result<Vec<Map<String, Value>>, ApiError> {
    check((1..=MAX_MESSAGES).contains(&messages.len()), || {
        format!(
            "`messages` must hold 1 to {MAX_MESSAGES} messages. Given: {}",
            messages.len()
        )
    })?;
    for (index, message) in messages.iter().enumerate() {
        check_message(message)
            .map_err(|(key, problem)| refused(format!("`messages[{index}].{key}` {problem}")))?;
    }
    // Some clients write a list in every message; templates take any for calls.
    for message in &mut messages {
        let calls = message.get("tool_calls").and_then(Value::as_array);
        if calls.is_some_and(Vec::is_empty) {
            message.shift_remove("tool_calls");
        }
    }
    Ok(messages)
}

fn completed(mut messages: Vec<Map<String, Value>>) -> Vec<Value> {
    messages.iter_mut().for_each(complete);
    messages.into_iter().map(Value::Object).collect()
}

/// The key that is wrong, and why.
fn check_message(message: &Map<String, Value>) -> Result<(), (String, String)> {
    let wrong = |key: &str, problem: &str| Err((key.to_owned(), problem.to_owned()));
    let given = |key: &str| message.get(key).filter(|value| !value.is_null());
    match given("role") {
        Some(Value::String(role)) if !role.is_empty() => {}
        _ => return wrong("role", "must be a string that is not empty"),
    }
    for key in [
        "name",
        "tool_call_id",
        "reasoning_content",
        "reasoning",
        "refusal",
    ] {
        if given(key).is_some_and(|value| !value.is_string()) {
            return wrong(key, "must be a string");
        }
    }
    for key in ["audio", "function_call"] {
        if given(key).is_some() {
            return wrong(key, "is not supported");
        }
    }
    let calls = match given("tool_calls") {
        None => false,
        Some(Value::Array(calls)) if calls.iter().all(Value::is_object) => {
            check_calls(calls)?;
            !calls.is_empty()
        }
        Some(_) => return wrong("tool_calls", "must be a list of objects"),
    };
    let may_be_empty = calls
        || ["assistant", "tool"]
            .iter()
            .any(|role| message["role"] == *role);
    // The template's side looks at the content itself.
    if given("content").is_none() && !may_be_empty {
        return wrong("content", "must be a string or a list of parts");
    }
    Ok(())
}

/// A message without calls has a content: what the assistant refused, or nothing, as where its reasoning was cut.
fn complete(message: &mut Map<String, Value>) {
    let has = |key: &str| message.get(key).is_some_and(|value| !value.is_null());
    let says_nothing = !has("content") || message["content"] == "";
    if says_nothing && !has("tool_calls") {
        let refusal = message.get("refusal").and_then(Value::as_str);
        let content = refusal.unwrap_or_default().to_owned();
        message.insert("content".to_owned(), content.into());
    }
}
