//! Reading of the fields of a JSON object by hand, with errors that name the field.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The fields of the JSON object, each of which is there once.
pub struct Fields(pub Map<String, Value>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldsOnce)
    }
}

struct FieldsOnce;

impl<'de> Visitor<'de> for FieldsOnce {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Map::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if fields.contains_key(&name) {
                let name = shown(name);
                return Err(A::Error::custom(format_args!(
                    "`{name}` is there twice: give it once"
                )));
            }
            fields.insert(name, value);
        }
        Ok(Fields(fields))
    }
}

/// Characters of a value that a message repeats.
const SHOWN_CHARACTERS: usize = 60;

/// The beginning of a value that is long.
pub fn shown(value: impl fmt::Display) -> String {
    let value = value.to_string();
    match value.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value,
    }
}

/// Takes a text that is not empty.
pub fn text(fields: &mut Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match fields.remove(name) {
        None => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
        Some(other) => Err(format!("`{name}` must be a text. Given: {}", shown(other))),
    }
}

/// Takes a whole number of `range`.
pub fn number(
    fields: &mut Map<String, Value>,
    name: &str,
    range: RangeInclusive<u64>,
) -> Result<Option<u64>, String> {
    let Some(given) = fields.remove(name) else {
        return Ok(None);
    };
    match given.as_u64().filter(|number| range.contains(number)) {
        Some(number) => Ok(Some(number)),
        None if *range.end() == u64::MAX => Err(format!(
            "`{name}` must be a whole number from 1 on. Given: {}",
            shown(given)
        )),
        None => Err(format!(
            "`{name}` must be a whole number from {} to {}. Given: {}",
            range.start(),
            range.end(),
            shown(given)
        )),
    }
}
