//! Sources of a grammar, as a client may ask for them.

use std::hash::{Hash, Hasher};

use serde_json::{Map, Value};

use crate::GrammarError;
use crate::text::literal;

/// The rule that an output follows, as clients send it.
#[derive(Debug, Clone)]
pub enum GrammarSource {
    /// Any JSON object.
    JsonObject,
    /// A JSON value that the schema allows. With `strict`, a keyword that cannot be enforced is an error.
    JsonSchema { schema: Value, strict: bool },
    /// The whole text matches this regular expression.
    Regex(String),
    /// The text is one of these.
    Choice(Vec<String>),
    /// A grammar in the Lark dialect of llguidance, which OpenAI's custom tools use.
    Lark(String),
    /// The grammar of a request's tools, in the same dialect. The client has not sent it.
    Tools(String),
    /// A grammar in GBNF, the form of llama.cpp, or in the EBNF that vLLM takes as `guided_grammar`.
    Ebnf(String),
    /// A grammar in Lark around another source, for which `@name` stands in it.
    Around {
        lark: String,
        name: &'static str,
        inner: Box<GrammarSource>,
    },
}

impl GrammarSource {
    /// A schema that is given as JSON or as a string that holds JSON, as TGI accepts both.
    pub fn json_schema(schema: Value, strict: bool) -> Result<Self, GrammarError> {
        let schema = match schema {
            Value::String(text) => {
                serde_json::from_str(&text).map_err(|error| GrammarError::Invalid {
                    part: "the JSON schema",
                    reason: format!("it is a string that is not JSON: {error}"),
                })?
            }
            schema => schema,
        };
        match schema {
            Value::Object(_) | Value::Bool(_) => Ok(Self::JsonSchema { schema, strict }),
            _ => Err(GrammarError::Invalid {
                part: "the JSON schema",
                reason: "it must be an object".to_owned(),
            }),
        }
    }

    /// The same behind `text`, which comes first.
    #[must_use]
    pub fn after(self, text: &str) -> Self {
        Self::Around {
            lark: format!("start: {} @answer\n", literal(text)),
            name: "answer",
            inner: Box::new(self),
        }
    }

    /// A grammar in Lark or EBNF: what has `::=` is EBNF.
    pub fn grammar(text: String) -> Self {
        match text.contains("::=") {
            true => Self::Ebnf(text),
            false => Self::Lark(text),
        }
    }

    /// How messages name it.
    pub fn part(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema { .. } => "the JSON schema",
            Self::Regex(_) => "the regex",
            Self::Choice(_) => "the list of choices",
            Self::Lark(_) => "the Lark grammar",
            Self::Tools(_) => "the grammar of the tools",
            Self::Ebnf(_) => "the EBNF grammar",
            // The client has sent no more than this.
            Self::Around { inner, .. } => inner.part(),
        }
    }

    /// All that decides what is compiled, as one text. Keys of a schema stay in order, since outputs have that order.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::JsonObject => "object".to_owned(),
            Self::JsonSchema { schema, strict } => format!("schema {strict} {schema}"),
            Self::Regex(regex) => format!("regex {regex}"),
            Self::Choice(choices) => {
                format!("choice {}", Value::from(choices.as_slice()))
            }
            Self::Lark(grammar) => format!("lark {grammar}"),
            Self::Tools(grammar) => format!("tools {grammar}"),
            Self::Ebnf(grammar) => format!("ebnf {grammar}"),
            Self::Around { lark, name, inner } => {
                format!("around {name} {} {lark} {}", lark.len(), inner.key())
            }
        }
    }

    pub(crate) fn object_schema() -> Value {
        Value::Object(Map::from_iter([("type".to_owned(), Value::from("object"))]))
    }
}

impl PartialEq for GrammarSource {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for GrammarSource {}

impl Hash for GrammarSource {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}
