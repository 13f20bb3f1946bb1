//! Lowering of what clients send to what the engine reads.

mod ebnf;
mod json;
mod lark;

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

pub(crate) use json::{check_types, warning};

use self::json::Relaxed;
use crate::{CompilerLimits, GrammarError, GrammarSource, Vocabulary};

/// How messages name a schema, wherever it stands.
pub(crate) const SCHEMA: &str = "the JSON schema";

/// A source in the engine's words.
pub(crate) struct Lowered {
    pub grammar: TopLevelGrammar,
    /// Of schemas that need not be enforced as a whole.
    pub not_enforced: Vec<String>,
    /// Schemas in the engine's words of which every part has to be enforced; what had to be taken out of one was an
    /// error already.
    pub strict: Vec<Value>,
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
        GrammarSource::Lark(grammar)
        | GrammarSource::Tools(grammar)
        | GrammarSource::Ebnf(grammar) => within("bytes", grammar.len(), limits.grammar_bytes),
        GrammarSource::Around { lark, inner, .. } => {
            within("bytes", lark.len(), limits.grammar_bytes)?;
            check(inner, limits)
        }
    }
}

/// Translates a source that has passed [`check`].
pub(crate) fn lower(
    source: GrammarSource,
    vocabulary: &Vocabulary,
    limits: &CompilerLimits,
) -> Result<Lowered, GrammarError> {
    let part = source.part();
    match source {
        GrammarSource::JsonObject => from_schema(GrammarSource::object_schema(), false, limits),
        GrammarSource::JsonSchema { schema, strict } => from_schema(schema, strict, limits),
        GrammarSource::Regex(regex) => Ok(from_lark(lark::regex(&regex))),
        GrammarSource::Choice(choices) => lark::choice(&choices).map(from_lark),
        GrammarSource::Lark(grammar) | GrammarSource::Tools(grammar) => {
            lark::lower(part, &grammar, vocabulary, limits)
        }
        GrammarSource::Ebnf(grammar) => {
            lark::from_ebnf(part, &ebnf::to_lark(&grammar)?, vocabulary, limits)
        }
        GrammarSource::Around { lark, name, inner } => {
            let mut inner = lower(*inner, vocabulary, limits)?;
            let mut around = lark::around(&lark, vocabulary, limits)?;
            if let Some(grammar) = inner.grammar.grammars.first_mut() {
                grammar.name = Some(name.to_owned());
            }
            around.grammar.grammars.append(&mut inner.grammar.grammars);
            around.not_enforced.append(&mut inner.not_enforced);
            around.strict.append(&mut inner.strict);
            Ok(around)
        }
    }
}

fn from_lark(grammar: String) -> Lowered {
    Lowered {
        grammar: TopLevelGrammar::from_lark(grammar),
        not_enforced: Vec::new(),
        strict: Vec::new(),
    }
}

fn from_schema(
    schema: Value,
    strict: bool,
    limits: &CompilerLimits,
) -> Result<Lowered, GrammarError> {
    let Relaxed {
        schema,
        not_enforced,
    } = json::relax(schema, strict, limits)?;
    Ok(Lowered {
        strict: if strict {
            vec![schema.clone()]
        } else {
            Vec::new()
        },
        grammar: TopLevelGrammar::from_json_schema(schema),
        not_enforced,
    })
}

/// The error for `feature` of a schema with `strict`.
pub(crate) fn not_enforceable(feature: &str) -> GrammarError {
    GrammarError::NotEnforceable {
        part: SCHEMA,
        feature: feature.to_owned(),
    }
}

fn invalid(part: &'static str, reason: impl Into<String>) -> GrammarError {
    GrammarError::Invalid {
        part,
        reason: reason.into(),
    }
}
