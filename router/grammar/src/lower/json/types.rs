//! Types that a schema names and JSON Schema does not have, such as `dict`: nothing could be matched with them.

use serde_json::{Map, Value};

use crate::GrammarError;

const TYPES: [&str; 7] = [
    "object", "array", "string", "integer", "number", "boolean", "null",
];

/// Refuses a wrong `type` in the parts of a schema that are enforced, and names its place.
pub(crate) fn check(schema: &Value) -> Result<(), GrammarError> {
    match wrong(schema, "") {
        None => Ok(()),
        Some(reason) => Err(super::super::invalid(super::super::SCHEMA, reason)),
    }
}

fn wrong(schema: &Value, place: &str) -> Option<String> {
    let keywords = schema.as_object()?;
    wrong_here(keywords, place).or_else(|| {
        keywords.iter().find_map(|(keyword, value)| {
            let place = format!("{place}/{keyword}");
            match keyword.as_str() {
                "properties" | "patternProperties" | "$defs" | "definitions" => value
                    .as_object()?
                    .iter()
                    .find_map(|(name, schema)| wrong(schema, &format!("{place}/{name}"))),
                "allOf" | "anyOf" | "oneOf" | "prefixItems" | "items" => match value {
                    Value::Array(list) => list
                        .iter()
                        .enumerate()
                        .find_map(|(index, schema)| wrong(schema, &format!("{place}/{index}"))),
                    one => wrong(one, &place),
                },
                "additionalItems" | "additionalProperties" => wrong(value, &place),
                _ => None,
            }
        })
    })
}

fn wrong_here(keywords: &Map<String, Value>, place: &str) -> Option<String> {
    let given = keywords.get("type")?;
    let is_type = |given: &Value| given.as_str().is_some_and(|name| TYPES.contains(&name));
    let wrong = match given {
        Value::Array(list) => list.iter().find(|given| !is_type(given))?,
        one if is_type(one) => return None,
        one => one,
    };
    // As long as a schema may be, and told to whoever sent it.
    let shown: String = wrong.to_string().chars().take(SHOWN).collect();
    let place: String = place.chars().take(SHOWN).collect();
    Some(format!(
        "`{place}/type` is {shown}, and must be one of `{}`",
        TYPES.join("`, `")
    ))
}

/// Characters of a place and of a value that a message repeats.
const SHOWN: usize = 100;
