//! Takes out of a schema what cannot be enforced, keyword by keyword.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::formats::{Format, format};
use super::numbers::Steps;
use super::{numbers, patterns, rewrite};

/// What is left of `schema`; names of what was taken out, with their places, go to `not_enforced`.
pub(super) fn relax(schema: Value, not_enforced: &mut Vec<String>) -> Value {
    Relaxation {
        id: super::id(&schema).map(str::to_owned),
        place: Vec::new(),
        not_enforced,
        patterns: HashMap::new(),
        pattern_bytes: 0,
        steps: Steps::default(),
    }
    .schema(schema)
}

/// Lengths up to this are enforced beside every pattern.
const LONG: u64 = 320;
/// Size of all patterns of a schema that are enforced: the engine takes up to a second for this much.
const PATTERN_BYTES: usize = 32 << 10;
/// What each pattern costs beside its size, in bytes of pattern.
const PATTERN_COST: usize = 64;
/// Patterns for the names of one object that are compared with each other, each with all others.
const NAME_PATTERNS: usize = 20;
/// Notes on what is not enforced, each with its place, which may be as long as the schema.
const NOTES: usize = 100;

struct Relaxation<'a> {
    /// The name of the document.
    id: Option<String>,
    place: Vec<String>,
    not_enforced: &'a mut Vec<String>,
    /// Whether the engine can follow a pattern, which takes a tenth of a millisecond to find out.
    patterns: HashMap<String, bool>,
    /// Cost of those so far.
    pattern_bytes: usize,
    /// Each `multipleOf` that is enforced.
    steps: Steps,
}

