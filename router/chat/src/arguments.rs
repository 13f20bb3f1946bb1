//! Arguments of calls as the object that templates walk through, whatever a client has sent back.

use serde_json::{Value, json};

use super::surrogates::mend_surrogates;

/// Under this key stand arguments that are no JSON object: mostly text that was cut at the limit of tokens. Anthropic's
/// documentation names the key for clients that meet such input in a stream.
const INVALID_JSON: &str = "INVALID_JSON";

/// An object that says what `arguments` say: themselves, or the object that their text is. Nothing is an empty object;
/// anything else stands as text under the key `INVALID_JSON`.
pub fn arguments_object(arguments: &Value) -> Value {
    let text = match arguments {
        Value::Object(_) => return arguments.clone(),
        Value::Null => return json!({}),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.trim().is_empty() {
        return json!({});
    }
    // They stand in a string, in which the escapes of the body have not been mended.
    let mut mended = text.clone().into_bytes();
    mend_surrogates(&mut mended);
    match serde_json::from_slice(&mended) {
        Ok(object @ Value::Object(_)) => object,
        Ok(Value::Null) => json!({}),
        _ => json!({ INVALID_JSON: text }),
    }
}

/// The JSON text of `arguments`, for templates that write it as it is. What is no JSON stays as it was sent.
pub(super) fn arguments_text(arguments: &Value) -> Value {
    match arguments {
        Value::Null => "{}".into(),
        Value::String(text) if text.trim().is_empty() => "{}".into(),
        Value::String(_) => arguments.clone(),
        other => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_becomes_an_object() {
        let invalid = |text: &str| json!({ "INVALID_JSON": text });
        for (arguments, object) in [
            (json!({"a": 1}), json!({"a": 1})),
            (
                json!("{\"b\": 1, \"a\": [2.0]}"),
                json!({"b": 1, "a": [2.0]}),
            ),
            (json!(null), json!({})),
            (json!(" \n"), json!({})),
            (json!("null"), json!({})),
            (json!("{\"a\": "), invalid("{\"a\": ")),
            (
                json!(r#"{"a": "x\ud83d", "b": "\ud83d\ude00"}"#),
                json!({"a": "x\u{fffd}", "b": "\u{1f600}"}),
            ),
            (
                json!("{\"a\": \"say \"hi\"\"}"),
                invalid("{\"a\": \"say \"hi\"\"}"),
            ),
            (json!("[1, 2]"), invalid("[1, 2]")),
            (json!([1, 2]), invalid("[1,2]")),
            (json!("\"text\""), invalid("\"text\"")),
            (json!("text"), invalid("text")),
            (json!(7), invalid("7")),
            (json!(true), invalid("true")),
        ] {
            assert_eq!(arguments_object(&arguments), object, "{arguments}");
        }
    }
}
