//! Items of a request's `input`, which become the messages of a conversation.
//!
//! Clients send what they were answered back with the next turn, or refer to it ([`references`](super::references)). All that the assistant wrote
//! between two inputs becomes one message, as the model wrote it, so the prompt of a turn begins with that of the one
//! before.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::tools::ToolNames;
use crate::bounds::MAX_MESSAGES;
use crate::conversation::images;
use crate::error::ApiError;
use crate::extract::from_value;
use crate::routes::openai::sampling::{check, refused};
use crate::seal::Seal;

/// What the model shall answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of items")]
pub enum Input {
    Text(String),
    #[schema(value_type = Vec<Object>)]
    Items(Vec<Map<String, Value>>),
}

impl Default for Input {
    fn default() -> Self {
        Self::Items(Vec::new())
    }
}

/// The messages for a template. `instructions` come first. Images are parts of them where the model `sees`.
///
/// # Errors
/// 422 that names the item that cannot be read, or that this server cannot honour.
pub fn messages(
    instructions: Option<String>,
    input: Input,
    names: &ToolNames,
    seal: &Seal,
    sees: bool,
) -> Result<Vec<Map<String, Value>>, ApiError> {
    let mut reader = Reader {
        names,
        seal,
        sees,
        messages: Vec::new(),
        answer: Answer::default(),
        called: HashMap::new(),
    };
    if let Some(instructions) = instructions.filter(|text| !text.is_empty()) {
        reader.add("system", instructions.into());
    }
    match input {
        Input::Text(text) => reader.add("user", text.into()),
        Input::Items(items) => {
            check(!items.is_empty(), || {
                "`input` is missing or empty: send a text, or a list of items".to_owned()
            })?;
            check(items.len() <= MAX_MESSAGES, || {
                format!(
                    "`input` must hold 1 to {MAX_MESSAGES} items. Given: {}",
                    items.len()
                )
            })?;
            for (index, item) in items.into_iter().enumerate() {
                reader.item(&format!("input[{index}]"), item)?;
            }
        }
    }
    // The answer that is asked for begins anew where the one before was given up in its thoughts.
    if reader.answer.says_something() {
        reader.end_answer();
    }
    Ok(reader.messages)
}

/// What the assistant wrote since the last input.
#[derive(Debug, Default)]
struct Answer {
    reasoning: String,
    content: Option<String>,
    calls: Vec<Value>,
}

impl Answer {
    /// Whether there is more of it than thoughts.
    fn says_something(&self) -> bool {
        self.content.is_some() || !self.calls.is_empty()
    }
}

struct Reader<'a> {
    names: &'a ToolNames,
    seal: &'a Seal,
    sees: bool,
    messages: Vec<Map<String, Value>>,
    answer: Answer,
    /// Names of the tools that were called, by the id of the call.
    called: HashMap<String, String>,
}

#[derive(Deserialize)]
struct MessageItem {
    role: String,
    #[serde(default)]
    content: Value,
}

#[derive(Deserialize)]
struct CallItem {
    call_id: String,
    name: String,
    namespace: Option<String>,
    #[serde(default)]
    arguments: Value,
    input: Option<String>,
}

#[derive(Deserialize)]
struct OutputItem {
    call_id: String,
    output: Value,
}

#[derive(Deserialize)]
struct ReasoningItem {
    #[serde(default)]
    content: Value,
    #[serde(default)]
    summary: Value,
    encrypted_content: Option<String>,
}

