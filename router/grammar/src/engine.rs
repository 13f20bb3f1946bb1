//! Engine that makes a grammar of a source, on the thread that asks.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use crate::cache::Outcome;
use crate::clock::Clock;
use crate::lower::{self, Lowered};
use crate::{CompilerLimits, Grammar, GrammarError, GrammarSource, Vocabulary};

/// Compiles for one vocabulary, within limits.
#[derive(Debug)]
pub(crate) struct Engine {
    vocabulary: Vocabulary,
    limits: CompilerLimits,
    clock: Arc<Clock>,
}

impl Engine {
    pub fn new(vocabulary: Vocabulary, limits: CompilerLimits) -> Self {
        Self {
            vocabulary,
            clock: Arc::new(Clock::new(limits.mask_time)),
            limits,
        }
    }

    pub fn compile(&self, source: GrammarSource) -> Outcome {
        let part = source.part();
        let Lowered {
            grammar,
            not_enforced,
            strict,
        } = lower::lower(source, &self.vocabulary, &self.limits)?;
        let grammar = self.grammar(part, grammar, not_enforced)?;
        // What is missing may belong to another schema, which need not be strict.
        if !grammar.not_enforced().is_empty() {
            for schema in strict {
                self.check_strict(schema)?;
            }
        }
        Ok(Arc::new(grammar))
    }

    fn grammar(
        &self,
        part: &'static str,
        grammar: TopLevelGrammar,
        not_enforced: Vec<String>,
    ) -> Result<Grammar, GrammarError> {
        let clock = self.clock.clone();
        Grammar::new(
            &self.vocabulary,
            &self.limits,
            clock,
            part,
            grammar,
            not_enforced,
        )
    }

    /// Refuses a schema, in the engine's words, of which the engine itself does not enforce a part.
    fn check_strict(&self, schema: Value) -> Result<(), GrammarError> {
        let grammar = TopLevelGrammar::from_json_schema(schema);
        let alone = self.grammar(lower::SCHEMA, grammar, Vec::new())?;
        match alone.not_enforced().first() {
            Some(feature) => Err(lower::not_enforceable(feature)),
            None => Ok(()),
        }
    }
}
