//! Messages in the shape that a template expects.
//!
//! A template written for text prints a list of parts as Python would; one written for parts finds none in a text. The
//! same goes for the arguments of tool calls, which clients send as JSON text and most templates want as objects. What
//! a template expects is found out by asking it, once.

pub(super) mod continued;
mod parts;
pub(super) mod roles;

use serde_json::{Map, Value, json};

use self::parts::{Content, Knows};
use super::arguments::{arguments_object, arguments_text};
use super::limits::Limit;
use super::{ChatInput, ChatTemplateError};

/// Nothing that a template would write by itself.
const SENTINEL: &str = "ab12cd34ef";

/// What a template reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Expects {
    content: Content,
    /// Arguments of tool calls as JSON text instead of as objects.
    argument_text: bool,
    /// Thoughts as parts of a content, of the type `thinking`.
    pub(super) thinking_parts: bool,
}

impl Expects {
    /// Asks a template; `render` leaves messages as they are.
    ///
    /// # Errors
    /// A template that reaches a limit for the shortest conversation, and so for every other.
    pub(super) fn find(
        render: impl Fn(&ChatInput) -> Result<String, ChatTemplateError>,
    ) -> Result<Self, ChatTemplateError> {
        let rendered = |messages: Value, tools: Option<Vec<Value>>| {
            let messages = messages.as_array().cloned().unwrap_or_default();
            render(&ChatInput {
                messages,
                tools,
                ..ChatInput::default()
            })
        };
        let shows = |prompt: String| {
            prompt.contains(SENTINEL)
                // A list or an object as Python prints it.
                && !prompt.contains(&format!(": '{SENTINEL}'"))
        };
        let prints = |messages, tools| rendered(messages, tools).is_ok_and(shows);
        let text = match rendered(json!([{"role": "user", "content": SENTINEL}]), None) {
            // Time depends on the machine too, and prompts of requests may be longer.
            Err(refused @ ChatTemplateError::Limit(limit))
                if !matches!(limit, Limit::Time(_) | Limit::Output(_)) =>
            {
                return Err(refused);
            }
            rendered => rendered.is_ok_and(shows),
        };
        let part = json!([{"type": "text", "text": SENTINEL}]);
        let parts = prints(json!([{"role": "user", "content": part}]), None);
        let content = match (text, parts) {
            (true, true) => Content::Both,
            (false, true) => Content::Parts,
            (_, false) => Content::Text,
        };
        let call = |arguments: Value| {
            let call = json!({"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": arguments}});
            let conversation = json!([
                {"role": "user", "content": content.of("x")},
                {"role": "assistant", "content": content.of(""), "tool_calls": [call]},
            ]);
            let parameters = json!({"type": "object", "properties": {"k": {"type": "string", "description": "d"}}, "required": ["k"]});
            let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}});
            prints(conversation, Some(vec![tool]))
        };
        let objects = call(json!({"k": SENTINEL}));
        let thoughts = json!([{"type": "thinking", "thinking": SENTINEL, "closed": true}, {"type": "text", "text": "x"}]);
        let thinking = json!([
            {"role": "user", "content": content.of("x")},
            {"role": "assistant", "content": thoughts},
        ]);
        Ok(Self {
            content,
            thinking_parts: prints(thinking, None),
            argument_text: !objects && call(json!({"k": SENTINEL}).to_string().into()),
        })
    }

    /// The messages of a request for a template that names the types `knows` of parts.
    pub(super) fn shape(
        self,
        messages: &[Value],
        images: bool,
        knows: impl Fn(&str) -> bool,
    ) -> Result<Vec<Value>, ChatTemplateError> {
        if messages.is_empty() {
            return Err(ChatTemplateError::input("messages", "must not be empty"));
        }
        messages
            .iter()
            .enumerate()
            .map(|(index, message)| {
                let knows = Knows {
                    images,
                    kinds: &knows,
                };
                self.message(&format!("messages[{index}]"), message, &knows)
            })
            .collect()
    }

    fn message(
        self,
        field: &str,
        message: &Value,
        knows: &Knows<'_>,
    ) -> Result<Value, ChatTemplateError> {
        let Value::Object(message) = message else {
            return Err(ChatTemplateError::input(field, "must be an object"));
        };
        let mut shaped = Map::new();
        for (name, value) in message {
            let value = match (name.as_str(), value) {
                ("content", content) => self.content.shape(field, content, knows)?,
                (_, Value::Null) => continue,
                ("tool_calls", Value::Array(calls)) => {
                    calls.iter().map(|call| self.call(call)).collect()
                }
                (_, value) => value.clone(),
            };
            shaped.insert(name.clone(), value);
        }
        Ok(Value::Object(shaped))
    }

    /// A tool call whose arguments have the type that the template reads.
    fn call(self, call: &Value) -> Value {
        let mut call = call.clone();
        let function = match call.get("function") {
            Some(Value::Object(_)) => call.get_mut("function"),
            // Some clients leave out what says that a call is one of a function.
            _ => call.get("name").is_some().then_some(&mut call),
        };
        if let Some(Value::Object(function)) = function {
            let arguments = function.entry("arguments").or_insert(Value::Null);
            *arguments = match self.argument_text {
                true => arguments_text(arguments),
                false => arguments_object(arguments),
            };
        }
        call
    }
}
