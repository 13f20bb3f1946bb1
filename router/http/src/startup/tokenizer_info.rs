//! The answer of `/tokenizer_info`: the configuration of the tokenizer, for clients that render chats themselves.

use std::path::Path;

use serde_json::{Map, Value};

/// What its class is called where the files of the model do not say.
const ANY_CLASS: &str = "PreTrainedTokenizerFast";

/// The `tokenizer_config.json` of the model in `folder`, and what `given`, a file of the same kind, says instead.
///
/// Special tokens are texts, also where the file describes them. `template` is the chat template that is used, empty for
/// none; `eos_token` is that of the model, for a file that names none.
pub fn tokenizer_info(
    folder: &Path,
    given: Option<&Path>,
    template: &str,
    eos_token: Option<String>,
) -> Map<String, Value> {
    let mut info = Map::new();
    let of_folder = ["special_tokens_map.json", "tokenizer_config.json"];
    let files = of_folder.map(|name| folder.join(name));
    for path in files.iter().map(AsRef::as_ref).chain(given) {
        info.extend(object(path));
    }
    for (name, value) in &mut info {
        if name.ends_with("_token")
            && let Some(content) = value.get_mut("content")
        {
            *value = content.take();
        }
    }
    info.entry("tokenizer_class").or_insert(ANY_CLASS.into());
    if info.get("eos_token").is_none_or(Value::is_null) {
        info.insert("eos_token".to_owned(), eos_token.into());
    }
    info.remove("chat_template");
    if !template.is_empty() {
        info.insert("chat_template".to_owned(), template.into());
    }
    info
}

/// Empty where there is no such file, or none that can be read: who needs it to serve has said so.
fn object(path: &Path) -> Map<String, Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn special_tokens_are_texts_and_the_template_is_the_one_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: Value| {
            let path = folder.path().join(name);
            std::fs::write(&path, value.to_string()).unwrap();
            path
        };
        write(
            "special_tokens_map.json",
            json!({"pad_token": "<pad>", "bos_token": "old"}),
        );
        write(
            "tokenizer_config.json",
            json!({
                "bos_token": {"content": "<s>", "lstrip": false}, "chat_template": "a", "eos_token": null,
                "model_max_length": 4096,
            }),
        );
        let eos = Some("</s>".to_owned());
        let info = tokenizer_info(folder.path(), None, "b", eos.clone());
        assert_eq!(
            Value::Object(info),
            json!({
                "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 4096,
                "tokenizer_class": ANY_CLASS, "chat_template": "b",
            })
        );
        let given = write(
            "given.json",
            json!({"eos_token": "<end>", "tokenizer_class": "Mine"}),
        );
        let info = tokenizer_info(folder.path(), Some(&given), "", eos);
        assert_eq!(
            (
                &info["eos_token"],
                &info["tokenizer_class"],
                info.get("chat_template")
            ),
            (&json!("<end>"), &json!("Mine"), None)
        );
    }
}
