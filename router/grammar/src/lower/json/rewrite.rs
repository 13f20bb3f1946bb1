//! Says with keywords that the engine knows what a schema says with ones that it does not know.

use serde_json::{Map, Value, json};

/// As many alternatives as dependencies may make of one object: each doubles them.
const DEPENDENCIES: usize = 4;

/// Rewrites keywords of one schema, with the same meaning.
pub(super) fn rewrite(keywords: &mut Map<String, Value>) {
    dependencies(keywords);
    unevaluated(keywords, "unevaluatedProperties", "additionalProperties");
    unevaluated(keywords, "unevaluatedItems", "items");
    if !keywords.contains_key("then") && !keywords.contains_key("else") {
        keywords.remove("if");
    }
}

/// "If this name is there, then also that" is "this name is not there, or that is so".
fn dependencies(keywords: &mut Map<String, Value>) {
    let kinds = ["dependencies", "dependentRequired", "dependentSchemas"];
    let all: Vec<(String, Value)> = kinds
        .iter()
        .filter_map(|kind| keywords.get(*kind)?.as_object())
        .flat_map(|map| map.iter().map(|(name, then)| (name.clone(), then.clone())))
        .collect();
    let known = all
        .iter()
        .all(|(_, then)| then.is_array() || then.is_object() || then.is_boolean());
    if all.len() > DEPENDENCIES || !known {
        return;
    }
    for kind in kinds {
        keywords.remove(kind);
    }
    let alternatives = all.into_iter().map(|(name, then)| {
        let then = match then {
            Value::Array(names) => json!({"required": names}),
            schema => schema,
        };
        json!({"anyOf": [
            {"properties": {name.as_str(): false}},
            {"type": "object", "required": [name], "allOf": [then]},
        ]})
    });
    add_all_of(keywords, alternatives.collect());
}

/// Where no other keyword evaluates anything in place, what is not evaluated is what is additional.
fn unevaluated(keywords: &mut Map<String, Value>, keyword: &str, plain: &str) {
    const IN_PLACE: [&str; 11] = [
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "contains",
        "dependentSchemas",
        "dependencies",
    ];
    if keywords.contains_key(plain) || IN_PLACE.iter().any(|other| keywords.contains_key(*other)) {
        return;
    }
    if let Some(schema) = keywords.remove(keyword) {
        keywords.insert(plain.to_owned(), schema);
    }
}

/// Adds schemas that must hold as well.
pub(super) fn add_all_of(keywords: &mut Map<String, Value>, schemas: Vec<Value>) {
    if schemas.is_empty() {
        return;
    }
    let all_of = keywords.entry("allOf").or_insert_with(|| json!([]));
    if let Value::Array(all_of) = all_of {
        all_of.extend(schemas);
    }
}
