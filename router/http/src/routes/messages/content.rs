//! Messages in Anthropic's shape, which become those of a chat template.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::blocks::CALL_ID;
use crate::body_files;
use crate::bounds::MAX_MESSAGES;
use crate::conversation::images;
use crate::error::ApiError;
use crate::routes::openai::sampling::{check, refused};

/// A block of the system prompt that Claude Code changes with every request. It is for Anthropic's accounting, and would
/// make every prompt differ from the one before at its very beginning.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// The messages for a template, those of the system at their places. Images are parts of them where the model `sees`.
///
/// # Errors
/// 422 that names the block that cannot be read.
pub fn messages(
    system: Option<&Value>,
    given: &[Map<String, Value>],
    sees: bool,
) -> Result<Vec<Map<String, Value>>, ApiError> {
    check((1..=MAX_MESSAGES).contains(&given.len()), || {
        format!(
            "`messages` must hold 1 to {MAX_MESSAGES} messages. Given: {}",
            given.len()
        )
    })?;
    let mut reader = Reader {
        sees,
        ..Reader::default()
    };
    if let Some(system) = system.filter(|system| !system.is_null()) {
        reader.system("system", system)?;
    }
    for (index, message) in given.iter().enumerate() {
        let field = format!("messages[{index}]");
        let content = message.get("content").unwrap_or(&Value::Null);
        let content_field = format!("{field}.content");
        match message.get("role").and_then(Value::as_str) {
            Some("user") => reader.user(&content_field, content)?,
            Some("assistant") => reader.assistant(&content_field, content)?,
            Some("system") => reader.system(&content_field, content)?,
            _ => {
                return Err(refused(format_args!(
                    "`{field}.role` must be `user`, `assistant` or `system`"
                )));
            }
        }
    }
    Ok(reader.messages)
}

/// A block of the user.
enum Piece {
    Text(String),
    /// A part of chat completions.
    Image(Value),
    /// Images of results come in a message of the user behind them: templates know none in messages of tools.
    ToolResult {
        id: String,
        text: String,
        images: Vec<Value>,
    },
}

#[derive(Debug, Default)]
struct Reader {
    messages: Vec<Map<String, Value>>,
    /// Names of the tools that were called, by the id of the call.
    called: HashMap<String, String>,
    sees: bool,
}

impl Reader {
    fn system(&mut self, field: &str, content: &Value) -> Result<(), ApiError> {
        let texts = blocks(field, content, |field, kind, block| match kind {
            "text" => text_of(field, block).map(Some),
            _ => Err(unreadable(field, kind)),
        })?;
        let own = |text: &String| !text.trim_start().starts_with(BILLING_HEADER);
        let texts: Vec<String> = texts.into_iter().filter(own).collect();
        if !texts.is_empty() {
            self.add("system", texts.join("\n\n").into());
        }
        Ok(())
    }

    /// Results of tools are messages of their own, in the order of the blocks.
    fn user(&mut self, field: &str, content: &Value) -> Result<(), ApiError> {
        let mut parts: Vec<Value> = Vec::new();
        let sees = self.sees;
        let pieces = blocks(field, content, |field, kind, block| {
            Ok(Some(match kind {
                "tool_result" => tool_result(field, block, sees)?,
                "image" if sees => Piece::Image(image(field, block)?),
                _ => Piece::Text(readable(field, kind, block)?),
            }))
        })?;
        for piece in pieces {
            match piece {
                Piece::Text(text) => parts.push(json!({"type": "text", "text": text})),
                Piece::Image(image) => parts.push(image),
                Piece::ToolResult { id, text, images } => {
                    self.add_user(&mut parts);
                    self.tool_result(id, text);
                    parts.extend(images);
                }
            }
        }
        self.add_user(&mut parts);
        Ok(())
    }

    fn tool_result(&mut self, id: String, text: String) {
        self.add("tool", text.into());
        if let Some(message) = self.messages.last_mut() {
            if let Some(name) = self.called.get(&id) {
                message.insert("name".to_owned(), name.as_str().into());
            }
            message.insert("tool_call_id".to_owned(), id.into());
        }
    }

