//! The `grammar` of TGI.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use text_generation_grammar::GrammarSource;

/// As TGI's clients send it.
#[derive(Deserialize)]
#[serde(tag = "type", content = "value", rename_all = "snake_case")]
enum Wire {
    /// A JSON schema, as an object or as a string that holds one.
    #[serde(alias = "json_object")]
    Json(Value),
    JsonSchema(NamedSchema),
    Regex(String),
}

/// The name of a schema says nothing about outputs.
#[derive(Deserialize)]
struct NamedSchema {
    schema: Value,
}

/// For `deserialize_with` of a `grammar`; needs `default` beside it. What a schema asks for and cannot be enforced is
/// let through, as it is not a key of TGI to say otherwise.
pub fn tgi_grammar<'de, D>(deserializer: D) -> Result<Option<GrammarSource>, D::Error>
where
    D: Deserializer<'de>,
{
    let wire: Option<Wire> = Option::deserialize(deserializer)?;
    let source = wire.map(|wire| match wire {
        Wire::Json(schema) | Wire::JsonSchema(NamedSchema { schema }) => {
            GrammarSource::json_schema(schema, false)
        }
        Wire::Regex(regex) => Ok(GrammarSource::Regex(regex)),
    });
    source
        .transpose()
        .map_err(|error| serde::de::Error::custom(format_args!("grammar is not valid: {error}")))
}
