//! The filter `tojson` as transformers defines it: Python's `json.dumps`, nothing escaped for HTML.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::limits::{charge, written};
use super::python;

/// Options of `json.dumps`, in the order in which the filter takes them.
struct Options {
    ensure_ascii: bool,
    /// What one level is indented by; None for one line.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value|tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let options = Options::new(&args, &kwargs)?;
    kwargs.assert_all_used()?;
    let indent = options.indent.as_ref().map_or(0, String::len);
    charge(written(value)?.saturating_mul(1 + indent))?;
    let mut text = String::new();
    options.write(&mut text, value, 0)?;
    charge(text.len())?;
    Ok(text)
}

impl Options {
    fn new(args: &[Value], kwargs: &Kwargs) -> Result<Self, Error> {
        let option = |index, name| python::argument(args, kwargs, index, name);
        let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        let indent = option(1, "indent")?.map(|value| match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(value.as_usize().unwrap_or(0).min(MOST_INDENT)),
        });
        let comma = if indent.is_some() { "," } else { ", " };
        let (item_separator, key_separator) = match option(2, "separators")? {
            Some(pair) => (text_at(&pair, 0)?, text_at(&pair, 1)?),
            None => (comma.to_owned(), ": ".to_owned()),
        };
        Ok(Self {
            ensure_ascii: is_true(option(0, "ensure_ascii")?),
            indent,
            item_separator,
            key_separator,
            sort_keys: is_true(option(3, "sort_keys")?),
        })
    }

    fn write(&self, text: &mut String, value: &Value, level: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => text.push_str("null"),
            ValueKind::Bool => text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => text.push_str(&number(value)),
            ValueKind::String => self.quote(text, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?;
                self.bracket(text, ['[', ']'], level, items, |text, item| {
                    self.write(text, &item, level + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.bracket(text, ['{', '}'], level, keys.into_iter(), |text, key| {
                    self.quote(text, &key_text(&key)?);
                    text.push_str(&self.key_separator);
                    self.write(text, &value.get_item(&key)?, level + 1)
                })?;
            }
            other => return Err(unserializable(other)),
        }
        Ok(())
    }

    /// Entries between brackets; an empty list takes no line.
    fn bracket(
        &self,
        text: &mut String,
        [open, close]: [char; 2],
        level: usize,
        items: impl Iterator<Item = Value>,
        mut write: impl FnMut(&mut String, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        text.push(open);
        let mut empty = true;
        for item in items {
            if !empty {
                text.push_str(&self.item_separator);
            }
            empty = false;
            self.new_line(text, level + 1);
            write(text, item)?;
        }
        if !empty {
            self.new_line(text, level);
        }
        text.push(close);
        Ok(())
    }

    fn new_line(&self, text: &mut String, level: usize) {
        if let Some(indent) = &self.indent {
            text.push('\n');
            (0..level).for_each(|_| text.push_str(indent));
        }
    }

    fn quote(&self, text: &mut String, string: &str) {
        text.push('"');
        for character in string.chars() {
            match character {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                _ if character < ' ' || (self.ensure_ascii && character > '~') => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(text, "\\u{unit:04x}");
                    }
                }
                _ => text.push(character),
            }
        }
        text.push('"');
    }
}

/// Wider indentation is a bomb.
const MOST_INDENT: usize = 64;

fn text_at(pair: &Value, index: usize) -> Result<String, Error> {
    let item = pair.get_item_by_index(index)?;
    item.as_str().map(str::to_owned).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            "tojson: `separators` must be a pair of strings",
        )
    })
}

fn unserializable(kind: ValueKind) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("tojson: a value of type {kind} is not JSON serializable"),
    )
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(key.is_true().to_string()),
        ValueKind::Number => Ok(number(key)),
        other => Err(unserializable(other)),
    }
}

/// A number as `json.dumps` writes it.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() && float.is_nan() => "NaN".to_owned(),
        Ok(float) if !value.is_integer() && float.is_infinite() => {
            if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
        }
        _ => python::printable(value).to_string(),
    }
}
