//! The form that an answer must have, in the words of OpenAI, TGI and vLLM.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use text_generation_grammar::GrammarSource;
use utoipa::ToSchema;

use super::sampling::{check, refused};
use crate::error::ApiError;
use crate::extract::from_value;
use crate::fields::Unsupported;
use crate::generations::{Names, with_form_of};

/// How the answer must look. OpenAI's types, and TGI's with a `value`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(example = json!({
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": {"type": "object", "properties": {"name": {"type": "string"}}}, "strict": true}
}))]
pub struct ResponseFormat {
    /// `text`, `json_object`, `json_schema`; TGI's `json` and `regex`.
    pub r#type: String,
    /// With the type `json_schema`.
    #[schema(nullable = true)]
    pub json_schema: Option<JsonSchema>,
    /// With TGI's types: the schema, an object with `schema`, or the regular expression.
    #[schema(nullable = true, value_type = Option<Object>)]
    pub value: Option<Value>,
    /// With `json_object`, and with `json_schema` in place of the object of that name: the schema, as llama.cpp has it.
    #[schema(nullable = true, value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// With `schema`, as in `json_schema`.
    #[schema(nullable = true)]
    pub strict: Option<bool>,
}

/// A schema and how strictly it holds.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct JsonSchema {
    #[schema(nullable = true)]
    pub name: Option<String>,
    /// Any JSON object when unset.
    #[schema(nullable = true, value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Refuse a schema of which a part cannot be enforced; else the header `x-grammar-not-enforced` names that part.
    #[schema(nullable = true)]
    pub strict: Option<bool>,
}

/// vLLM's name for the same: exactly one of these.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(example = json!({"regex": "[0-9]{3}"}))]
pub struct StructuredOutputs {
    /// A JSON schema, as an object or as text.
    #[schema(nullable = true, value_type = Option<Object>)]
    pub json: Option<Value>,
    #[schema(nullable = true)]
    pub regex: Option<String>,
    #[schema(nullable = true)]
    pub choice: Option<Vec<String>>,
    /// A grammar in EBNF (GBNF, with `::=`) or in Lark.
    #[schema(nullable = true)]
    pub grammar: Option<String>,
    /// Any JSON object.
    #[schema(nullable = true)]
    pub json_object: Option<bool>,
    #[serde(default)]
    #[schema(ignore)]
    pub structural_tag: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    pub whitespace_pattern: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    pub disable_any_whitespace: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    pub disable_additional_properties: Unsupported,
}

/// Everything in a body that may say the form of the answer.
#[derive(Debug, Default)]
pub struct Forms {
    pub response_format: Option<ResponseFormat>,
    pub structured_outputs: Option<StructuredOutputs>,
    pub guided_json: Option<Value>,
    pub guided_regex: Option<String>,
    pub guided_choice: Option<Vec<String>>,
    pub guided_grammar: Option<String>,
}

