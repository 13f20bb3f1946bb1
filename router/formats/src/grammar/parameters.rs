//! Arguments as elements, one for each.

use serde_json::Value;

use super::calls::custom_text;
use super::lark::{Lark, escape_regex, string};
use super::values::enforceable_text;
use crate::error::FormatError;
use crate::format::{Format, Parameters};
use crate::schema::{self, Types};
use crate::tool::{CUSTOM_INPUT, CustomGrammar, Tool};

impl Format {
    /// The elements of the arguments in the order of the schema; those that are not required may be missing.
    pub(super) fn parameters(
        &self,
        lark: &mut Lark,
        parameters: &Parameters,
        tool: &Tool,
        root: &Value,
        custom: Option<&CustomGrammar>,
    ) -> Result<String, FormatError> {
        let object = schema::resolve(root, root, 0);
        let properties = object.get("properties").and_then(Value::as_object);
        let mut parts = Vec::new();
        for (key, schema) in properties.into_iter().flatten() {
            if lark.is_full() {
                break;
            }
            let value = match custom {
                Some(grammar) if key == CUSTOM_INPUT => custom_value(lark, parameters, grammar),
                _ => self.parameter(lark, parameters, tool, root, schema)?,
            };
            let element = argument(lark, parameters, &string(key), &value);
            parts.push(match schema::requires(object, key) {
                true => element,
                false => format!("{element}?"),
            });
        }
        let open_ended = object.get("additionalProperties") != Some(&Value::Bool(false));
        if properties.is_none_or(serde_json::Map::is_empty) && open_ended {
            let before = before_value(lark, parameters, Types::TEXT);
            let value = format!("{before} {}", lark.until(&parameters.close));
            let any = argument(lark, parameters, "/[A-Za-z0-9_.-]{1,64}/", &value);
            parts.push(format!("{any}*"));
        }
        Ok(parts.join(" "))
    }

    /// The value of an element and what closes it, after what says its type where the format says it.
    fn parameter(
        &self,
        lark: &mut Lark,
        parameters: &Parameters,
        tool: &Tool,
        root: &Value,
        schema: &Value,
    ) -> Result<String, FormatError> {
        let types = schema::types(schema, root);
        if let Some(values) = schema::finite(schema, root) {
            return Ok(listed(lark, parameters, &values));
        }
        if parameters.attribute.is_none() || types.is_unknown() || types == Types::TEXT {
            return self.value(lark, parameters, tool, root, schema, types);
        }
        // Which value it is stands before it, so each kind has its own way.
        let mut ways = Vec::new();
        if types.has(Types::TEXT) {
            ways.push(self.value(lark, parameters, tool, root, schema, Types::TEXT)?);
        }
        for (_, others) in parameters.attribute.iter().flat_map(|said| said.others) {
            if let Some(schema) = schema::restricted(schema, root, *others) {
                ways.push(self.value(lark, parameters, tool, root, &schema, *others)?);
            }
        }
        Ok(lark.rule("value", &ways.join(" | ")))
    }

    /// A value of these types, of which texts stand as they are, and what is around it.
    fn value(
        &self,
        lark: &mut Lark,
        parameters: &Parameters,
        tool: &Tool,
        root: &Value,
        schema: &Value,
        types: Types,
    ) -> Result<String, FormatError> {
        let before = before_value(lark, parameters, types);
        if types.has(Types::TEXT) || types.is_unknown() {
            let (text, missed) = enforceable_text(schema::resolve(schema, root, 0));
            if let (true, Some(part)) = (tool.strict, missed) {
                return Err(self.not_enforceable(tool, &part));
            }
            // Padding before the marker belongs to the text here, as the parser finds the marker without it too.
            let value = lark.text_until(
                &format!("{text}{}", optional(parameters.padding)),
                &parameters.close,
            );
            return Ok(format!("{before} {value}"));
        }
        let value = lark.json(&schema::with_definitions(schema, root), tool.strict);
        Ok(format!("{before} {value} {}", close(lark, parameters)))
    }
}

/// The rule for an element with this key, and a value with what closes it.
fn argument(lark: &mut Lark, parameters: &Parameters, key: &str, value: &str) -> String {
    let open = lark.literal(&format!("{}{}", parameters.separator, parameters.open));
    let end = lark.literal(&parameters.key_end);
    lark.rule("argument", &format!("{open} {key} {end} {value}"))
}

/// What closes an element.
fn close(lark: &Lark, parameters: &Parameters) -> String {
    lark.literal(&format!("{}{}", parameters.padding, parameters.close))
}

/// One of these values, and what is around it.
fn listed(lark: &mut Lark, parameters: &Parameters, values: &[Value]) -> String {
    let ways: Vec<String> = values
        .iter()
        .map(|value| {
            let before = before_value(lark, parameters, Types::of(value));
            let value = match value {
                Value::String(text) => string(text),
                other => string(&other.to_string()),
            };
            format!("{before} {value}")
        })
        .collect();
    let values = lark.rule("values", &ways.join(" | "));
    format!("{values} {}", close(lark, parameters))
}

/// A regex for this text or nothing.
fn optional(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!("(?:{})?", escape_regex(text))
}

/// What stands before a value of these types.
fn before_value(lark: &Lark, parameters: &Parameters, types: Types) -> String {
    let padding = lark.literal(parameters.padding);
    let Some(attribute) = parameters.attribute else {
        return padding;
    };
    let word = lark.literal(&attribute.written(types));
    format!("{word} {padding}")
}

/// The input of a custom tool and what closes it.
fn custom_value(lark: &mut Lark, parameters: &Parameters, grammar: &CustomGrammar) -> String {
    let before = before_value(lark, parameters, Types::TEXT);
    let value = lark.rule("input", &custom_text(grammar));
    format!("{before} {value} {}", close(lark, parameters))
}