    fn assistant(&mut self, field: &str, content: &Value) -> Result<(), ApiError> {
        let (mut text, mut reasoning, mut calls) = (None::<String>, String::new(), Vec::new());
        // Of an answer that was cut before it said anything, some clients send nothing.
        let nothing = Value::Array(Vec::new());
        let content = if content.is_null() { &nothing } else { content };
        blocks(field, content, |field, kind, block| {
            match kind {
                "text" => text
                    .get_or_insert_default()
                    .push_str(&text_of(field, block)?),
                "thinking" => {
                    let thought = block.get("thinking").and_then(Value::as_str);
                    reasoning.push_str(thought.unwrap_or_default());
                }
                "tool_use" => calls.push(tool_use(field, block)?),
                // Nobody else can read it, or it is what another server did by itself.
                "redacted_thinking"
                | "server_tool_use"
                | "web_search_tool_result"
                | "web_fetch_tool_result"
                | "code_execution_tool_result"
                | "tool_search_tool_result" => {}
                _ => return Err(unreadable(field, kind)),
            }
            Ok(None::<()>)
        })?;
        for call in &calls {
            let text = |pointer: &str| call.pointer(pointer).and_then(Value::as_str);
            if let (Some(id), Some(name)) = (text("/id"), text("/function/name")) {
                self.called.insert(id.to_owned(), name.to_owned());
            }
        }
        self.add("assistant", text.unwrap_or_default().into());
        if let Some(message) = self.messages.last_mut() {
            if !reasoning.is_empty() {
                message.insert("reasoning_content".to_owned(), reasoning.into());
            }
            if !calls.is_empty() {
                message.insert("tool_calls".to_owned(), calls.into());
            }
        }
        Ok(())
    }

    fn add_user(&mut self, parts: &mut Vec<Value>) {
        match parts.as_mut_slice() {
            [] => {}
            [only] if only["type"] == "text" => {
                let text = only["text"].take();
                self.add("user", text);
            }
            _ => self.add("user", parts.drain(..).collect()),
        }
        parts.clear();
    }

    fn add(&mut self, role: &str, content: Value) {
        let mut message = Map::new();
        message.insert("role".to_owned(), role.into());
        message.insert("content".to_owned(), content);
        self.messages.push(message);
    }
}

/// What `read` makes of the blocks of a content, which may also be a string.
fn blocks<T>(
    field: &str,
    content: &Value,
    mut read: impl FnMut(&str, &str, &Value) -> Result<Option<T>, ApiError>,
) -> Result<Vec<T>, ApiError> {
    match content {
        Value::String(text) => {
            let block = json!({"type": "text", "text": text});
            Ok(read(field, "text", &block)?.into_iter().collect())
        }
        Value::Array(blocks) => {
            let mut results = Vec::with_capacity(blocks.len());
            for (index, block) in blocks.iter().enumerate() {
                let kind = block.get("type").and_then(Value::as_str);
                results.extend(read(
                    &format!("{field}[{index}]"),
                    kind.unwrap_or_default(),
                    block,
                )?);
            }
            Ok(results)
        }
        _ => Err(refused(format_args!(
            "`{field}` must be a string or a list of blocks"
        ))),
    }
}

