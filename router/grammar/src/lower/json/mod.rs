//! JSON schemas: what the engine cannot enforce is taken out and named, so that the rest is enforced.

mod depth;
mod finite;
mod formats;
mod numbers;
mod patterns;
mod relax;
mod rewrite;
mod share;
mod size;
mod types;

use serde_json::{Map, Value, json};

pub(crate) use types::check as check_types;

use crate::{CompilerLimits, GrammarError};

/// Key of the engine's own options in a schema. Those of clients are not passed on; of a schema in Lark, `lenient` says
/// whether it may be enforced in parts.
const OPTIONS: &str = "x-guidance";

/// Whether a schema in Lark has to be enforced as a whole, as the engine's dialect says it.
pub(super) fn is_strict(schema: &Value) -> bool {
    schema[OPTIONS]["lenient"] == false
}

/// What a reference within the document leads to.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(fragment(id(root), reference)?)
}

/// The name that a document gives itself.
fn id(root: &Value) -> Option<&str> {
    root.get("$id")?.as_str()
}

/// The place within the document that a reference names, which may begin with the whole name of the document, or with
/// the last part of it; nothing for other documents.
fn fragment<'a>(id: Option<&str>, reference: &'a str) -> Option<&'a str> {
    let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
    let own = |id: &str| id == document || id.rsplit('/').next() == Some(document);
    (document.is_empty() || id.is_some_and(own)).then_some(fragment)
}

/// Whether a schema has a base of its own for the references within.
fn has_base(keywords: &Map<String, Value>) -> bool {
    keywords.contains_key("$id") || keywords.contains_key("id")
}

/// A schema that the engine can compile.
pub(super) struct Relaxed {
    pub schema: Value,
    pub not_enforced: Vec<String>,
}

/// Leaves of `schema` what can be enforced; with `strict` that has to be all of it.
pub(super) fn relax(
    schema: Value,
    strict: bool,
    limits: &CompilerLimits,
) -> Result<Relaxed, GrammarError> {
    depth::check(&schema, limits.schema_depth)?;
    check_types(&schema)?;
    let mut not_enforced = Vec::new();
    let schema = relax::relax(schema, &mut not_enforced);
    finite::check(&schema)?;
    size::check(&schema, limits)?;
    let mut schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(super::invalid(super::SCHEMA, "nothing matches `false`")),
        _ => return Err(super::invalid(super::SCHEMA, "it must be an object")),
    };
    if let Some(feature) = not_enforced.first().filter(|_| strict) {
        return Err(super::not_enforceable(feature));
    }
    share::share(&mut schema);
    schema.insert(OPTIONS.to_owned(), options(limits.json_whitespace));
    Ok(Relaxed {
        schema: Value::Object(schema),
        not_enforced,
    })
}

/// `lenient`: what the engine finds out itself that it cannot enforce is a warning, see [`warning`].
fn options(whitespace: u32) -> Value {
    match whitespace {
        0 => json!({"lenient": true, "whitespace_flexible": false}),
        longest => json!({
            "lenient": true,
            "whitespace_pattern": format!(r"[\x20\x0A\x0D\x09]{{1,{longest}}}"),
        }),
    }
}

/// What a warning of the engine says is not enforced.
pub(crate) fn warning(text: &str) -> Option<String> {
    if text.contains("oneOf") {
        Some("`oneOf` whose alternatives overlap".to_owned())
    } else if text.contains("min/maxProperties") {
        Some("`minProperties` or `maxProperties` beside optional properties".to_owned())
    } else {
        None
    }
}
