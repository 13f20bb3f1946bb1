//! JSON schemas.

use serde_json::{Value, json};

use super::{Lowered, from_schema};
use crate::{CompilerLimits, GrammarError};

pub(super) fn lower(
    schema: Value,
    strict: bool,
    limits: &CompilerLimits,
) -> Result<Lowered, GrammarError> {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        schema => serde_json::Map::from_iter([("allOf".to_owned(), json!([schema]))]),
    };
    let options = match limits.json_whitespace {
        0 => json!({"whitespace_flexible": false, "lenient": !strict}),
        longest => {
            json!({"whitespace_pattern": format!(r"[\x20\x0A\x0D\x09]{{1,{longest}}}"), "lenient": !strict})
        }
    };
    schema.insert("x-guidance".to_owned(), options);
    Ok(from_schema(Value::Object(schema)))
}
