//! From what clients send to what the engine reads.

mod json;
mod lark;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::regex_to_lark;
use serde_json::Value;

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
    _vocabulary: &Vocabulary,
    limits: &CompilerLimits,
) -> Result<Lowered, GrammarError> {
    let part = source.part();
    match source {
        GrammarSource::JsonObject => json::lower(GrammarSource::object_schema(), true, limits),
        GrammarSource::JsonSchema { schema, strict } => json::lower(schema, strict, limits),
        GrammarSource::Regex(regex) => Ok(from_lark(format!(
            "start: /{}/",
            regex_to_lark(&regex, "d")
        ))),
        GrammarSource::Choice(choices) => {
            if choices.is_empty() {
                return Err(GrammarError::Invalid {
                    part,
                    reason: "it is empty".to_owned(),
                });
            }
            Ok(from_lark(lark::choice(&choices)))
        }
        GrammarSource::Lark(grammar) => Ok(from_lark(grammar)),
        GrammarSource::Ebnf(_) => Err(GrammarError::Invalid {
            part,
            reason: "not yet".to_owned(),
        }),
    }
}

fn from_lark(grammar: String) -> Lowered {
    Lowered {
        grammar: TopLevelGrammar::from_lark(grammar),
        not_enforced: Vec::new(),
    }
}

fn from_schema(schema: Value) -> Lowered {
    Lowered {
        grammar: TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(schema)),
        not_enforced: Vec::new(),
    }
}
