//! Thoughts of earlier answers under the names by which templates look for them.

use serde_json::{Map, Value};

use super::history::text_of;

/// Takes thoughts that are parts of an assistant's content out of it: most templates know them as a key of the message.
pub(super) fn take_out(messages: &mut [Value]) {
    for message in messages.iter_mut().filter_map(Value::as_object_mut) {
        if message.get("role").is_none_or(|role| role != "assistant") {
            continue;
        }
        let Some(Value::Array(parts)) = message.get_mut("content") else {
            continue;
        };
        let mut thoughts = String::new();
        parts.retain(|part| match thought(part) {
            Some(thought) => {
                thoughts.push_str(&thought);
                false
            }
            None => true,
        });
        let named = ["reasoning_content", "reasoning"].into_iter();
        let known = named
            .filter_map(|key| message.get(key))
            .any(Value::is_string);
        if !thoughts.is_empty() && !known {
            message.insert("reasoning_content".to_owned(), thoughts.into());
        }
    }
}

/// What a part says, if it is a thought. One that only its author can read says nothing.
fn thought(part: &Value) -> Option<String> {
    let said = match part["type"].as_str()? {
        "thinking" => &part["thinking"],
        "reasoning" => part.get("reasoning").unwrap_or(&part["text"]),
        "redacted_thinking" => &Value::Null,
        _ => return None,
    };
    Some(text_of(said))
}

/// Gives thoughts every name that templates read.
pub(super) fn name(messages: &mut [Value]) {
    for message in messages.iter_mut().filter_map(Value::as_object_mut) {
        let given = ["reasoning_content", "reasoning"]
            .into_iter()
            .find_map(|key| message.get(key).filter(|value| value.is_string()));
        let Some(reasoning) = given.cloned() else {
            continue;
        };
        // Templates that read `thinking` refuse it beside a content.
        if message
            .get("content")
            .is_none_or(|it| text_of(it).is_empty())
        {
            set_default(message, "thinking", &reasoning);
        }
        set_default(message, "reasoning", &reasoning);
        set_default(message, "reasoning_content", &reasoning);
    }
}

fn set_default(message: &mut Map<String, Value>, key: &str, value: &Value) {
    let slot = message.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value.clone();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reasoning_has_every_name_that_templates_read() {
        let mut message = [json!({"role": "assistant", "content": "x", "reasoning": "r"})];
        name(&mut message);
        assert_eq!(message[0]["reasoning_content"], "r");
        assert!(message[0].get("thinking").is_none());
        // Many clients write a content beside calls, and nothing in it.
        for nothing in [
            json!(null),
            json!(""),
            json!([]),
            json!([{"type": "text", "text": ""}]),
        ] {
            let mut message = [
                json!({"role": "assistant", "content": nothing, "reasoning_content": "r", "tool_calls": []}),
            ];
            name(&mut message);
            assert_eq!(message[0]["thinking"], "r", "{nothing}");
            assert_eq!(message[0]["reasoning"], "r", "{nothing}");
        }
    }

    #[test]
    fn thoughts_that_are_parts_of_a_content_are_taken_out_of_it() {
        let text = json!({"type": "text", "text": "a"});
        for (thought, reasoning) in [
            (
                json!({"type": "thinking", "thinking": "t", "signature": "s"}),
                json!("t"),
            ),
            (
                json!({"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}),
                json!("t"),
            ),
            (json!({"type": "reasoning", "text": "t"}), json!("t")),
            (
                json!({"type": "redacted_thinking", "data": "x"}),
                json!(null),
            ),
        ] {
            let mut message = [json!({"role": "assistant", "content": [thought, text]})];
            take_out(&mut message);
            assert_eq!(message[0]["content"], json!([text]));
            assert_eq!(message[0]["reasoning_content"], reasoning);
        }
    }
}
