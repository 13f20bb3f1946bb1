//! Values as literals, for formats that do not write them as JSON.

use std::collections::HashMap;

use serde_json::Value;

use super::lark::{Lark, string};
use crate::format::Text;
use crate::schema::{self, Types};

/// Schemas are followed to this depth; below it, any value may stand.
const MAX_DEPTH: usize = 12;

/// How values are written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Dialect {
    /// As in Python.
    Keywords,
    /// Keys without quotes, texts between two of these markers.
    Braces(Text),
}

/// Writes the rules for the values of one schema.
pub(super) struct Values<'l, 's, 'r> {
    lark: &'l mut Lark<'s>,
    dialect: Dialect,
    root: &'r Value,
    /// The rule for any value, once there is one.
    any: Option<String>,
    /// The rules that there are, by schema and depth: definitions that refer to each other make ever more schemas of
    /// few.
    known: HashMap<(*const Value, usize), String>,
    /// The first part of the schema that the rules do not enforce.
    pub missed: Option<String>,
}

impl<'l, 's, 'r> Values<'l, 's, 'r> {
    pub fn new(lark: &'l mut Lark<'s>, dialect: Dialect, root: &'r Value) -> Self {
        Self {
            lark,
            dialect,
            root,
            any: None,
            known: HashMap::new(),
            missed: None,
        }
    }

    /// The members of an object, in the order of the schema; those that are not required may be missing.
    pub fn members(&mut self, schema: &Value, keywords: bool) -> String {
        self.members_at(schema, keywords, 0)
    }

    fn members_at(&mut self, schema: &Value, keywords: bool, depth: usize) -> String {
        let object = schema::resolve(schema, self.root, 0);
        let properties = object.get("properties").and_then(Value::as_object);
        let Some(properties) = properties.filter(|properties| !properties.is_empty()) else {
            if object.get("additionalProperties") == Some(&Value::Bool(false)) {
                return String::new();
            }
            let key = self.any_key(keywords);
            let value = self.any();
            let assign = self.assign(keywords);
            let member = self.lark.rule("member", &format!("{key} {assign} {value}"));
            let comma = self.comma();
            return format!("( {member} ( {comma} {member} )* )?");
        };
        let members: Vec<(String, bool)> = properties
            .iter()
            .map(|(key, schema)| {
                let value = self.value(schema, depth + 1);
                let assign = self.assign(keywords);
                let name = self.key(key, keywords);
                let member = self
                    .lark
                    .rule("member", &format!("{name} {assign} {value}"));
                (member, schema::requires(object, key))
            })
            .collect();
        self.sequence(&members)
    }

    /// Members with commas between those that are there.
    fn sequence(&mut self, members: &[(String, bool)]) -> String {
        let comma = self.comma();
        // From the last to the first: what may follow a member, and what may come where none was written yet.
        let mut following = String::new();
        let mut none_yet = String::new();
        for (member, is_required) in members.iter().rev() {
            let with_member = format!("{member} {following}");
            none_yet = match (*is_required, none_yet.is_empty()) {
                (true, _) => self.lark.rule("members", &with_member),
                (false, true) => self.lark.rule("members", &format!("( {with_member} )?")),
                (false, false) => self
                    .lark
                    .rule("members", &format!("{with_member} | {none_yet}")),
            };
            let optional = if *is_required { "" } else { "?" };
            following = self.lark.rule(
                "rest",
                &format!("( {comma} {member} ){optional} {following}"),
            );
        }
        none_yet
    }

    /// The rule for the values of a schema.
    fn value(&mut self, schema: &Value, depth: usize) -> String {
        let schema = schema::resolve(schema, self.root, 0);
        if depth > MAX_DEPTH || self.lark.is_full() {
            return self.any();
        }
        let key = (std::ptr::from_ref(schema), depth);
        if let Some(name) = self.known.get(&key) {
            return name.clone();
        }
        let name = self.new_value(schema, depth);
        self.known.insert(key, name.clone());
        name
    }

    fn new_value(&mut self, schema: &Value, depth: usize) -> String {
        if let Some(values) = schema::finite(schema, self.root) {
            let values: Vec<String> = values.iter().map(|value| self.written(value)).collect();
            return self.lark.rule("values", &values.join(" | "));
        }
        for union in ["anyOf", "oneOf"] {
            if let Some(parts) = schema.get(union).and_then(Value::as_array) {
                let parts: Vec<String> = parts
                    .iter()
                    .map(|part| self.value(part, depth + 1))
                    .collect();
                return self.lark.rule("union", &parts.join(" | "));
            }
        }
        let types = schema::types(schema, self.root);
        let mut alternatives = Vec::new();
        if types.has(Types::TEXT) {
            let (text, missed) = enforceable_text(schema);
            self.missed = self.missed.take().or(missed);
            alternatives.push(self.text(&text));
        }
        if types.has(Types::NUMBER) {
            alternatives.push(self.number(schema, "number"));
        } else if types.has(Types::INTEGER) {
            alternatives.push(self.number(schema, "integer"));
        }
        if types.has(Types::BOOLEAN) {
            alternatives.extend([true, false].map(|value| self.written(&value.into())));
        }
        if types.has(Types::NULL) {
            alternatives.push(self.written(&Value::Null));
        }
        if types.has(Types::ARRAY) {
            alternatives.push(self.array(schema, depth));
        }
        if types.has(Types::OBJECT) {
            let members = self.members_at(schema, false, depth);
            alternatives.push(format!("\"{{\" {members} \"}}\""));
        }
        if alternatives.is_empty() {
            return self.any();
        }
        self.lark.rule("value", &alternatives.join(" | "))
    }

