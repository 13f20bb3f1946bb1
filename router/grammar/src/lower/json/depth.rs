//! Depth of a schema, references included: the engine follows it by recursion.

use std::collections::HashSet;

use serde_json::Value;

use crate::GrammarError;

/// Refuses a schema of more than `limit` levels. A reference is followed where it is first met, as the engine does.
pub(super) fn check(schema: &Value, limit: usize) -> Result<(), GrammarError> {
    let mut walk = Walk {
        root: schema,
        limit,
        followed: HashSet::new(),
    };
    walk.visit(schema, 0)
}

struct Walk<'a> {
    root: &'a Value,
    limit: usize,
    followed: HashSet<&'a str>,
}

impl<'a> Walk<'a> {
    fn visit(&mut self, value: &'a Value, depth: usize) -> Result<(), GrammarError> {
        if depth > self.limit {
            return Err(GrammarError::TooLarge {
                part: "the JSON schema",
                unit: "or more levels of nesting and references",
                found: depth,
                limit: self.limit,
            });
        }
        match value {
            Value::Object(map) => {
                if let Some(target) = map.get("$ref").and_then(Value::as_str) {
                    self.follow(target, depth)?;
                }
                map.values()
                    .try_for_each(|value| self.visit(value, depth + 1))
            }
            Value::Array(list) => list
                .iter()
                .try_for_each(|value| self.visit(value, depth + 1)),
            _ => Ok(()),
        }
    }

    fn follow(&mut self, reference: &'a str, depth: usize) -> Result<(), GrammarError> {
        match super::target(self.root, reference) {
            Some(target) if self.followed.insert(reference) => self.visit(target, depth + 1),
            _ => Ok(()),
        }
    }
}