/// The text of a block of the user.
fn readable(field: &str, kind: &str, block: &Value) -> Result<String, ApiError> {
    let source = |key: &str| {
        block
            .pointer(&format!("/source/{key}"))
            .and_then(Value::as_str)
    };
    match kind {
        "text" => text_of(field, block),
        "document" if source("type") == Some("text") => {
            let text = body_files::as_sent(source("data").unwrap_or_default());
            let wrong = |error| refused(format_args!("`{field}.source.data` {error}"));
            Ok(text.map_err(wrong)?.into_owned())
        }
        "search_result" => inner_text(field, block),
        "tool_reference" => Ok(block
            .get("tool_name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()),
        _ => Err(unreadable(field, kind)),
    }
}

fn tool_result(field: &str, block: &Value, sees: bool) -> Result<Piece, ApiError> {
    let id = block.get("tool_use_id").and_then(Value::as_str);
    let id = id.ok_or_else(|| refused(format_args!("`{field}.tool_use_id` must be a string")))?;
    let mut images = Vec::new();
    let text = match block.get("content") {
        Some(content @ Value::Array(_)) if sees => {
            let texts = blocks(
                &format!("{field}.content"),
                content,
                |field, kind, block| {
                    if kind == "image" {
                        images.push(image(field, block)?);
                        return Ok(None);
                    }
                    readable(field, kind, block).map(Some)
                },
            )?;
            texts.concat()
        }
        _ => inner_text(field, block)?,
    };
    Ok(Piece::ToolResult {
        id: call_id(id).to_owned(),
        text,
        images,
    })
}

/// An image as a part of chat completions.
fn image(field: &str, block: &Value) -> Result<Value, ApiError> {
    let source = &block["source"];
    let text = |key: &str| {
        let text = source[key].as_str();
        text.ok_or_else(|| refused(format_args!("`{field}.source.{key}` must be a string")))
    };
    let url = match source["type"].as_str() {
        Some("base64") => format!("data:{};base64,{}", text("media_type")?, text("data")?),
        Some("url") => text("url")?.to_owned(),
        _ => {
            return Err(refused(format_args!(
                "`{field}.source.type` must be `base64` or `url`; this server stores no files"
            )));
        }
    };
    Ok(images::part(field, url, None))
}

/// The text of the blocks in a block's `content`, where there are any.
fn inner_text(field: &str, block: &Value) -> Result<String, ApiError> {
    match block.get("content") {
        None | Some(Value::Null) => Ok(String::new()),
        Some(content) => {
            let read =
                |field: &str, kind: &str, block: &Value| readable(field, kind, block).map(Some);
            Ok(blocks(&format!("{field}.content"), content, read)?.concat())
        }
    }
}

fn tool_use(field: &str, block: &Value) -> Result<Value, ApiError> {
    let text = |key: &str| {
        let text = block.get(key).and_then(Value::as_str);
        text.ok_or_else(|| refused(format_args!("`{field}.{key}` must be a string")))
    };
    let input = block.get("input").cloned().unwrap_or_default();
    Ok(json!({
        "id": call_id(text("id")?),
        "type": "function",
        "function": {"name": text("name")?, "arguments": input},
    }))
}

/// The id of a call as the template knows it.
fn call_id(id: &str) -> &str {
    id.strip_prefix(CALL_ID).unwrap_or(id)
}

fn text_of(field: &str, block: &Value) -> Result<String, ApiError> {
    let text = block.get("text").and_then(Value::as_str);
    text.map(str::to_owned)
        .ok_or_else(|| refused(format_args!("`{field}.text` must be a string")))
}

fn unreadable(field: &str, kind: &str) -> ApiError {
    refused(format_args!(
        "`{field}.type` is `{kind}`, which this server cannot read: it reads texts, and results of tools as text"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(system: Value, given: Value) -> Result<Value, String> {
        let given: Vec<_> = given
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message.as_object().unwrap().clone())
            .collect();
        messages(Some(&system), &given, false)
            .map(|messages| messages.into_iter().map(Value::Object).collect())
            .map_err(|error| error.body.error)
    }

    #[test]
    fn a_turn_of_an_agent() {
        let system = json!([
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=ab12"},
            {"type": "text", "text": "You code.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be short."},
        ]);
        let given = json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_t1", "name": "read", "input": {"path": "x"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_t1", "is_error": true, "content": [{"type": "text", "text": "gone"}]},
                {"type": "text", "text": "go on"},
            ]},
            {"role": "system", "content": "reminder"},
        ]);
        let expected = json!([
            {"role": "system", "content": "You code.\n\nBe short."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "read", "arguments": {"path": "x"}}},
            ]},
            {"role": "tool", "content": "gone", "name": "read", "tool_call_id": "t1"},
            {"role": "user", "content": "go on"},
            {"role": "system", "content": "reminder"},
        ]);
        assert_eq!(read(system, given), Ok(expected));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let image = json!([{"type": "image", "source": {}}]);
        for (content, field) in [
            (image.clone(), "`messages[0].content[0].type` is `image`"),
            (
                json!([{"type": "tool_result", "tool_use_id": "t", "content": image}]),
                "`messages[0].content[0].content[0].type` is `image`",
            ),
            (
                json!([{"type": "tool_result"}]),
                "`messages[0].content[0].tool_use_id`",
            ),
            (json!([{"type": "text"}]), "`messages[0].content[0].text`"),
            (json!(1), "`messages[0].content` must be"),
        ] {
            let error =
                read(Value::Null, json!([{"role": "user", "content": content}])).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
        let error = read(Value::Null, json!([{"role": "tool", "content": ""}])).unwrap_err();
        assert!(error.contains("`messages[0].role`"), "{error}");
    }
}
