//! Limits of what a grammar may cost.

use std::num::NonZero;
use std::thread;
use std::time::Duration;

use llguidance::api::ParserLimits;

/// What a grammar may cost.
#[derive(Debug, Clone)]
pub struct CompilerLimits {
    /// Threads that compile.
    pub threads: NonZero<usize>,
    /// Sources that may wait for a thread; further ones are refused.
    pub queue: usize,
    /// How long a grammar may wait for a thread, and how long a thread may compile it before the request is refused and
    /// the thread counts as stuck and another takes its place.
    pub time: Duration,
    /// Stuck threads that are replaced. Further ones leave fewer threads; where none is left new grammars are refused.
    pub replaced_threads: usize,
    /// Memory of the cache of compiled grammars, about.
    pub cache_bytes: usize,
    /// Size of a JSON schema, written as JSON.
    pub schema_bytes: usize,
    /// Levels of a JSON schema that lie in or refer to each other.
    pub schema_depth: usize,
    /// Properties of one object that may be left out: each is four rules that may begin at one place.
    pub optional_properties: usize,
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
    /// Rules that may begin at one place. A token that comes to such a place takes a time that grows with their square:
    /// 12,000 rules take 25 ms.
    pub places: usize,
    /// Items of the parser that one mask may make; about 20,000 take 1 ms, and longer where many are at one place.
    pub mask_items: usize,
    /// Items that one sample may keep, about; each takes 8 bytes.
    pub sample_items: usize,
    /// How long one mask, or taking one token, may take by the clock: a bound for grammars whose ambiguity makes items
    /// costly.
    pub mask_time: Duration,
    /// CPU time that the tokens of one sample may take beyond what each of them may.
    pub sample_time: Duration,
    /// CPU time that each token adds to that. It must not be less than tokens of real grammars take in the mean.
    pub token_time: Duration,
    /// The same where more than [`Self::few_places`] rules may begin at one place. Objects with 4,000 short properties
    /// that may be left out take 28 ms a token.
    pub wide_token_time: Duration,
    /// Rules that may begin at one place while tokens still take `token_time`.
    pub few_places: usize,
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
            replaced_threads: 4,
            cache_bytes: 256 << 20,
            schema_bytes: 256 << 10,
            schema_depth: 512,
            optional_properties: 4000,
            grammar_bytes: 128 << 10,
            regex_bytes: 16 << 10,
            choices: 10_000,
            choice_bytes: 256 << 10,
            json_whitespace: 8,
            compile_fuel: 1_000_000,
            mask_fuel: 200_000,
            places: 16_384,
            mask_items: 1_000_000,
            sample_items: 32_000_000,
            mask_time: Duration::from_millis(500),
            sample_time: Duration::from_secs(1),
            token_time: Duration::from_millis(10),
            wide_token_time: Duration::from_millis(50),
            few_places: 2000,
            states: 50_000,
        }
    }
}

impl CompilerLimits {
    pub(crate) fn parser(&self) -> ParserLimits {
        ParserLimits {
            // What a mask allows has to be taken: the clock and the items of a mask are the limits of both.
            max_items_in_row: self.mask_items,
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
