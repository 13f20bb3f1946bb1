//! Contents as a text or as a list of parts, as the template reads them.

use serde_json::{Value, json};

use crate::ChatTemplateError;

/// What a template reads as the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Content {
    #[default]
    Text,
    Parts,
    Both,
}

/// Which types of parts beside texts a template reads.
pub(super) struct Knows<'a> {
    /// Whether there are images, under the type `image`.
    pub(super) images: bool,
    pub(super) kinds: &'a dyn Fn(&str) -> bool,
}

/// One part of a content.
enum Part<'a> {
    Text(&'a str),
    /// Of a type that the template names and reads itself.
    Other,
}

impl Content {
    pub(super) fn of(self, text: &str) -> Value {
        match self {
            Self::Text | Self::Both => text.into(),
            Self::Parts => json!([{"type": "text", "text": text}]),
        }
    }

    /// The content of `message` for a template that reads the parts that it `knows`.
    pub(super) fn shape(
        self,
        message: &str,
        content: &Value,
        knows: &Knows<'_>,
    ) -> Result<Value, ChatTemplateError> {
        let field = format!("{message}.content");
        match content {
            Value::String(text) => Ok(self.of(text)),
            Value::Null => Ok(Value::Null),
            Value::Array(parts) => {
                let read = parts
                    .iter()
                    .enumerate()
                    .map(|(index, part)| read(&format!("{field}[{index}]"), part, knows));
                let read = read.collect::<Result<Vec<_>, _>>()?;
                let texts = read.iter().map(|part| match part {
                    Part::Text(text) => Some(*text),
                    Part::Other => None,
                });
                let joined = texts.collect::<Option<String>>();
                Ok(match (self, joined) {
                    (Self::Text, Some(joined)) => joined.into(),
                    _ => parts.iter().zip(&read).map(shaped).collect(),
                })
            }
            _ => Err(ChatTemplateError::input(
                field,
                "must be a text, a list of parts or null",
            )),
        }
    }
}

/// A part as templates know it: every text is of the type `text`.
fn shaped((given, read): (&Value, &Part<'_>)) -> Value {
    match read {
        Part::Text(text) if given["type"] != "text" => json!({"type": "text", "text": text}),
        _ => given.clone(),
    }
}

/// Under which key a part of this type has its text. OpenAI's APIs have names of their own for what a user and an
/// assistant said.
fn text_key(kind: &str) -> Option<&'static str> {
    match kind {
        "text" | "input_text" | "output_text" => Some("text"),
        "refusal" => Some("refusal"),
        _ => None,
    }
}

/// Reads a part. Those that are no text, but that the template knows, such as references to tools, are the template's to
/// read; those for which a prompt is not enough, such as images, are refused.
fn read<'a>(
    field: &str,
    part: &'a Value,
    knows: &Knows<'_>,
) -> Result<Part<'a>, ChatTemplateError> {
    let media = |kind: &str| ["image", "video", "audio"].iter().any(|m| kind.contains(m));
    let Some(kind) = part.get("type").and_then(Value::as_str) else {
        return Err(ChatTemplateError::input(
            format!("{field}.type"),
            "is missing; only `text` parts are supported",
        ));
    };
    if let Some(key) = text_key(kind) {
        let text = part.get(key).and_then(Value::as_str);
        return text
            .map(Part::Text)
            .ok_or_else(|| ChatTemplateError::input(format!("{field}.{key}"), "must be a string"));
    }
    if (knows.images && kind == "image") || ((knows.kinds)(kind) && !media(kind)) {
        return Ok(Part::Other);
    }
    Err(ChatTemplateError::input(
        format!("{field}.type"),
        format!(
            "is `{kind}`, which this model cannot read; only {} supported",
            if knows.images {
                "`text` and `image_url` parts are"
            } else {
                "`text` parts are"
            }
        ),
    ))
}
