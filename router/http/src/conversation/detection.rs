//! Finds out how the model writes calls and reasoning, once, before the server answers.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use text_generation_chat::ChatInput;
use text_generation_formats::Format;

use super::model_format::{FALLBACK, ModelFormat, ParserChoice};
use crate::renderer::ChatRenderer;

/// Nothing that a template would write by itself.
const TOOL: &str = "probe_tool_name";
const ARGUMENT: &str = "probe_argument_value";

impl ModelFormat {
    /// Follows the flags `--tool-call-parser` and `--reasoning-parser`; where they leave it open, the files of the model
    /// in `folder` and what its template makes of a conversation with calls.
    ///
    /// # Errors
    /// A flag that names no format.
    pub async fn find(
        calls: &ParserChoice,
        reasoning: &ParserChoice,
        folder: &Path,
        chats: &ChatRenderer,
        vocab_size: u32,
    ) -> Result<Self, String> {
        let _ = folder;
        let own = match calls {
            ParserChoice::Named(name) => Format::named(name).cloned().ok_or_else(|| {
                let known: Vec<&str> = Format::all().iter().map(Format::name).collect();
                let known = known.join("`, `");
                format!("`--tool-call-parser {name}` is no known format: use auto, none or one of `{known}`")
            })?,
            ParserChoice::None | ParserChoice::Auto => Format::plain(),
        };
        let (own, name) = match reasoning {
            ParserChoice::None | ParserChoice::Auto => (own, None),
            ParserChoice::Named(name) => {
                let format = own.with_reasoning(name).ok_or_else(|| {
                    format!("`--reasoning-parser {name}` is no known format: use auto, none, or a name such as deepseek_r1")
                })?;
                (format, Some(name.clone()))
            }
        };
        let fallback = Format::named(FALLBACK).ok_or("the fallback format is missing")?;
        let fallback = name.as_ref().and_then(|name| fallback.with_reasoning(name)).unwrap_or_else(|| fallback.clone());
        let told = chats.render(probe()).await.unwrap_or_default();
        let tools = ChatInput {
            messages: vec![json!({"role": "user", "content": "Hi"})],
            ..probe()
        };
        let tools = chats.render(tools).await.unwrap_or_default();
        Ok(Self {
            own: Arc::new(own),
            fallback: Arc::new(fallback),
            reasoning: name,
            special_tokens: Arc::new(chats.special_tokens(vocab_size)),
            tells_tools: tools.contains(TOOL),
            tells_calls: told.contains(ARGUMENT),
        })
    }
}

/// A conversation in which a tool was called.
fn probe() -> ChatInput {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string", "description": "d"}}, "required": ["city"]});
    let tool = json!({"type": "function", "function": {"name": TOOL, "description": "d", "parameters": parameters}});
    let call = json!({"id": "abcdefghi", "type": "function", "function": {"name": TOOL, "arguments": {"city": ARGUMENT}}});
    let messages = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "x", "name": TOOL, "tool_call_id": "abcdefghi"},
    ]);
    let messages = match messages {
        Value::Array(messages) => messages,
        _ => Vec::new(),
    };
    ChatInput {
        messages,
        tools: Some(vec![tool]),
        add_generation_prompt: true,
        ..ChatInput::default()
    }
}
