//! Types of arguments in a JSON schema, for formats that write them without quotes.

use serde_json::Value;

use crate::json;

/// References are followed to this depth.
const MAX_DEPTH: usize = 16;
/// Alternatives that are looked at: they may refer to themselves, so that there are ever more of them.
const MAX_PARTS: usize = 256;

/// The types by the names that schemas give them.
const NAMES: [(&str, Types); 7] = [
    ("string", Types::TEXT),
    ("integer", Types::INTEGER),
    ("number", Types::NUMBER),
    ("boolean", Types::BOOLEAN),
    ("null", Types::NULL),
    ("object", Types::OBJECT),
    ("array", Types::ARRAY),
];

/// A set of JSON types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub const NONE: Self = Self(0);
    pub const TEXT: Self = Self(1);
    pub const INTEGER: Self = Self(1 << 1);
    pub const NUMBER: Self = Self(1 << 2);
    pub const BOOLEAN: Self = Self(1 << 3);
    pub const NULL: Self = Self(1 << 4);
    pub const OBJECT: Self = Self(1 << 5);
    pub const ARRAY: Self = Self(1 << 6);
    pub const ANY_BUT_TEXT: Self = Self(0x7e);
    pub const NUMBERS: Self = Self(0x6);
    /// Numbers, booleans and null.
    pub const SCALARS: Self = Self(0x1e);

    fn named(name: &str) -> Self {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map_or(Self::NONE, |(_, types)| *types)
    }

    pub fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::TEXT,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub fn is_unknown(self) -> bool {
        self == Self::NONE
    }

    pub fn is_text_or_null(self) -> bool {
        self == Self::TEXT.and(Self::NULL)
    }
}

/// The types of the argument `key`. Unknown arguments are texts.
pub(crate) fn argument(schema: Option<&Value>, key: &str) -> Types {
    let types = schema
        .and_then(|root| Some(types(property(root, key)?, root)))
        .unwrap_or(Types::NONE);
    if types == Types::NONE {
        Types::TEXT
    } else {
        types
    }
}

/// The schema of the property `key` of the object that `root` describes.
pub(crate) fn property<'a>(root: &'a Value, key: &str) -> Option<&'a Value> {
    resolve(root, root, 0).get("properties")?.get(key)
}

/// Whether an object of this schema must have a member of this name.
pub(crate) fn requires(object: &Value, key: &str) -> bool {
    let required = object.get("required").and_then(Value::as_array);
    required.is_some_and(|keys| keys.iter().any(|required| required == key))
}

/// A step into a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step<'a> {
    Member(&'a str),
    Item,
}

/// The schema of what these steps lead to, if the schema `root` tells it.
pub(crate) fn at<'a>(root: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(root, |schema, step| {
        parts(schema, root).into_iter().find_map(|part| match step {
            Step::Member(name) => {
                let named = part.get("properties").and_then(|all| all.get(name));
                named.or_else(|| {
                    part.get("additionalProperties")
                        .filter(|rest| rest.is_object())
                })
            }
            Step::Item => part.get("items").filter(|items| items.is_object()),
        })
    })
}

/// Follows references inside the document.
pub(crate) fn resolve<'a>(schema: &'a Value, root: &'a Value, depth: usize) -> &'a Value {
    let target = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|reference| root.pointer(reference.strip_prefix('#')?));
    match target {
        Some(target) if depth < MAX_DEPTH => resolve(target, root, depth + 1),
        _ => schema,
    }
}

/// A schema and its alternatives, with those that these have in turn.
fn parts<'a>(schema: &'a Value, root: &'a Value) -> Vec<&'a Value> {
    let mut parts = vec![resolve(schema, root, 0)];
    let mut next = 0;
    while let Some(part) = parts.get(next) {
        let alternatives: Vec<&Value> = ["anyOf", "oneOf", "allOf"]
            .iter()
            .filter_map(|union| part.get(union)?.as_array())
            .flatten()
            .take(MAX_PARTS - parts.len())
            .map(|part| resolve(part, root, 0))
            .collect();
        parts.extend(alternatives);
        next += 1;
    }
    parts
}

/// Every type that a value of this schema may have, as far as the schema names types; none if it names none.
pub(crate) fn types(schema: &Value, root: &Value) -> Types {
    parts(schema, root)
        .into_iter()
        .map(own_types)
        .fold(Types::NONE, Types::and)
}