    fn number(&self, schema: &Value, name: &str) -> String {
        let mut schema = schema::with_definitions(schema, self.root);
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("type".to_owned(), name.into());
        }
        self.lark.json(&schema, false)
    }

    fn array(&mut self, schema: &Value, depth: usize) -> String {
        let item = match schema.get("items") {
            Some(items) => self.value(items, depth + 1),
            None => self.any(),
        };
        let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
        let least = bound("minItems").unwrap_or(0);
        let comma = self.comma();
        let more = match bound("maxItems") {
            Some(0) => return "\"[]\"".to_owned(),
            Some(most) => format!("{{{},{}}}", least.saturating_sub(1), most - 1),
            None => format!("{{{},}}", least.saturating_sub(1)),
        };
        let items = format!("{item} ( {comma} {item} ){more}");
        let optional = if least == 0 { "?" } else { "" };
        self.lark
            .rule("array", &format!("\"[\" ( {items} ){optional} \"]\""))
    }

    /// Any value.
    fn any(&mut self) -> String {
        if let Some(name) = &self.any {
            return name.clone();
        }
        let name = self.lark.name("any");
        self.any = Some(name.clone());
        let text = self.text("(?s:.*)");
        let words = [true.into(), false.into(), Value::Null]
            .map(|value| self.written(&value))
            .join(" | ");
        let comma = self.comma();
        let key = self.any_key(false);
        let assign = self.assign(false);
        let member = self.lark.rule("member", &format!("{key} {assign} {name}"));
        let number = r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?/";
        let array = format!("\"[\" ( {name} ( {comma} {name} )* )? \"]\"");
        let object = format!("\"{{\" ( {member} ( {comma} {member} )* )? \"}}\"");
        self.lark.define(
            &name,
            "",
            &format!("{text} | {number} | {words} | {array} | {object}"),
        );
        name
    }

    /// A text that matches a regex of the form that `enforceable_text` gives.
    fn text(&mut self, text: &str) -> String {
        match &self.dialect {
            Dialect::Braces(quote) => {
                let open = self.lark.literal(quote);
                let rest = self.lark.text_until(text, quote);
                format!("{open} {rest}")
            }
            Dialect::Keywords => {
                let count = text
                    .strip_prefix("(?s:.")
                    .and_then(|rest| rest.strip_suffix(')'))
                    .unwrap_or("*");
                format!("/\"([^\"\\\\\\x00-\\x1f]|\\\\[\"'\\\\nrt]){count}\"/")
            }
        }
    }

    fn written(&self, value: &Value) -> String {
        let python = self.dialect == Dialect::Keywords;
        match value {
            Value::Null => string(if python { "None" } else { "null" }),
            Value::Bool(true) => string(if python { "True" } else { "true" }),
            Value::Bool(false) => string(if python { "False" } else { "false" }),
            Value::String(text) => match &self.dialect {
                Dialect::Keywords => string(&value.to_string()),
                Dialect::Braces(quote) => self.lark.literal(&format!("{quote}{text}{quote}")),
            },
            other => string(&other.to_string()),
        }
    }

    fn key(&self, key: &str, keywords: bool) -> String {
        match &self.dialect {
            Dialect::Keywords if !keywords => string(&Value::from(key).to_string()),
            _ => string(key),
        }
    }

    fn any_key(&mut self, keywords: bool) -> String {
        let word = "[A-Za-z_][A-Za-z0-9_]{0,63}";
        match &self.dialect {
            Dialect::Keywords if !keywords => format!("/\"{word}\"/"),
            _ => format!("/{word}/"),
        }
    }

    fn assign(&self, keywords: bool) -> &'static str {
        match (&self.dialect, keywords) {
            (Dialect::Keywords, true) => "\"=\"",
            (Dialect::Keywords, false) => "\": \"",
            (Dialect::Braces(_), _) => "\":\"",
        }
    }

    fn comma(&self) -> &'static str {
        match self.dialect {
            Dialect::Keywords => "\", \"",
            Dialect::Braces(_) => "\",\"",
        }
    }
}

/// The regex for a text of this schema, and the first of its conditions that the regex leaves out.
pub(super) fn enforceable_text(schema: &Value) -> (String, Option<String>) {
    let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
    let count = match (bound("minLength"), bound("maxLength")) {
        (None, None) => "*".to_owned(),
        (least, None) => format!("{{{},}}", least.unwrap_or(0)),
        (least, Some(most)) => format!("{{{},{most}}}", least.unwrap_or(0)),
    };
    let missed = ["pattern", "format"]
        .into_iter()
        .find(|name| schema.get(name).is_some())
        .map(|name| format!("`{name}` of a string"));
    (format!("(?s:.{count})"), missed)
}