/// A field and the form that it asks for.
type Wish = (&'static str, Result<GrammarSource, ApiError>);

impl Forms {
    /// The one form that is asked for, and what the fields of `core` are called then.
    ///
    /// # Errors
    /// 422 that names the field that is wrong, or two that contradict each other.
    pub fn grammar(
        self,
        names: &'static Names,
    ) -> Result<(Option<GrammarSource>, Cow<'static, Names>), ApiError> {
        let mut wishes: Vec<Wish> = Vec::new();
        if let Some(format) = self.response_format {
            let source = format.source().transpose();
            wishes.extend(source.map(|source| ("response_format", source)));
        }
        if let Some(outputs) = self.structured_outputs {
            outputs.check_kind()?;
            wishes.extend(outputs.wishes());
        }
        wishes.extend(
            self.guided_json
                .map(|json| ("guided_json", schema("guided_json", json, false))),
        );
        wishes.extend(
            self.guided_regex
                .map(|regex| ("guided_regex", Ok(GrammarSource::Regex(regex)))),
        );
        wishes.extend(
            self.guided_choice
                .map(|list| ("guided_choice", choice("guided_choice", list))),
        );
        wishes.extend(
            self.guided_grammar
                .map(|text| ("guided_grammar", Ok(GrammarSource::grammar(text)))),
        );
        let mut form: Option<(&'static str, GrammarSource)> = None;
        for (field, source) in wishes {
            let source = source?;
            form = match form {
                None => Some((field, source)),
                Some((first, known)) => {
                    let one = in_one(known, source).ok_or_else(|| {
                        refused(format!(
                            "`{field}` and `{first}` ask for different forms of the answer: send one of them"
                        ))
                    })?;
                    Some((first, one))
                }
            };
        }
        Ok(match form {
            None => (None, names.into()),
            Some((field, source)) => (Some(source), with_form_of(names.into(), field)),
        })
    }
}

/// The form that two names of it ask for; nothing where they ask for different ones. One that is strict makes it so.
fn in_one(first: GrammarSource, second: GrammarSource) -> Option<GrammarSource> {
    use GrammarSource::JsonSchema;
    match (first, second) {
        (
            JsonSchema { schema, strict },
            JsonSchema {
                schema: other,
                strict: too,
            },
        ) => {
            let strict = strict || too;
            (schema == other).then_some(JsonSchema { schema, strict })
        }
        (first, second) => (first == second).then_some(first),
    }
}

impl ResponseFormat {
    /// A text has no schema, and one place of it is enough.
    fn check_parts(&self) -> Result<(), ApiError> {
        let parts = [
            self.json_schema.as_ref().map(|_| "json_schema"),
            self.value.as_ref().map(|_| "value"),
            self.schema.as_ref().map(|_| "schema"),
        ];
        let mut parts = parts.into_iter().flatten();
        let Some(first) = parts.next() else {
            return Ok(());
        };
        check(self.r#type != "text", || {
            format!(
                "`response_format.{first}` has no meaning with the type `text`: remove it, or send the type `json_schema`"
            )
        })?;
        parts.next().map_or(Ok(()), |second| {
            Err(refused(format_args!(
                "`response_format` must not have both `{first}` and `{second}`: send one of them"
            )))
        })
    }

    fn source(self) -> Result<Option<GrammarSource>, ApiError> {
        const FIELD: &str = "response_format";
        self.check_parts()?;
        let value = |value: Option<Value>| {
            value.ok_or_else(|| refused(format!("`{FIELD}.value` is missing")))
        };
        let beside = self.schema.map(|given| {
            schema(
                "response_format.schema",
                given,
                self.strict.unwrap_or(false),
            )
        });
        Ok(Some(match (self.r#type.as_str(), self.json_schema) {
            ("text", _) => return Ok(None),
            ("json_schema" | "json_object", Some(given)) => named(FIELD, given)?,
            ("json_schema", None) if self.value.is_none() => beside
                .unwrap_or_else(|| Err(refused(format!("`{FIELD}.json_schema` is missing"))))?,
            // TGI's, where the schema stands beside its name.
            ("json_schema", None) => {
                let given = from_value(&value(self.value)?, "response_format.value")?;
                named("response_format.value", given)?
            }
            ("json_object", None) if self.value.is_none() => {
                beside.unwrap_or(Ok(GrammarSource::JsonObject))?
            }
            ("json" | "json_object", _) => {
                schema("response_format.value", value(self.value)?, false)?
            }
            ("regex", _) => match value(self.value)? {
                Value::String(regex) => GrammarSource::Regex(regex),
                _ => return Err(refused("`response_format.value` must be a string")),
            },
            _ => {
                return Err(refused(format!(
                    "`{FIELD}.type` must be `text`, `json_object`, `json_schema`, `json` or `regex`"
                )));
            }
        }))
    }
}

impl StructuredOutputs {
    /// An object without any of the kinds, such as one with a misspelt key, would let the answer be anything.
    fn check_kind(&self) -> Result<(), ApiError> {
        let kinds = [
            self.json.is_some(),
            self.regex.is_some(),
            self.choice.is_some(),
            self.grammar.is_some(),
            self.json_object.is_some(),
        ];
        if kinds.contains(&true) {
            return Ok(());
        }
        Err(refused(
            "`structured_outputs` must have one of `json`, `regex`, `choice`, `grammar` and `json_object`",
        ))
    }

    fn wishes(self) -> impl Iterator<Item = Wish> {
        let any_object = self.json_object.unwrap_or(false);
        [
            self.json.map(|json| {
                (
                    "structured_outputs.json",
                    schema("structured_outputs.json", json, false),
                )
            }),
            self.regex
                .map(|regex| ("structured_outputs.regex", Ok(GrammarSource::Regex(regex)))),
            self.choice.map(|list| {
                (
                    "structured_outputs.choice",
                    choice("structured_outputs.choice", list),
                )
            }),
            self.grammar.map(|text| {
                (
                    "structured_outputs.grammar",
                    Ok(GrammarSource::grammar(text)),
                )
            }),
            any_object.then_some((
                "structured_outputs.json_object",
                Ok(GrammarSource::JsonObject),
            )),
        ]
        .into_iter()
        .flatten()
    }
}

fn named(field: &str, given: JsonSchema) -> Result<GrammarSource, ApiError> {
    match given.schema {
        None => Ok(GrammarSource::JsonObject),
        Some(given_schema) => schema(field, given_schema, given.strict.unwrap_or(false)),
    }
}

/// The form that a JSON schema gives, in whichever API: an object, or a text that holds one.
///
/// # Errors
/// 422 that names the field.
pub fn schema(field: &str, given: Value, strict: bool) -> Result<GrammarSource, ApiError> {
    GrammarSource::json_schema(given, strict)
        .map_err(|error| refused(format!("`{field}` is wrong: {error}")))
}

fn choice(field: &str, list: Vec<String>) -> Result<GrammarSource, ApiError> {
    check(!list.is_empty(), || {
        format!("`{field}` must not be an empty list")
    })?;
    Ok(GrammarSource::Choice(list))
}
