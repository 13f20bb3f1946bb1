//! From what clients send to what the engine reads.

mod ebnf;
mod json;
mod lark;

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

pub(crate) use json::warning;

use self::json::Relaxed;
use crate::{CompilerLimits, GrammarError, GrammarSource, Vocabulary};

/// A source in the engine's words.
pub(crate) struct Lowered {
    pub grammar: TopLevelGrammar,
    pub not_enforced: Vec<String>,
}

/// Refuses a source that is too large, before anything is done with it.
pub(crate) fn check(source: &GrammarSource, limits: &CompilerLimits) -> Result<(), GrammarError> {
    let part = source.part();
    let within = |unit, found: usize, limit: usize| {
        if found <= limit {
            return Ok(());
        }
        Err(GrammarError::TooLarge {
            part,
            unit,
            found,
            limit,
        })
    };
    match source {
        GrammarSource::JsonObject => Ok(()),
        GrammarSource::JsonSchema { schema, .. } => {
            within("bytes", schema.to_string().len(), limits.schema_bytes)
        }
        GrammarSource::Regex(regex) => within("bytes", regex.len(), limits.regex_bytes),
        GrammarSource::Choice(choices) => {
            within("entries", choices.len(), limits.choices)?;
            let bytes = choices.iter().map(String::len).sum();
            within("bytes", bytes, limits.choice_bytes)
        }
        GrammarSource::Lark(grammar) | GrammarSource::Ebnf(grammar) => {
            within("bytes", grammar.len(), limits.grammar_bytes)
        }
    }
}

/// Translates a source that has passed [`check`].
pub(crate) fn lower(
    source: GrammarSource,
    vocabulary: &Vocabulary,
    limits: &CompilerLimits,
) -> Result<Lowered, GrammarError> {
    match source {
        GrammarSource::JsonObject => from_schema(GrammarSource::object_schema(), limits),
        GrammarSource::JsonSchema { schema, .. } => from_schema(schema, limits),
        GrammarSource::Regex(regex) => Ok(from_lark(lark::regex(&regex))),
        GrammarSource::Choice(choices) => lark::choice(&choices).map(from_lark),
        GrammarSource::Lark(grammar) => lark::lower(&grammar, vocabulary, limits),
        GrammarSource::Ebnf(grammar) => lark::lower(&ebnf::to_lark(&grammar)?, vocabulary, limits),
    }
}

fn from_lark(grammar: String) -> Lowered {
    Lowered {
        grammar: TopLevelGrammar::from_lark(grammar),
        not_enforced: Vec::new(),
    }
}

fn from_schema(schema: Value, limits: &CompilerLimits) -> Result<Lowered, GrammarError> {
    let Relaxed {
        schema,
        not_enforced,
    } = json::relax(schema, limits)?;
    Ok(Lowered {
        grammar: TopLevelGrammar::from_json_schema(schema),
        not_enforced,
    })
}

fn invalid(part: &'static str, reason: impl Into<String>) -> GrammarError {
    GrammarError::Invalid {
        part,
        reason: reason.into(),
    }
}
