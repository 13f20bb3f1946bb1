//! The field `text` of a body: what the text of the answer looks like.

use serde::Deserialize;
use serde_json::{Value, json};
use text_generation_grammar::GrammarSource;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::extract::nullable_object;
use crate::routes::openai::sampling::refused;
use crate::routes::openai::structured::schema;

/// What the text of the answer looks like.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct TextBody {
    #[serde(default, deserialize_with = "nullable_object")]
    #[schema(nullable = true)]
    pub format: Option<TextFormat>,
    /// Repeated in the answer.
    #[schema(nullable = true, example = "medium")]
    pub verbosity: Option<String>,
}

/// `{"type": "text"}`, `{"type": "json_object"}`, or `json_schema` with a `schema`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct TextFormat {
    #[schema(example = "json_schema")]
    pub r#type: String,
    #[schema(nullable = true)]
    pub name: Option<String>,
    #[schema(nullable = true)]
    pub description: Option<String>,
    #[schema(nullable = true, value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Refuse what cannot be enforced.
    #[schema(nullable = true)]
    pub strict: Option<bool>,
}

impl TextFormat {
    /// As the response repeats it.
    pub fn repeated(&self) -> Value {
        if self.r#type != "json_schema" {
            return json!({ "type": self.r#type });
        }
        json!({
            "type": self.r#type, "name": self.name, "description": self.description, "schema": self.schema,
            "strict": self.strict,
        })
    }

    /// The grammar that it asks for; nothing for any text.
    ///
    /// # Errors
    /// 422 that names the field.
    pub fn grammar(self) -> Result<Option<GrammarSource>, ApiError> {
        match (self.r#type.as_str(), self.schema) {
            ("text", None) => Ok(None),
            ("text", Some(_)) => Err(refused(
                "`text.format.schema` has no meaning with the type `text`: remove it, or send the type `json_schema`",
            )),
            ("json_object", None) => Ok(Some(GrammarSource::JsonObject)),
            ("json_object" | "json_schema", Some(given)) => {
                let strict = self.strict.unwrap_or(false);
                schema("text.format.schema", given, strict).map(Some)
            }
            ("json_schema", None) => Err(refused("`text.format.schema` is missing")),
            (kind, _) => Err(refused(format_args!(
                "`text.format.type` must be `text`, `json_object` or `json_schema`. Given: `{kind}`"
            ))),
        }
    }
}
