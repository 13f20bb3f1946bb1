//! Finds chat templates and special tokens among the files of a model.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};

use super::{ChatTemplateError, DEFAULT};

/// No configuration of a tokenizer is larger; the largest list a hundred thousand added tokens.
const MOST_BYTES: u64 = 64 << 20;

/// How the file begins that Git LFS has in the place of one that was not fetched.
const LFS_POINTER: &str = "version https://git-lfs.github.com/spec/";

/// What a model folder says about chats.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Files {
    /// Sources by name.
    pub templates: BTreeMap<String, String>,
    /// Values of `bos_token` and its like.
    pub special_tokens: Map<String, Value>,
}

/// Reads `folder`, where there is one; see [`ChatTemplate::load`](super::ChatTemplate::load) for which file counts.
pub(super) fn read(
    folder: Option<&Path>,
    tokenizer_config_path: Option<&Path>,
) -> Result<Files, ChatTemplateError> {
    let given = match tokenizer_config_path {
        Some(path) => Some(json(path)?.ok_or_else(|| file_error(path, "does not exist"))?),
        None => None,
    };
    let of_folder = |name: &str| match folder {
        Some(folder) => json(&folder.join(name)).map(Option::unwrap_or_default),
        None => Ok(Map::new()),
    };
    let config = of_folder("tokenizer_config.json")?;
    let mut special_tokens = Map::new();
    // Older models repeat their special tokens in a file of their own.
    let map = of_folder("special_tokens_map.json")?;
    for source in [Some(&map), Some(&config), given.as_ref()]
        .into_iter()
        .flatten()
    {
        special_tokens.extend(tokens(source));
    }
    Ok(Files {
        templates: templates(folder, tokenizer_config_path, given.as_ref(), &config)?,
        special_tokens,
    })
}

fn templates(
    folder: Option<&Path>,
    given_path: Option<&Path>,
    given: Option<&Map<String, Value>>,
    config: &Map<String, Value>,
) -> Result<BTreeMap<String, String>, ChatTemplateError> {
    if let (Some(path), Some(given)) = (given_path, given) {
        let found = named(path, given)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    let Some(folder) = folder else {
        return Ok(BTreeMap::new());
    };
    let found = jinja(folder)?;
    if !found.is_empty() {
        return Ok(found);
    }
    let path = folder.join("chat_template.json");
    if let Some(object) = json(&path)? {
        let found = named(&path, &object)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    named(&folder.join("tokenizer_config.json"), config)
}

/// `chat_template.jinja`, and others by name in a folder beside it.
fn jinja(folder: &Path) -> Result<BTreeMap<String, String>, ChatTemplateError> {
    let mut found = BTreeMap::new();
    if let Some(source) = text(&folder.join("chat_template.jinja"))? {
        found.insert(DEFAULT.to_owned(), source);
    }
    let Ok(entries) = fs::read_dir(folder.join("additional_chat_templates")) else {
        return Ok(found);
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_stem().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|_| path.extension().is_some_and(|kind| kind == "jinja"))
            && let Some(source) = text(&path)?
        {
            found.insert(name.to_owned(), source);
        }
    }
    Ok(found)
}

/// The key `chat_template`: a text, or a list of `{"name", "template"}`.
fn named(
    path: &Path,
    object: &Map<String, Value>,
) -> Result<BTreeMap<String, String>, ChatTemplateError> {
    match object.get("chat_template") {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::String(source)) => Ok([(DEFAULT.to_owned(), source.clone())].into()),
        Some(Value::Array(list)) => list
            .iter()
            .map(|entry| {
                let text = |key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
                text("name").zip(text("template"))
            })
            .collect::<Option<_>>()
            .ok_or_else(|| {
                file_error(
                    path,
                    "`chat_template` must list objects with `name` and `template`",
                )
            }),
        Some(_) => Err(file_error(path, "`chat_template` must be a text or a list")),
    }
}

/// `bos_token` and its like, each a text or an object with `content`, and tokens that a model names itself.
fn tokens(object: &Map<String, Value>) -> Map<String, Value> {
    let is_named = |(name, _): &(&String, &Value)| name.ends_with("_token");
    let own = ["extra_special_tokens", "model_specific_special_tokens"]
        .into_iter()
        .filter_map(|key| object.get(key).and_then(Value::as_object))
        .flatten();
    object
        .iter()
        .filter(is_named)
        .chain(own)
        .filter_map(|(name, value)| {
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((name.clone(), text.into()))
        })
        .collect()
}

/// A JSON object in a file; None where there is no such file.
pub(super) fn json(path: &Path) -> Result<Option<Map<String, Value>>, ChatTemplateError> {
    let Some(text) = text(path)? else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| file_error(path, &format!("is not a JSON object: {error}")))
}

fn text(path: &Path) -> Result<Option<String>, ChatTemplateError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Ok(metadata) if metadata.len() > MOST_BYTES => {
            return Err(file_error(
                path,
                &format!("is larger than {MOST_BYTES} bytes"),
            ));
        }
        // Reading says what is wrong.
        _ => {}
    }
    let text = fs::read_to_string(path).map_err(|error| file_error(path, &error.to_string()))?;
    if text.starts_with(LFS_POINTER) {
        return Err(file_error(
            path,
            "is only a pointer of Git LFS, not the file itself: run `git lfs pull` in the model folder",
        ));
    }
    Ok(Some(text))
}

/// Clients see these: the name of a file, not where it lies.
fn file_error(path: &Path, reason: &str) -> ChatTemplateError {
    let name = path.file_name().unwrap_or(path.as_os_str());
    ChatTemplateError::File {
        file: name.to_string_lossy().into_owned(),
        reason: reason.to_owned(),
    }
}
