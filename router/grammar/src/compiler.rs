//! Compiles sources on threads of its own, within limits.

use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use serde_json::Value;
use tokio::time::timeout;

use crate::cache::{Cache, Lookup, Outcome};
use crate::clock::Clock;
use crate::lower::{self, Lowered};
use crate::workers::Workers;
use crate::{Grammar, GrammarError, GrammarSource, Vocabulary};

/// What a grammar may cost.
#[derive(Debug, Clone)]
pub struct CompilerLimits {
    /// Threads that compile.
    pub threads: NonZero<usize>,
    /// Sources that may wait for a thread; further ones are refused.
    pub queue: usize,
    /// How long a request waits for its grammar, its time in the queue included.
    pub time: Duration,
    /// Memory of the cache of compiled grammars, about.
    pub cache_bytes: usize,
    /// Size of a JSON schema, written as JSON.
    pub schema_bytes: usize,
    /// Levels of a JSON schema that lie in or refer to each other.
    pub schema_depth: usize,
    /// Size of a Lark or EBNF grammar.
    pub grammar_bytes: usize,
    /// Length of a regular expression.
    pub regex_bytes: usize,
    /// Number of choices.
    pub choices: usize,
    /// Size of all choices together.
    pub choice_bytes: usize,
    /// The longest whitespace between two parts of a JSON text; 0 for compact JSON.
    pub json_whitespace: u32,
    /// Work that compilation may take, in steps of the regular expression engine; about 50,000 take 1 ms.
    pub compile_fuel: u64,
    /// Work that one mask may take, in the same steps; about 14,000 take 1 ms.
    pub mask_fuel: u64,
    /// Items of the parser that one mask may make; about 20,000 take 1 ms.
    pub mask_items: usize,
    /// How long one mask, or taking one token, may take by the clock: a bound for grammars whose ambiguity makes items
    /// costly.
    pub mask_time: Duration,
    /// States of the regular expression engine that one sample may have; each takes 1 to 2 kB.
    pub states: usize,
}

impl Default for CompilerLimits {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            threads: NonZero::new(cores.div_ceil(8).min(4)).unwrap_or(NonZero::<usize>::MIN),
            queue: 256,
            time: Duration::from_secs(5),
            cache_bytes: 256 << 20,
            schema_bytes: 256 << 10,
            schema_depth: 512,
            grammar_bytes: 128 << 10,
            regex_bytes: 16 << 10,
            choices: 10_000,
            choice_bytes: 256 << 10,
            json_whitespace: 8,
            compile_fuel: 1_000_000,
            mask_fuel: 200_000,
            mask_items: 50_000,
            mask_time: Duration::from_millis(500),
            states: 50_000,
        }
    }
}

impl CompilerLimits {
    fn parser(&self) -> ParserLimits {
        ParserLimits {
            max_items_in_row: 2000,
            initial_lexer_fuel: self.compile_fuel,
            step_lexer_fuel: self.mask_fuel,
            step_max_items: self.mask_items,
            max_lexer_states: self.states,
            max_grammar_size: 500_000,
            precompute_large_lexemes: true,
            verbose_errors: false,
        }
    }
}

/// Makes grammars of sources for one vocabulary. Clones share threads and cache.
#[derive(Debug, Clone)]
pub struct Compiler {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
}

#[derive(Debug)]
struct Shared {
    vocabulary: Vocabulary,
    limits: CompilerLimits,
    cache: Cache,
    clock: Arc<Clock>,
}

impl Compiler {
    /// Starts the threads. They end with the last clone.
    pub fn new(vocabulary: Vocabulary, limits: CompilerLimits) -> Self {
        let workers = Workers::new(limits.threads, limits.queue);
        let cache = Cache::new(limits.cache_bytes);
        let clock = Arc::new(Clock::new(limits.mask_time));
        Self {
            shared: Arc::new(Shared {
                vocabulary,
                limits,
                cache,
                clock,
            }),
            workers: Arc::new(workers),
        }
    }

    pub fn vocabulary(&self) -> &Vocabulary {
        &self.shared.vocabulary
    }

    /// The grammar of `source`; equal sources are compiled once. Needs tokio's timer. A caller that goes away leaves the
    /// compilation to those who wait for the same source, and to the cache.
    pub async fn compile(&self, source: GrammarSource) -> Result<Arc<Grammar>, GrammarError> {
        let part = source.part();
        lower::check(&source, &self.shared.limits)?;
        let key = Arc::from(source.key());
        let mut waiting = match self.shared.cache.lookup(&key) {
            Lookup::Ready(grammar) => return Ok(grammar),
            Lookup::Pending(waiting) => waiting,
            Lookup::Missing(sender, waiting) => {
                let (shared, key_of_job) = (self.shared.clone(), key.clone());
                let job = move || {
                    let outcome = shared.compile(source);
                    shared.cache.finish(&key_of_job, &outcome);
                    sender.send_replace(Some(outcome));
                };
                if let Err(error) = self.workers.submit(Box::new(job)) {
                    self.shared.cache.finish(&key, &Err(error.clone()));
                    return Err(error);
                }
                waiting
            }
        };
        let limit = self.shared.limits.time;
        match timeout(limit, waiting.wait_for(Option::is_some)).await {
            Err(_) => Err(GrammarError::TooSlow { part, limit }),
            Ok(Ok(outcome)) => outcome.clone().unwrap_or(Err(gone())),
            Ok(Err(_)) => Err(gone()),
        }
    }
}

/// The job was dropped without an answer.
fn gone() -> GrammarError {
    GrammarError::Internal {
        reason: "its compilation ended without a result".to_owned(),
    }
}

impl Shared {
    fn compile(&self, source: GrammarSource) -> Outcome {
        let part = source.part();
        let Lowered {
            grammar,
            not_enforced,
            strict,
        } = lower::lower(source, &self.vocabulary, &self.limits)?;
        let grammar = self.engine(part, grammar, not_enforced)?;
        // What is missing may belong to another schema, which need not be strict.
        if !grammar.not_enforced().is_empty() {
            for schema in strict {
                self.check_strict(schema)?;
            }
        }
        Ok(Arc::new(grammar))
    }

    fn engine(
        &self,
        part: &'static str,
        grammar: TopLevelGrammar,
        not_enforced: Vec<String>,
    ) -> Result<Grammar, GrammarError> {
        let limits = self.limits.parser();
        let clock = self.clock.clone();
        Grammar::new(
            &self.vocabulary,
            &limits,
            clock,
            part,
            grammar,
            not_enforced,
        )
    }

    /// Refuses a schema, in the engine's words, of which the engine itself does not enforce a part.
    fn check_strict(&self, schema: Value) -> Result<(), GrammarError> {
        let grammar = TopLevelGrammar::from_json_schema(schema);
        let alone = self.engine(lower::SCHEMA, grammar, Vec::new())?;
        match alone.not_enforced().first() {
            Some(feature) => Err(lower::not_enforceable(feature)),
            None => Ok(()),
        }
    }
}
