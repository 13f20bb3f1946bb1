//! Gives equal leaves of a schema one definition: the engine builds the regular expression of a range, a pattern or a
//! format anew at each place where it stands, which is most of what schemas that repeat them cost to compile.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

const DEFINITIONS: &str = "$defs";

/// What the engine makes regular expressions of; a leaf has at least one of these.
const BOUNDS: [&str; 10] = [
    "pattern",
    "format",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "allOf",
];
/// With these it is no leaf: it says something else, or others may refer to it by a name of its own. What is left are
/// notes to readers.
const OTHERS: [&str; 13] = [
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "$ref",
    "$id",
    "id",
    "$anchor",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$defs",
    "definitions",
    "properties",
];

/// Replaces leaves that stand in `root` more than once by references.
pub(super) fn share(root: &mut Map<String, Value>) {
    if root.get(DEFINITIONS).is_some_and(|map| !map.is_object()) {
        return;
    }
    let mut counts: HashMap<String, usize> = HashMap::new();
    within(root, &mut |_, key| *counts.entry(key).or_default() += 1);
    counts.retain(|_, count| *count > 1);
    if counts.is_empty() {
        return;
    }
    let mut shared = Map::new();
    let mut names: HashMap<String, String> = HashMap::new();
    let taken = root.get(DEFINITIONS).and_then(Value::as_object).cloned();
    let is_taken = |name: &str| taken.as_ref().is_some_and(|map| map.contains_key(name));
    let mut free = (0..).map(|index| format!("shared-{index}"));
    within(root, &mut |leaf, key| {
        if !counts.contains_key(&key) {
            return;
        }
        let name = names.entry(key).or_insert_with(|| {
            let name = free.find(|name| !is_taken(name)).unwrap_or_default();
            shared.insert(name.clone(), leaf.clone());
            name
        });
        *leaf = json!({"$ref": format!("#/{DEFINITIONS}/{name}")});
    });
    let definitions = root.entry(DEFINITIONS).or_insert_with(|| json!({}));
    if let Value::Object(definitions) = definitions {
        definitions.append(&mut shared);
    }
}

/// Visits the leaves within a schema, each with what it says but for its notes.
fn within(keywords: &mut Map<String, Value>, visit: &mut impl FnMut(&mut Value, String)) {
    // The engine compares its alternatives, with what stands beside them, and looks through no reference for that.
    let compared = keywords.contains_key("oneOf");
    for (keyword, value) in keywords.iter_mut() {
        match (keyword.as_str(), value) {
            ("$defs" | "definitions", Value::Object(schemas)) => {
                schemas.values_mut().for_each(|schema| walk(schema, visit));
            }
            ("properties", Value::Object(schemas)) if !compared => {
                schemas.values_mut().for_each(|schema| walk(schema, visit));
            }
            ("allOf" | "anyOf", Value::Array(schemas)) => {
                schemas.iter_mut().for_each(|schema| walk(schema, visit));
            }
            ("items" | "additionalProperties", schema) if !compared => walk(schema, visit),
            _ => {}
        }
    }
}

fn walk(schema: &mut Value, visit: &mut impl FnMut(&mut Value, String)) {
    if let Some(key) = leaf(schema) {
        return visit(schema, key);
    }
    if let Value::Object(keywords) = schema
        && !super::has_base(keywords)
    {
        within(keywords, visit);
    }
}

/// What a leaf says but for its notes; nothing of another schema.
fn leaf(schema: &Value) -> Option<String> {
    let keywords = schema.as_object()?;
    let kind = keywords.get("type")?.as_str()?;
    let is_scalar = matches!(kind, "string" | "integer" | "number");
    if !is_scalar || OTHERS.iter().any(|other| keywords.contains_key(*other)) {
        return None;
    }
    let said: Vec<(&str, &Value)> = BOUNDS
        .iter()
        .filter_map(|bound| Some((*bound, keywords.get(*bound)?)))
        .collect();
    let known = |(bound, value): &(&str, &Value)| match *bound {
        // What `formats` makes of some.
        "allOf" => value
            .as_array()
            .is_some_and(|all| all.iter().all(is_pattern)),
        _ => true,
    };
    (!said.is_empty() && said.iter().all(known)).then(|| json!([kind, said]).to_string())
}

fn is_pattern(schema: &Value) -> bool {
    let keywords = schema.as_object();
    keywords.is_some_and(|keywords| keywords.keys().all(|keyword| keyword == "pattern"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(schema: Value) -> Value {
        let Value::Object(mut schema) = schema else {
            return schema;
        };
        share(&mut schema);
        Value::Object(schema)
    }

    #[test]
    fn equal_leaves_stand_once() {
        let port = |title: &str| json!({"type": "integer", "minimum": 1, "maximum": 65535, "title": title});
        let schema = shared(json!({
            "$defs": {"shared-0": {"type": "null"}},
            "properties": {
                "in": port("in"),
                "out": {"type": "array", "items": {"maximum": 65535, "minimum": 1, "type": "integer"}},
                "once": {"type": "integer", "minimum": 2},
                "name": {"type": "string"}, "other": {"type": "string"},
            },
        }));
        let reference = json!({"$ref": "#/$defs/shared-1"});
        assert_eq!(schema["properties"]["in"], reference);
        assert_eq!(schema["properties"]["out"]["items"], reference);
        assert_eq!(schema["$defs"]["shared-1"], port("in"));
        assert_eq!(schema["$defs"]["shared-0"], json!({"type": "null"}));
        assert_eq!(
            schema["properties"]["once"],
            json!({"type": "integer", "minimum": 2})
        );
        assert_eq!(schema["properties"]["other"], json!({"type": "string"}));
    }

    #[test]
    fn what_is_compared_or_has_a_base_of_its_own_stays() {
        let two = json!({"a": {"type": "string", "format": "date"}, "b": {"type": "string", "format": "date"}});
        for schema in [
            json!({"oneOf": [{"properties": two}]}),
            json!({"properties": two, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({"properties": {"in": {"$id": "http://a/b", "properties": two}}}),
            json!({"enum": [two], "default": two}),
        ] {
            assert_eq!(shared(schema.clone()), schema);
        }
    }
}