impl Relaxation<'_> {
    fn schema(&mut self, schema: Value) -> Value {
        let Value::Object(mut keywords) = schema else {
            return schema;
        };
        keywords.remove(super::OPTIONS);
        rewrite::rewrite(&mut keywords);
        self.format(&mut keywords);
        self.patterns(&mut keywords);
        self.length(&mut keywords);
        self.bounds(&mut keywords);
        self.counts(&keywords);
        let keywords = keywords
            .into_iter()
            .filter_map(|(keyword, value)| {
                let value = self.keyword(&keyword, value)?;
                Some((keyword, value))
            })
            .collect();
        Value::Object(keywords)
    }

    /// What becomes of a keyword; `None`: it is taken out.
    fn keyword(&mut self, keyword: &str, value: Value) -> Option<Value> {
        match keyword {
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => Some(self.list(keyword, value)),
            "items" if value.is_array() => Some(self.list(keyword, value)),
            "items" | "additionalItems" | "additionalProperties" => {
                Some(self.within(keyword, |walk| walk.schema(value)))
            }
            "properties" | "patternProperties" | "$defs" | "definitions" => {
                Some(self.map(keyword, value))
            }
            "pattern" => match &value {
                Value::String(pattern) if !self.usable(pattern) => self.drop(keyword),
                _ => Some(value),
            },
            "$ref" => match &value {
                Value::String(target) if self.is_remote(target) => self.drop(keyword),
                _ => Some(value),
            },
            "const" | "enum" if !numbers::writes(&value) => self.drop(keyword),
            "uniqueItems" => (value == true).then(|| self.drop(keyword)).flatten(),
            "unevaluatedItems" | "unevaluatedProperties" | "propertyNames" => {
                (!allows_all(&value)).then(|| self.drop(keyword)).flatten()
            }
            "not" | "if" | "contains" | "dependencies" | "dependentRequired"
            | "dependentSchemas" | "$dynamicRef" | "$recursiveRef" => self.drop(keyword),
            // Nothing without `if` and `contains`.
            "then" | "else" | "minContains" | "maxContains" => None,
            _ => Some(value),
        }
    }

    fn list(&mut self, keyword: &str, value: Value) -> Value {
        let Value::Array(schemas) = value else {
            return value;
        };
        self.within(keyword, |walk| {
            let schemas = schemas.into_iter().enumerate();
            schemas
                .map(|(index, schema)| walk.within(&index.to_string(), |walk| walk.schema(schema)))
                .collect()
        })
    }

    fn map(&mut self, keyword: &str, value: Value) -> Value {
        let Value::Object(schemas) = value else {
            return value;
        };
        self.within(keyword, |walk| {
            let schemas = schemas.into_iter().map(|(name, schema)| {
                let schema = walk.within(&name, |walk| walk.schema(schema));
                (name, schema)
            });
            Value::Object(schemas.collect())
        })
    }

    /// Formats that patterns say better than the engine become those.
    fn format(&mut self, keywords: &mut Map<String, Value>) {
        let Some(name) = keywords.get("format").and_then(Value::as_str) else {
            return;
        };
        match format(name) {
            Format::Known => return,
            Format::Note => {}
            Format::Unknown => self.note(&format!("format: {name}")),
            Format::Patterns(patterns) => {
                let schemas = patterns.iter().map(|pattern| json!({"pattern": pattern}));
                rewrite::add_all_of(keywords, schemas.collect());
                // They are ours.
                self.patterns
                    .extend(patterns.into_iter().map(|pattern| (pattern, true)));
            }
        }
        keywords.remove("format");
    }

    /// Patterns of names must be usable, and no name may match two of them.
    fn patterns(&mut self, keywords: &mut Map<String, Value>) {
        let Some(Value::Object(schemas)) = keywords.get("patternProperties") else {
            return;
        };
        let names: Vec<&str> = schemas.keys().map(String::as_str).collect();
        if names.len() <= NAME_PATTERNS
            && names.iter().all(|name| self.usable(name))
            && patterns::disjoint(&names)
        {
            return;
        }
        // Names that match them must not fall to `additionalProperties` instead.
        keywords.remove("patternProperties");
        keywords.remove("additionalProperties");
        self.note("patternProperties");
    }

    /// A long bound beside a pattern that waits takes more than a mask may, at every place. Patterns that may match
    /// anywhere are left alone: their matches were found at once where this was measured.
    fn length(&mut self, keywords: &mut Map<String, Value>) {
        let longest = keywords.get("maxLength").and_then(Value::as_u64);
        let pattern = keywords.get("pattern").and_then(Value::as_str);
        let (Some(longest), Some(pattern)) = (longest, pattern) else {
            return;
        };
        let searched = longest > LONG && pattern.starts_with('^') && self.usable(pattern);
        if searched && patterns::waits(pattern) {
            keywords.remove("maxLength");
            self.note("maxLength");
        }
    }

    fn usable(&mut self, pattern: &str) -> bool {
        if let Some(usable) = self.patterns.get(pattern) {
            return *usable;
        }
        self.pattern_bytes += pattern.len() + PATTERN_COST;
        let usable = self.pattern_bytes <= PATTERN_BYTES && patterns::usable(pattern);
        self.patterns.insert(pattern.to_owned(), usable);
        usable
    }

    /// Whether a reference names another document: nothing is fetched.
    fn is_remote(&self, reference: &str) -> bool {
        super::fragment(self.id.as_deref(), reference).is_none()
    }

    /// Bounds that the engine has no digits for.
    fn bounds(&mut self, keywords: &mut Map<String, Value>) {
        let integer = keywords.get("type").is_some_and(|kind| kind == "integer");
        for keyword in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
            let bound = keywords.get(keyword).and_then(Value::as_number);
            if bound.is_some_and(|bound| !numbers::bounds(keyword, bound, integer)) {
                keywords.remove(keyword);
                self.note(keyword);
            }
        }
        let step = keywords.get("multipleOf").and_then(Value::as_number);
        if step.is_some_and(|step| !self.steps.takes(step)) {
            keywords.remove("multipleOf");
            self.note("multipleOf");
        }
    }

    /// The engine counts a name that is written twice as two properties.
    fn counts(&mut self, keywords: &Map<String, Value>) {
        let required = keywords.get("required").and_then(Value::as_array);
        let required = required.map_or(0, |names| names.len() as u64);
        let least = keywords.get("minProperties").and_then(Value::as_u64);
        if least.is_some_and(|least| least > required + 1) {
            self.note("minProperties");
        }
    }

    fn drop(&mut self, keyword: &str) -> Option<Value> {
        self.note(keyword);
        None
    }

    fn note(&mut self, keyword: &str) {
        if self.not_enforced.len() == NOTES {
            return;
        }
        let place = self.place.concat();
        let place = if place.is_empty() { "/" } else { &place };
        self.not_enforced.push(format!("`{keyword}` at {place}"));
    }

    fn within<T>(&mut self, step: &str, visit: impl FnOnce(&mut Self) -> T) -> T {
        self.place.push(format!("/{step}"));
        let outcome = visit(self);
        self.place.pop();
        outcome
    }
}

fn allows_all(schema: &Value) -> bool {
    match schema {
        Value::Bool(all) => *all,
        Value::Object(keywords) => keywords.is_empty(),
        _ => false,
    }
}