impl Reader<'_> {
    fn item(&mut self, field: &str, item: Map<String, Value>) -> Result<(), ApiError> {
        let kind = match item.get("type") {
            Some(Value::String(kind)) => kind.clone(),
            None | Some(Value::Null) => "message".to_owned(),
            Some(_) => return Err(refused(format_args!("`{field}.type` must be a string"))),
        };
        match kind.as_str() {
            "message" | "agent_message" => self.message(field, &kind, item),
            "function_call" | "custom_tool_call" => {
                self.call(read(field, item)?);
                Ok(())
            }
            "function_call_output" | "custom_tool_call_output" => {
                self.output(field, read(field, item)?)
            }
            "reasoning" => self.reasoning(field, read(field, item)?),
            // What other servers did by themselves: the messages around it say what came of it.
            "web_search_call"
            | "file_search_call"
            | "code_interpreter_call"
            | "image_generation_call"
            | "mcp_list_tools" => Ok(()),
            _ => Err(refused(format_args!(
                "`{field}.type` is `{kind}`, which this server cannot use: leave the item out"
            ))),
        }
    }

    fn message(
        &mut self,
        field: &str,
        kind: &str,
        mut item: Map<String, Value>,
    ) -> Result<(), ApiError> {
        if kind == "agent_message" {
            item.entry("role").or_insert("user".into());
        }
        let item: MessageItem = read(field, item)?;
        let content = format!("{field}.content");
        match item.role.as_str() {
            "assistant" => {
                let text = match &item.content {
                    Value::Null => String::new(),
                    content_given => texts(&content, content_given)?.concat(),
                };
                self.answer.content.get_or_insert_default().push_str(&text);
                Ok(())
            }
            "user" | "system" | "developer" => {
                let (rest, images) = self.split_images(&content, item.content)?;
                let mut texts = texts(&content, &rest)?;
                let value = match texts.as_slice() {
                    [_] if images.is_empty() => texts.remove(0).into(),
                    _ => in_order(texts, images),
                };
                self.add(&item.role, value);
                Ok(())
            }
            role => Err(refused(format_args!(
                "`{field}.role` must be `user`, `assistant`, `system` or `developer`. Given: `{role}`"
            ))),
        }
    }

    fn call(&mut self, item: CallItem) {
        let arguments = match item.input {
            Some(input) if item.arguments.is_null() => json!({ "input": input }),
            _ => item.arguments,
        };
        let name = self.names.flat(item.namespace.as_deref(), &item.name);
        self.called.insert(item.call_id.clone(), name.clone());
        self.answer.calls.push(json!({
            "id": item.call_id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }));
    }

    fn output(&mut self, field: &str, item: OutputItem) -> Result<(), ApiError> {
        let output = format!("{field}.output");
        let (rest, images) = self.split_images(&output, item.output)?;
        let text = texts(&output, &rest)?.concat();
        self.end_answer();
        let mut message = Map::new();
        message.insert("role".to_owned(), "tool".into());
        if let Some(name) = self.called.get(&item.call_id) {
            message.insert("name".to_owned(), name.as_str().into());
        }
        message.insert("tool_call_id".to_owned(), item.call_id.into());
        message.insert("content".to_owned(), text.into());
        self.messages.push(message);
        if !images.is_empty() {
            // Templates know no images in messages of tools.
            let images: Vec<Value> = images.into_iter().map(|(_, image)| image).collect();
            self.add("user", images.into());
        }
        Ok(())
    }

    /// Takes the images out of a list of parts, as parts of chat completions with their places in it.
    fn split_images(&self, field: &str, content: Value) -> Result<(Value, Images), ApiError> {
        let parts = match content {
            Value::Array(parts) if self.sees => parts,
            content => return Ok((content, Images::new())),
        };
        let (mut rest, mut images) = (Vec::with_capacity(parts.len()), Images::new());
        for (index, part) in parts.into_iter().enumerate() {
            if part["type"] != "input_image" {
                rest.push(part);
                continue;
            }
            let field = format!("{field}[{index}]");
            let url = part["image_url"].as_str().ok_or_else(|| {
                refused(format_args!(
                    "`{field}.image_url` must be a string; this server stores no files"
                ))
            })?;
            let image = images::part(&field, url.to_owned(), part.get("detail"));
            images.push((rest.len(), image));
        }
        Ok((rest.into(), images))
    }

    /// The reasoning itself where it is there, openly or sealed by this server; else its summary.
    fn reasoning(&mut self, field: &str, item: ReasoningItem) -> Result<(), ApiError> {
        let of = |key: &str, value: &Value| match value {
            Value::Null => Ok(String::new()),
            value => texts(&format!("{field}.{key}"), value).map(|texts| texts.concat()),
        };
        let mut text = of("content", &item.content)?;
        if text.is_empty() {
            let sealed = item.encrypted_content.as_deref();
            text = sealed.and_then(|s| self.seal.open(s)).unwrap_or_default();
        }
        if text.is_empty() {
            text = of("summary", &item.summary)?;
        }
        self.answer.reasoning.push_str(&text);
        Ok(())
    }

    fn add(&mut self, role: &str, content: Value) {
        self.end_answer();
        let mut message = Map::new();
        message.insert("role".to_owned(), role.into());
        message.insert("content".to_owned(), content);
        self.messages.push(message);
    }

    /// What the assistant wrote becomes a message, also if it has only thought: many templates want roles to alternate.
    fn end_answer(&mut self) {
        let answer = std::mem::take(&mut self.answer);
        if !answer.says_something() && answer.reasoning.is_empty() {
            return;
        }
        let Answer {
            reasoning,
            content,
            calls,
        } = answer;
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), content.unwrap_or_default().into());
        if !reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), reasoning.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), calls.into());
        }
        self.messages.push(message);
    }
}

fn read<T: DeserializeOwned>(field: &str, item: Map<String, Value>) -> Result<T, ApiError> {
    from_value(&Value::Object(item), field)
}

/// Images, each with the number of texts before it.
type Images = Vec<(usize, Value)>;

/// The parts of a content.
fn in_order(texts: Vec<String>, images: Images) -> Value {
    let mut parts: Vec<Value> = texts.iter().map(|text| part(text)).collect();
    for (place, image) in images.into_iter().rev() {
        parts.insert(place, image);
    }
    parts.into()
}

fn part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The texts of a content: a string, or a list of parts.
fn texts(field: &str, content: &Value) -> Result<Vec<String>, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(vec![text.clone()]),
        Value::Array(parts) => parts,
        _ => {
            return Err(refused(format_args!(
                "`{field}` must be a string or a list of parts"
            )));
        }
    };
    let text = |(index, part): (usize, &Value)| {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        let key = match kind {
            "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => "text",
            "refusal" => "refusal",
            _ => {
                return Err(refused(format_args!(
                    "`{field}[{index}].type` is `{kind}`: this server reads texts only"
                )));
            }
        };
        part.get(key)
            .and_then(Value::as_str)
            .map(str::to_owned)
            .ok_or_else(|| refused(format_args!("`{field}[{index}].{key}` must be a string")))
    };
    parts.iter().enumerate().map(text).collect()
}
