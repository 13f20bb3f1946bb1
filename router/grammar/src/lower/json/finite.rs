//! Check that a value can fit a schema that refers to itself: `{"$ref": "#"}` says nothing, and a list whose every item
//! must hold a further one never ends. The engine takes both, and a generation would go on until its tokens are spent.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::GrammarError;

/// Schemas that are looked at before the rest is taken to be right: far more than schemas have, references included,
/// that are not made to cost much.
const BUDGET: usize = 100_000;

/// Refuses a schema that asks for values within values without an end, naming the reference that leads back. Keywords
/// that this does not know are taken to be met by some value.
pub(super) fn check(schema: &Value) -> Result<(), GrammarError> {
    let mut walk = Walk {
        root: schema,
        following: HashSet::new(),
        finite: HashSet::new(),
        endless: HashSet::new(),
        circle: None,
        budget: BUDGET,
    };
    if walk.is_finite(schema) {
        return Ok(());
    }
    let circle = walk.circle.unwrap_or_default();
    let reason = format!(
        "no value ends that fits it: `\"$ref\": \"{circle}\"` leads back to itself, and nothing on the way is optional"
    );
    Err(super::super::invalid(super::super::SCHEMA, reason))
}

/// A value of finite size needs no reference within what the same reference stands for, so a reference that is being
/// followed counts as one that no value fits.
struct Walk<'a> {
    root: &'a Value,
    following: HashSet<&'a str>,
    /// References that a value fits.
    finite: HashSet<&'a str>,
    /// References that none fits as long as none fits what was being followed when they were met, so only until a
    /// further one is found to be finite.
    endless: HashSet<&'a str>,
    /// The first reference that was met while it was followed.
    circle: Option<&'a str>,
    budget: usize,
}

impl<'a> Walk<'a> {
    fn is_finite(&mut self, schema: &'a Value) -> bool {
        let Value::Object(keywords) = schema else {
            return true;
        };
        let Some(left) = self.budget.checked_sub(1) else {
            return true;
        };
        self.budget = left;
        if super::has_base(keywords) && !std::ptr::eq(schema, self.root) {
            return true;
        }
        // Older drafts ignore what stands beside a reference.
        if let Some(Value::String(reference)) = keywords.get("$ref") {
            return self.follows(reference);
        }
        let all = keywords.get("allOf").and_then(Value::as_array);
        let any = ["anyOf", "oneOf"];
        let any = any
            .iter()
            .filter_map(|name| keywords.get(*name)?.as_array());
        all.into_iter().flatten().all(|each| self.is_finite(each))
            && any
                .filter(|list| !list.is_empty())
                .all(|list| list.iter().any(|each| self.is_finite(each)))
            && self.holds_finite(keywords)
    }

    /// Whether what a value must hold can end.
    fn holds_finite(&mut self, keywords: &'a Map<String, Value>) -> bool {
        match keywords.get("type").and_then(Value::as_str) {
            Some("object") => {
                let required = keywords.get("required").and_then(Value::as_array);
                let properties = keywords.get("properties");
                required.into_iter().flatten().all(|name| {
                    let name = name.as_str().unwrap_or_default();
                    let property = properties.and_then(|properties| properties.get(name));
                    property.is_none_or(|property| self.is_finite(property))
                })
            }
            Some("array") => {
                let least = keywords.get("minItems").and_then(Value::as_u64);
                let least = usize::try_from(least.unwrap_or(0)).unwrap_or(usize::MAX);
                let (first, rest) = items(keywords);
                let rest = rest.filter(|_| least > first.len());
                first
                    .iter()
                    .take(least)
                    .chain(rest)
                    .all(|item| self.is_finite(item))
            }
            _ => true,
        }
    }

    fn follows(&mut self, reference: &'a str) -> bool {
        if self.finite.contains(reference) {
            return true;
        }
        if self.following.contains(reference) {
            self.circle.get_or_insert(reference);
            return false;
        }
        if self.endless.contains(reference) {
            return false;
        }
        let Some(target) = super::target(self.root, reference) else {
            return true;
        };
        self.following.insert(reference);
        let is_finite = self.is_finite(target);
        self.following.remove(reference);
        if is_finite {
            self.finite.insert(reference);
            self.endless.clear();
        } else {
            self.endless.insert(reference);
        }
        is_finite
    }
}

/// Schemas of the first items, and that of the others.
fn items(keywords: &Map<String, Value>) -> (&[Value], Option<&Value>) {
    let (items, prefix) = (keywords.get("items"), keywords.get("prefixItems"));
    match (prefix, items) {
        (Some(Value::Array(first)), rest) => (first, rest),
        (_, Some(Value::Array(first))) => (first, keywords.get("additionalItems")),
        (_, rest) => (&[], rest),
    }
}
