//! System messages for templates that know one of them, at the beginning.
//!
//! Agents send several, under the names `system` and `developer`, and in the middle of a conversation. They stay where
//! they are as long as the template takes them: a prompt that changes only at its end finds its beginning in the cache.

use serde_json::{Map, Value};

/// Leading system messages become one. `developer` is `system` to a template that does not name it.
pub(crate) fn joined(messages: &[Value], names_developer: bool) -> Vec<Value> {
    let mut joined: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        let mut message = message.clone();
        if !names_developer && role(&message) == Some("developer") {
            message["role"] = "system".into();
        }
        match joined.as_mut_slice() {
            [first] if is_system(first) && role(first) == role(&message) => append(first, &message),
            _ => joined.push(message),
        }
    }
    joined
}

/// System messages behind the first message become part of the user's message before or after them. None where there
/// are none.
pub(crate) fn folded(messages: &[Value]) -> Option<Vec<Value>> {
    if !messages.iter().skip(1).any(is_system) {
        return None;
    }
    let mut folded: Vec<Value> = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let mut message = message.clone();
        let instruction = index > 0 && is_system(&message);
        if instruction {
            message["role"] = "user".into();
        }
        let after_instruction = index > 1 && is_system(&messages[index - 1]);
        let joins = instruction || after_instruction;
        match folded.last_mut() {
            Some(last) if joins && role(last) == Some("user") && role(&message) == Some("user") => {
                append(last, &message);
            }
            _ => folded.push(message),
        }
    }
    Some(folded)
}

fn role(message: &Value) -> Option<&str> {
    message.get("role").and_then(Value::as_str)
}

fn is_system(message: &Value) -> bool {
    matches!(role(message), Some("system" | "developer"))
}

/// Adds the content of `message` to that of `to`, as a paragraph of its own.
fn append(to: &mut Value, message: &Value) {
    let added = message.get("content").cloned().unwrap_or_default();
    let content = to.get("content").cloned().unwrap_or_default();
    to["content"] = match (content, added) {
        (Value::Null, added) => added,
        (content, Value::Null) => content,
        (Value::String(text), Value::String(added)) => format!("{text}\n\n{added}").into(),
        (content, added) => {
            let mut parts = parts(content);
            parts.push(part("\n\n".to_owned()));
            parts.extend(self::parts(added));
            parts.into()
        }
    };
}

fn parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        Value::String(text) => vec![part(text)],
        _ => Vec::new(),
    }
}

fn part(text: String) -> Value {
    let mut part = Map::new();
    part.insert("type".to_owned(), "text".into());
    part.insert("text".to_owned(), text.into());
    part.into()
}
