//! Check for tokenizers that would make far more of a text than it is.
//!
//! The parts of a `tokenizer.json` rewrite a text one after the other. A few dozen that each write a letter twice fill
//! any memory, some already while the file is loaded: its added tokens are rewritten then.

use serde::Deserialize;
use serde_json::Value;

use super::TokenizerError;

/// How many times as long as it was a text may become. Those in use make less than 20.
const MOST: f64 = 1024.0;
/// Bytes of a file. The largest in use have some 35 million.
const MOST_BYTES: usize = 512 << 20;
/// What Unicode's normal forms make of one character.
const NORMAL_FORM: f64 = 18.0;

/// The parts that rewrite texts.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
}

/// # Errors
/// A tokenizer that is too large, or whose parts together write too much. What is no tokenizer at all is for the library
/// to say.
pub(super) fn check(json: &str) -> Result<(), TokenizerError> {
    if json.len() > MOST_BYTES {
        let given = json.len();
        let reason = format!("the file has {given} bytes; at most {MOST_BYTES} are read");
        return Err(TokenizerError::Load(reason));
    }
    let Ok(parts) = serde_json::from_str::<Parts>(json) else {
        return Ok(());
    };
    for (name, part) in [
        ("normalizer", &parts.normalizer),
        ("pre_tokenizer", &parts.pre_tokenizer),
        ("post_processor", &parts.post_processor),
        ("decoder", &parts.decoder),
    ] {
        if growth(part) > MOST {
            let reason = format!(
                "its `{name}` can make a text more than {MOST} times as long: this is no tokenizer to serve"
            );
            return Err(TokenizerError::Load(reason));
        }
    }
    Ok(())
}

/// How many times as long as it was a text can become, about.
fn growth(part: &Value) -> f64 {
    let inside = ["normalizers", "pretokenizers", "processors", "decoders"];
    let inside = inside.iter().find_map(|key| part.get(key)?.as_array());
    if let Some(parts) = inside {
        return parts.iter().map(growth).product();
    }
    match part.get("type").and_then(Value::as_str) {
        Some("Replace") => replaced(part),
        Some("NFKC" | "NFKD" | "NFC" | "NFD" | "Precompiled") => NORMAL_FORM,
        Some("ByteLevel" | "Lowercase") => 2.0,
        Some("BertNormalizer" | "Metaspace") => 3.0,
        Some("TemplateProcessing") => templated(part),
        _ => 1.0,
    }
}

fn replaced(part: &Value) -> f64 {
    let content = part.get("content").and_then(Value::as_str);
    let content = content.map_or(0, str::len);
    let pattern = |kind| part.get("pattern")?.get(kind)?.as_str();
    let each = match (pattern("String"), pattern("Regex")) {
        (Some(text), _) if !text.is_empty() => content as f64 / text.len() as f64,
        // It takes at least one letter for each that it writes.
        (_, Some(regex)) if !matches_nothing(regex) => content as f64,
        _ => (content + 1) as f64,
    };
    each.max(1.0)
}

/// Whether a regex might match between two letters.
fn matches_nothing(regex: &str) -> bool {
    regex.contains(['*', '?', '|', '^', '$'])
        || ["\\b", "\\B", "\\A", "\\z", "\\Z", "\\G", "{0", "{,", "()"]
            .iter()
            .any(|sign| regex.contains(sign))
}

/// The text may stand in a template more than once.
fn templated(part: &Value) -> f64 {
    let single = part.get("single").and_then(Value::as_array);
    let pieces = single.into_iter().flatten();
    pieces
        .filter(|piece| piece.get("Sequence").is_some())
        .count() as f64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokenizers_in_use_may_rewrite_texts() {
        let parts = json!({
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": ""},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                {"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            ]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}]},
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {}}, {"Sequence": {}}]},
            "decoder": null,
        });
        assert_eq!(check(&parts.to_string()), Ok(()));
        assert_eq!(check("no JSON"), Ok(()));
    }

    #[test]
    fn texts_that_double_again_and_again_are_refused() {
        let doubling = |regex: bool| match regex {
            true => json!({"type": "Replace", "pattern": {"Regex": "(?=a)"}, "content": "a"}),
            false => json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}),
        };
        let long =
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(4096)});
        let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
        for (name, part) in [
            (
                "normalizer",
                json!({"type": "Sequence", "normalizers": vec![doubling(false); 40]}),
            ),
            (
                "normalizer",
                json!({"type": "Sequence", "normalizers": vec![doubling(true); 40]}),
            ),
            ("normalizer", long.clone()),
            (
                "pre_tokenizer",
                json!({"type": "Sequence", "pretokenizers": vec![json!({"type": "ByteLevel"}); 40]}),
            ),
            (
                "post_processor",
                json!({"type": "TemplateProcessing", "single": vec![sequence; 2000]}),
            ),
            (
                "decoder",
                json!({"type": "Sequence", "decoders": vec![doubling(false); 40]}),
            ),
        ] {
            let refused = check(&json!({name: part}).to_string()).expect_err(name);
            assert!(
                refused.to_string().contains(&format!("`{name}`")),
                "{refused}"
            );
        }
    }
}
