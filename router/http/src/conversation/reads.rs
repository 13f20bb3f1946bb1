//! How the answers to one request are read, and held to what it asks for.

use std::sync::Arc;

use serde_json::{Value, json};
use text_generation_formats::{
    Answer, Constraint, Format, FormatError, IdSource, OutputParser, ParserOptions, SpecialTokens,
    ToolChoice,
};
use text_generation_grammar::GrammarSource;

use crate::error::ApiError;

/// White space between the parts of JSON is bounded, so that a model cannot write it without end.
const JSON_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,8}";

/// The format of one request's answers.
#[derive(Debug, Clone)]
pub(super) struct Reads {
    pub format: Arc<Format>,
    pub options: ParserOptions,
    pub choice: ToolChoice,
    /// Whether the format's special tokens are in the text that is read.
    pub keeps_special_tokens: bool,
    pub special_tokens: Arc<SpecialTokens>,
}

impl Reads {
    /// For one answer to `prompt`, which may have begun the reasoning.
    pub fn parser(&self, prompt: &str) -> OutputParser {
        let options = ParserOptions {
            // Each answer has ids of its own.
            ids: IdSource::default(),
            ..self.options.clone()
        };
        self.format.parser(prompt, &options)
    }

    /// The grammar of an answer to `prompt` whose content has the form `content`: reasoning and calls stand beside it.
    ///
    /// # Errors
    /// 422 when the format of the model cannot have this.
    pub fn grammar(
        &self,
        prompt: &str,
        content: Option<GrammarSource>,
    ) -> Result<Option<GrammarSource>, ApiError> {
        // Nothing can stand beside it.
        if self.options.tools.is_empty() && !self.format.has_reasoning() {
            return Ok(content);
        }
        let constraint = Constraint {
            tools: &self.options.tools,
            choice: &self.choice,
            parallel: self.options.parallel,
            answer: &answer(content)?,
            prompt_tail: prompt,
            special_tokens: &self.special_tokens,
        };
        let grammar = self.format.grammar(&constraint);
        let grammar = grammar.map_err(|error| refused(&error))?;
        Ok(grammar.map(GrammarSource::Lark))
    }
}

/// What the format is told of the content.
fn answer(content: Option<GrammarSource>) -> Result<Answer, ApiError> {
    Ok(match content {
        None => Answer::Free,
        Some(GrammarSource::JsonObject) => Answer::Json(json!({"type": "object"})),
        Some(GrammarSource::JsonSchema { schema, strict }) => {
            Answer::Json(embedded(schema, strict))
        }
        Some(GrammarSource::Regex(regex)) => Answer::Regex(regex),
        Some(GrammarSource::Choice(choices)) => Answer::Lark(choice(&choices)),
        Some(GrammarSource::Lark(grammar)) => Answer::Lark(grammar),
        Some(GrammarSource::Ebnf(_)) => {
            return Err(ApiError::invalid_body(
                "Input validation error: `grammar` in EBNF cannot be combined with tools or reasoning: write it in \
                 Lark, or send the request without tools to a server with `--reasoning-parser none`",
            ));
        }
    })
}

/// A schema inside of a grammar. What cannot be enforced is let through where it need not be.
fn embedded(mut schema: Value, strict: bool) -> Value {
    if let Some(schema) = schema.as_object_mut().filter(|_| !strict) {
        let options = json!({"lenient": true, "whitespace_pattern": JSON_SPACE});
        schema.insert("x-guidance".to_owned(), options);
    }
    schema
}

/// A grammar of these texts.
fn choice(choices: &[String]) -> String {
    let texts = choices
        .iter()
        .map(|text| Value::from(text.as_str()).to_string());
    let texts: Vec<String> = texts.collect();
    format!("start: {}", texts.join(" | "))
}

fn refused(error: &FormatError) -> ApiError {
    ApiError::invalid_body(format!("Input validation error: {error}"))
}
