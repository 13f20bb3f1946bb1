//! Size of a schema when its alternatives are multiplied out, and patterns that hold at once. The engine does both, and
//! counts its steps but not what each of them makes: that can double with every level and every pattern.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::super::SCHEMA;
use crate::{CompilerLimits, GrammarError};

/// Parts of a schema after that: ten times as many as the largest one has without it.
const MOST: u64 = 250_000;
/// Ways in which the patterns of one text can go on together: each multiplies them by those of its own. Ten times as many
/// take seconds.
const MOST_WAYS: u64 = 1 << 17;
/// About the ways of a format.
const FORMAT_WAYS: u64 = 4;

/// Refuses a schema that becomes too large.
pub(super) fn check(schema: &Value, limits: &CompilerLimits) -> Result<(), GrammarError> {
    let mut measure = Measure {
        root: schema,
        references: HashMap::new(),
        most_ways: 1,
        most_optional: 0,
    };
    let whole = measure.schema(schema, false);
    let limit = limits.optional_properties;
    if measure.most_optional > limit {
        return Err(GrammarError::TooLarge {
            part: SCHEMA,
            unit: "properties of one object that are not in `required`",
            found: measure.most_optional,
            limit,
        });
    }
    // References that nothing stands beside are compiled once, for themselves.
    let size = measure
        .references
        .values()
        .fold(whole.parts, |sum, size| sum.saturating_add(size.parts));
    let reason = if measure.most_ways > MOST_WAYS {
        "too many patterns have to match the same text".to_owned()
    } else if size > MOST {
        format!("its alternatives make more than {MOST} parts, one inside the other")
    } else {
        return Ok(());
    };
    Err(GrammarError::TooComplex {
        part: SCHEMA,
        reason,
    })
}

/// An upper bound of what a schema becomes.
#[derive(Debug, Clone, Copy)]
struct Size {
    alternatives: u64,
    /// All of it.
    parts: u64,
    /// Entries that have a schema of their own.
    entries: u64,
    /// Parts of schemas for entries that have none.
    others: u64,
    /// In which the patterns for a text can go on.
    ways: u64,
}

impl Size {
    const ONE: Self = Self {
        alternatives: 1,
        parts: 1,
        entries: 0,
        others: 0,
        ways: 1,
    };

    /// Both must hold.
    fn and(self, other: Self) -> Self {
        let entries = self.entries.saturating_mul(other.others);
        let entries = entries.saturating_add(other.entries.saturating_mul(self.others));
        let pairs = self.alternatives.saturating_mul(other.alternatives);
        Self {
            alternatives: pairs,
            parts: (self.parts.saturating_mul(other.alternatives))
                .saturating_add(other.parts.saturating_mul(self.alternatives))
                .saturating_add(entries.saturating_mul(pairs)),
            entries: self.entries.saturating_add(other.entries),
            others: self.others.saturating_add(other.others),
            ways: self.ways.saturating_mul(other.ways),
        }
    }

    /// One of them holds.
    fn or(self, other: Self) -> Self {
        Self {
            alternatives: self.alternatives.saturating_add(other.alternatives),
            parts: self.parts.saturating_add(other.parts),
            entries: self.entries.max(other.entries),
            others: self.others.max(other.others),
            ways: self.ways.max(other.ways),
        }
    }
}

struct Measure<'a> {
    root: &'a Value,
    /// What references become; those that are being measured count as one part, since a value ends somewhere.
    references: HashMap<&'a str, Size>,
    /// Of any schema.
    most_ways: u64,
    /// Properties of any object that may be left out.
    most_optional: usize,
}

impl<'a> Measure<'a> {
    /// `copied`: something stands beside the schema, so that a reference becomes what it refers to.
    fn schema(&mut self, schema: &'a Value, copied: bool) -> Size {
        let Value::Object(keywords) = schema else {
            return Size::ONE;
        };
        let lists = ["allOf", "anyOf", "oneOf"];
        let reference = keywords.get("$ref").and_then(Value::as_str);
        let applied = lists.iter().filter(|list| keywords.contains_key(**list));
        let applied = applied.count() + usize::from(reference.is_some());
        let alone = keywords.len() == applied && applied <= 1;
        let copied = copied || !alone;
        let mut size = self.own(keywords);
        if let Some(reference) = reference {
            let target = self.reference(reference);
            size = if copied { size.and(target) } else { size };
        }
        for list in lists {
            let Some(schemas) = keywords.get(list).and_then(Value::as_array) else {
                continue;
            };
            let all = list == "allOf";
            let within = copied || all && schemas.len() > 1;
            let sizes = schemas.iter().map(|each| self.schema(each, within));
            let joined = match all {
                true => sizes.reduce(Size::and),
                false => sizes.reduce(Size::or),
            };
            size = size.and(joined.unwrap_or(Size::ONE));
        }
        self.most_ways = self.most_ways.max(size.ways);
        size
    }

    /// What stands in the keywords of one schema.
    fn own(&mut self, keywords: &'a Map<String, Value>) -> Size {
        let mut size = Size::ONE;
        for (keyword, value) in keywords {
            let (entries, parts, others) = match (keyword.as_str(), value) {
                ("properties", Value::Object(schemas)) => {
                    self.most_optional = self.most_optional.max(optional(keywords, schemas));
                    (schemas.len(), self.all(schemas.values()), 0)
                }
                ("prefixItems" | "items", Value::Array(schemas)) => {
                    (schemas.len(), self.all(schemas), 0)
                }
                ("patternProperties", Value::Object(schemas)) => (0, 0, self.all(schemas.values())),
                ("items" | "additionalItems" | "additionalProperties", schema) => {
                    let entries = schema.as_array().map_or(0, Vec::len);
                    (entries, 0, self.schema(schema, false).parts)
                }
                ("enum", Value::Array(values)) => (values.len(), values.len() as u64, 0),
                ("pattern", Value::String(pattern)) => {
                    size.ways = size.ways.saturating_mul(ways(pattern));
                    continue;
                }
                ("format", _) => {
                    size.ways = size.ways.saturating_mul(FORMAT_WAYS);
                    continue;
                }
                _ => continue,
            };
            size.parts = size.parts.saturating_add(parts).saturating_add(others);
            size.others = size.others.saturating_add(others);
            size.entries = size.entries.saturating_add(entries as u64);
        }
        size
    }

    fn all(&mut self, schemas: impl IntoIterator<Item = &'a Value>) -> u64 {
        let sizes = schemas
            .into_iter()
            .map(|each| self.schema(each, false).parts);
        sizes.fold(0, u64::saturating_add)
    }

    fn reference(&mut self, reference: &'a str) -> Size {
        if let Some(size) = self.references.get(reference) {
            return *size;
        }
        let Some(target) = super::target(self.root, reference) else {
            return Size::ONE;
        };
        self.references.insert(reference, Size::ONE);
        let size = self.schema(target, false);
        self.references.insert(reference, size);
        size
    }
}

/// How many of an object's properties may be left out.
fn optional(keywords: &Map<String, Value>, properties: &Map<String, Value>) -> usize {
    let required = keywords.get("required").and_then(Value::as_array);
    let required: HashSet<&str> = required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let names = properties.keys();
    names
        .filter(|name| !required.contains(name.as_str()))
        .count()
}

/// The most ways in which a match can go on: before it, in it, and one for each place with a choice.
fn ways(pattern: &str) -> u64 {
    let choices = pattern.bytes().filter(|byte| b"|?*+.[{\\".contains(byte));
    choices.count() as u64 + 2
}
