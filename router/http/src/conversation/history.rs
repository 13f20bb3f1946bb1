//! Earlier messages in the form that the template reads.

use std::collections::HashMap;

use serde_json::{Value, json};
use text_generation_chat::arguments_object;
use text_generation_formats::ToolChoice;

use super::tools::ToolWishes;

/// What the model is told of tools after their list, where its template has no words for it.
const TOOL_PROMPT: &str = "To call one of these functions, answer with nothing but JSON of the form {\"name\": \
    function name, \"parameters\": object of arguments and their values}. Write values, not variables.";
/// The same where it may as well answer.
const OR_ANSWER: &str = " If none of them helps, answer in plain text.";

/// Writes calls and their results as texts, for a template that knows neither: what was called as the model has written
/// it, results as messages of the user. Messages of one role that follow each other through this become one, because
/// many templates want roles to alternate.
pub(super) fn tell_calls(messages: Vec<Value>) -> Vec<Value> {
    let mut names = HashMap::new();
    let mut told: Vec<Value> = Vec::new();
    let mut after_result = false;
    for mut message in messages {
        let result = message["role"] == "tool";
        if result {
            message = result_told(&message, &names);
        } else if message["tool_calls"].is_array() {
            tell(&mut message, &mut names);
        }
        let joins = (result || after_result) && message["role"] == "user";
        after_result = result;
        match told.last_mut() {
            Some(last) if joins && last["role"] == "user" => {
                append(last, "\n");
                join(last, message["content"].take());
            }
            _ => told.push(message),
        }
    }
    told
}

/// Moves the calls of a message into its content.
fn tell(message: &mut Value, names: &mut HashMap<String, String>) {
    let calls = message["tool_calls"].take();
    if let Some(object) = message.as_object_mut() {
        object.remove("tool_calls");
    }
    let mut lines = Vec::new();
    for call in calls.as_array().into_iter().flatten() {
        let function = match &call["function"] {
            function @ Value::Object(_) => function,
            _ => call,
        };
        let name = function["name"].as_str().unwrap_or_default();
        if let Some(id) = call["id"].as_str() {
            names.insert(id.to_owned(), name.to_owned());
        }
        let parameters = arguments_object(&function["arguments"]);
        lines.push(json!({"name": name, "parameters": parameters}).to_string());
    }
    let before = text_of(&message["content"]);
    let separator = if before.is_empty() { "" } else { "\n" };
    message["content"] = format!("{before}{separator}{}", lines.join("\n")).into();
}

/// The message of the user that tells a result.
fn result_told(message: &Value, names: &HashMap<String, String>) -> Value {
    let id = message["tool_call_id"].as_str().unwrap_or_default();
    let known = names.get(id).map(String::as_str);
    let name = known.or_else(|| message["name"].as_str());
    let head = match name {
        Some(name) => format!("Result of {name}: "),
        None => "Result: ".to_owned(),
    };
    let mut told = json!({"role": "user", "content": head});
    join(&mut told, message["content"].clone());
    told
}

/// Puts a content behind that of a message. Both are one text where they are nothing but texts.
fn join(message: &mut Value, content: Value) {
    let is_text = |part: &Value| part["text"].is_string();
    match content {
        Value::Array(parts) if !parts.iter().all(is_text) => {
            let before = message["content"].take();
            let mut all = match before {
                Value::Array(parts) => parts,
                text => vec![json!({"type": "text", "text": text})],
            };
            all.extend(parts);
            message["content"] = all.into();
        }
        content => append(message, &text_of(&content)),
    }
}

/// The texts of a content one after the other.
pub(super) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

fn append(message: &mut Value, text: &str) {
    match &mut message["content"] {
        Value::Array(parts) => parts.push(json!({"type": "text", "text": text})),
        content => {
            let before = content.as_str().unwrap_or_default();
            *content = format!("{before}{text}").into();
        }
    }
}

/// Tells the model of its tools in the first message of the user, where it stays while the conversation grows, so that
/// the next turn finds its prompt cached. TGI writes the same after the last message.
pub(super) fn tell_tools(messages: &mut [Value], wishes: &ToolWishes) {
    let list: Value = wishes.tools.iter().map(|tool| tool.json.clone()).collect();
    let given = wishes.prompt.as_ref().filter(|prompt| !prompt.is_empty());
    let instruction = match (given, &wishes.choice) {
        (Some(prompt), _) => prompt.clone(),
        (None, ToolChoice::Auto) => format!("{TOOL_PROMPT}{OR_ANSWER}"),
        (None, _) => TOOL_PROMPT.to_owned(),
    };
    let user = messages
        .iter()
        .position(|message| message["role"] == "user");
    if let Some(message) = messages.get_mut(user.unwrap_or(0)) {
        append(message, &format!("\n---\n{list}\n{instruction}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_results_are_told_as_texts() {
        let call = |id: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": "add", "arguments": arguments}});
        let messages = json!([
            {"role": "user", "content": "1+2 and 3+4?"},
            {"role": "assistant", "content": null, "tool_calls": [call("a", json!("{\"x\":1}")), call("b", json!({"x": 3}))]},
            {"role": "tool", "tool_call_id": "a", "content": "3"},
            {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "7"}]},
            {"role": "user", "content": [{"type": "text", "text": "So?"}]},
        ]);
        let told = tell_calls(messages.as_array().expect("a list").clone());
        assert_eq!(
            Value::Array(told),
            json!([
                {"role": "user", "content": "1+2 and 3+4?"},
                {"role": "assistant", "content": "{\"name\":\"add\",\"parameters\":{\"x\":1}}\n{\"name\":\"add\",\"parameters\":{\"x\":3}}"},
                {"role": "user", "content": "Result of add: 3\nResult of add: 7\nSo?"},
            ])
        );
    }
    #[test]
    fn images_stay_parts() {
        let messages = json!([
            {"role": "tool", "tool_call_id": "a", "content": "3"},
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "So?"}]},
        ]);
        let told = tell_calls(messages.as_array().expect("a list").clone());
        let content = json!([
            {"type": "text", "text": "Result: 3\n"},
            {"type": "image"},
            {"type": "text", "text": "So?"},
        ]);
        assert_eq!(
            Value::Array(told),
            json!([{"role": "user", "content": content}])
        );
    }
}
