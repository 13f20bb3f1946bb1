//! Arguments as XML elements with their names.

use std::collections::HashMap;

use serde_json::Value;

use super::lark::{Lark, string};
use super::values::enforceable_text;
use crate::format::ITEM;
use crate::schema::{self, Types};

/// Schemas are followed to this depth; below it, a value stands as JSON.
const MAX_DEPTH: usize = 12;

/// Writes the rules for the elements of one schema. Objects without named members stand as JSON, since the end of an
/// element repeats a name that a grammar without memory cannot know.
pub(super) struct Elements<'l, 's, 'r> {
    lark: &'l mut Lark<'s>,
    prefix: &'r str,
    root: &'r Value,
    strict: bool,
    /// The rules that there are, by schema, name and depth.
    known: HashMap<(*const Value, String, usize), String>,
    /// The first part of the schema that the rules do not enforce.
    pub missed: Option<String>,
}

impl<'l, 's, 'r> Elements<'l, 's, 'r> {
    pub fn new(lark: &'l mut Lark<'s>, prefix: &'r str, root: &'r Value, strict: bool) -> Self {
        Self {
            lark,
            prefix,
            root,
            strict,
            known: HashMap::new(),
            missed: None,
        }
    }

    /// The members of an object in the order of the schema; those that are not required may be missing.
    pub fn members(&mut self, schema: &Value) -> String {
        self.members_at(schema, 0)
    }

    fn members_at(&mut self, schema: &Value, depth: usize) -> String {
        let object = schema::resolve(schema, self.root, 0);
        let properties = object.get("properties").and_then(Value::as_object);
        let members: Vec<String> = properties
            .into_iter()
            .flatten()
            .map(|(key, schema)| {
                let element = self.element(key, schema, depth + 1);
                match schema::requires(object, key) {
                    true => element,
                    false => format!("{element}?"),
                }
            })
            .collect();
        members.join(" ")
    }

    /// The rule for an element with this name and a value of this schema.
    fn element(&mut self, name: &str, schema: &Value, depth: usize) -> String {
        let schema = schema::resolve(schema, self.root, 0);
        let key = (std::ptr::from_ref(schema), name.to_owned(), depth);
        if let Some(rule) = self.known.get(&key) {
            return rule.clone();
        }
        let open = self.lark.literal(&format!("{}<{name}>", self.prefix));
        let close = format!("{}</{name}>", self.prefix);
        let value = self.value(schema, &close, depth);
        let rule = self.lark.rule("element", &format!("{open} {value}"));
        self.known.insert(key, rule.clone());
        rule
    }

    /// The rule for a value and the tag that closes it.
    fn value(&mut self, schema: &Value, close: &str, depth: usize) -> String {
        let schema = schema::resolve(schema, self.root, 0);
        if let Some(values) = schema::finite(schema, self.root) {
            let close = self.lark.literal(close);
            let values: Vec<String> = values.iter().map(written).collect();
            let values = self.lark.rule("values", &values.join(" | "));
            return format!("{values} {close}");
        }
        let types = schema::types(schema, self.root);
        if types.has(Types::TEXT) || types.is_unknown() {
            let (text, missed) = enforceable_text(schema);
            self.missed = self.missed.take().or(missed);
            return self.lark.text_until(&text, close);
        }
        for union in ["anyOf", "oneOf"] {
            if let Some(parts) = schema.get(union).and_then(Value::as_array)
                && depth <= MAX_DEPTH
                && !self.lark.is_full()
            {
                let parts: Vec<String> = parts
                    .iter()
                    .map(|part| self.value(part, close, depth + 1))
                    .collect();
                return self.lark.rule("union", &parts.join(" | "));
            }
        }
        let mut ways = Vec::new();
        let deep = depth > MAX_DEPTH || self.lark.is_full();
        if types.has(Types::ARRAY) && !deep {
            ways.push(self.array(schema, depth));
        }
        let named = schema.get("properties").and_then(Value::as_object);
        let named = named.is_some_and(|members| !members.is_empty());
        if types.has(Types::OBJECT) && named && !deep {
            ways.push(self.members_at(schema, depth));
        }
        let others = match (deep, named) {
            (true, _) => Types::ANY_BUT_TEXT,
            (false, true) => Types::SCALARS,
            (false, false) => Types::SCALARS.and(Types::OBJECT),
        };
        if let Some(json) = schema::restricted(schema, self.root, others) {
            let json = schema::with_definitions(&json, self.root);
            ways.push(self.lark.json(&json, self.strict));
        }
        let ways = self.lark.rule("value", &ways.join(" | "));
        let close = self.lark.literal(close);
        format!("{ways} {close}")
    }

    fn array(&mut self, schema: &Value, depth: usize) -> String {
        let items = schema.get("items").unwrap_or(&Value::Null);
        let item = self.element(ITEM, items, depth + 1);
        let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
        let least = bound("minItems").unwrap_or(0);
        let most = bound("maxItems").map_or(String::new(), |most| most.to_string());
        format!("( {item} ){{{least},{most}}}")
    }
}

fn written(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        other => string(&other.to_string()),
    }
}