/// The types that a schema names without its alternatives.
fn own_types(schema: &Value) -> Types {
    let mut found = match schema.get("type") {
        Some(Value::String(name)) => Types::named(name),
        Some(Value::Array(names)) => names
            .iter()
            .filter_map(Value::as_str)
            .map(Types::named)
            .fold(Types::NONE, Types::and),
        _ => Types::NONE,
    };
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        found = found.and(Types::NULL);
    }
    if found == Types::NONE {
        let values = schema.get("enum").and_then(Value::as_array);
        let values = values.into_iter().flatten().chain(schema.get("const"));
        found = values.map(Types::of).fold(Types::NONE, Types::and);
    }
    found
}

/// All values that a schema allows, if it lists them.
pub(crate) fn finite(schema: &Value, root: &Value) -> Option<Vec<Value>> {
    let schema = resolve(schema, root, 0);
    if let Some(values) = listed(schema) {
        return Some(values);
    }
    let parts = ["anyOf", "oneOf"]
        .iter()
        .find_map(|union| schema.get(union)?.as_array())?;
    let values: Option<Vec<_>> = parts
        .iter()
        .map(|part| listed(resolve(part, root, 0)))
        .collect();
    values.map(|values| values.concat())
}

/// The values of a schema without alternatives.
fn listed(schema: &Value) -> Option<Vec<Value>> {
    if let Some(value) = schema.get("const") {
        return Some(vec![value.clone()]);
    }
    if schema.get("type").and_then(Value::as_str) == Some("null") {
        return Some(vec![Value::Null]);
    }
    let values = schema.get("enum").and_then(Value::as_array)?;
    (!values.is_empty()).then(|| values.clone())
}

/// The schema for its values of these types alone, or `None` if it has none.
pub(crate) fn restricted(schema: &Value, root: &Value, types: Types) -> Option<Value> {
    let kept: Vec<Value> = alternatives(schema, root)
        .into_iter()
        .filter_map(|part| {
            let own = own_types(part);
            let names: Vec<&str> = NAMES
                .iter()
                .filter(|(_, one)| own.has(*one) && types.has(*one))
                .map(|(name, _)| *name)
                .collect();
            let mut part = part.clone();
            part.as_object_mut()?
                .insert("type".to_owned(), names.into());
            (part["type"] != Value::Array(Vec::new())).then_some(part)
        })
        .collect();
    match kept.len() {
        0 => None,
        1 => kept.into_iter().next(),
        _ => Some(serde_json::json!({ "anyOf": kept })),
    }
}

/// The alternatives of a schema that name types; itself if it has none.
fn alternatives<'a>(schema: &'a Value, root: &'a Value) -> Vec<&'a Value> {
    let parts = parts(schema, root);
    parts
        .into_iter()
        .filter(|part| own_types(part) != Types::NONE)
        .collect()
}

/// A part of a document as a document of its own, with the definitions if it refers to any.
pub(crate) fn with_definitions(schema: &Value, root: &Value) -> Value {
    let refers = refers(schema);
    let mut schema = schema.clone();
    if let (true, Some(schema)) = (refers, schema.as_object_mut()) {
        for definitions in ["$defs", "definitions"] {
            if let Some(found) = root.get(definitions) {
                schema.entry(definitions).or_insert_with(|| found.clone());
            }
        }
    }
    schema
}

/// Whether a reference stands anywhere in this.
fn refers(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members
            .iter()
            .any(|(key, value)| key == "$ref" || refers(value)),
        Value::Array(items) => items.iter().any(refers),
        _ => false,
    }
}

/// Appends `raw` as JSON: as a value of the first type that it can be read as, else as a text.
pub(crate) fn write(raw: &str, types: Types, out: &mut String) {
    let value = raw.trim();
    let first = value.as_bytes().first().copied();
    let fits = match first {
        Some(b'{') => types.has(Types::OBJECT),
        Some(b'[') => types.has(Types::ARRAY),
        Some(b'-' | b'0'..=b'9') => {
            types.has(Types::NUMBER) || (types.has(Types::INTEGER) && is_integer(value))
        }
        _ => false,
    };
    if fits && json::is_value(value) {
        out.push_str(value);
        return;
    }
    let word = match value {
        "true" | "True" | "TRUE" | "1" if types.has(Types::BOOLEAN) => Some("true"),
        "false" | "False" | "FALSE" | "0" if types.has(Types::BOOLEAN) => Some("false"),
        "null" | "None" if types.has(Types::NULL) => Some("null"),
        _ => None,
    };
    match word {
        Some(word) => out.push_str(word),
        None => json::quote(raw, out),
    }
}

/// Whether a JSON number is whole: 3, 3.0 and 3e2 are.
fn is_integer(value: &str) -> bool {
    value
        .parse::<f64>()
        .is_ok_and(|number| number.fract() == 0.0)
}
