//! Grammars in Lark.

use serde_json::Value;

/// A grammar of these texts and nothing else.
pub(super) fn choice(choices: &[String]) -> String {
    let texts: Vec<String> = choices
        .iter()
        .map(|text| Value::from(text.as_str()).to_string())
        .collect();
    format!("start: {}", texts.join(" | "))
}
