//! A compiled grammar.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::{Logger, TokenParser};
use toktrie::InferenceCapabilities;

use crate::budget::Budget;
use crate::clock::Clock;
use crate::lower::warning;
use crate::matcher::Matcher;
use crate::text::first_line;
use crate::{CompilerLimits, GrammarError, Mask, Vocabulary, places};

/// A compiled source, shared among all samples that follow it.
pub struct Grammar {
    /// Never moved on: every matcher begins as a copy of its own, so no sample uses up another one's limits.
    start: Mutex<TokenParser>,
    /// The mask of the first token, once it was asked for.
    first: OnceLock<Mask>,
    /// Likewise, the tokens that must come first.
    forced: OnceLock<Vec<u32>>,
    sample_items: usize,
    sample_time: Duration,
    token_time: Duration,
    clock: Arc<Clock>,
    not_enforced: Vec<String>,
    bytes: usize,
}

impl Grammar {
    /// Compiles `grammar`; `part` names the source in errors.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        limits: &CompilerLimits,
        clock: Arc<Clock>,
        part: &'static str,
        grammar: TopLevelGrammar,
        mut not_enforced: Vec<String>,
    ) -> Result<Self, GrammarError> {
        let parser = vocabulary.factory().create_parser_from_init_ext(
            GrammarInit::Serialized(grammar),
            Logger::new(0, 0),
            InferenceCapabilities::default(),
            limits.parser(),
        );
        let mut parser = parser.map_err(|error| compile_error(part, &error.to_string()))?;
        let token_time = token_time(&parser, limits)
            .ok_or_else(|| too_many_at_one_place(part, limits.places))?;
        parser.start_without_prompt();
        let warnings = parser.grammar_warnings();
        not_enforced.extend(warnings.iter().filter_map(|text| warning(text)));
        not_enforced.dedup();
        let bytes = parser.parser.lexer_stats().num_bytes;
        Ok(Self {
            start: Mutex::new(parser),
            first: OnceLock::new(),
            forced: OnceLock::new(),
            sample_items: limits.sample_items,
            sample_time: limits.sample_time,
            token_time,
            clock,
            not_enforced,
            bytes,
        })
    }

    /// A new sample at the beginning of the grammar.
    pub fn matcher(&self) -> Matcher {
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        let first = self.first.get().cloned();
        let budget = Budget::new(self.sample_time, self.token_time);
        Matcher::new(
            start.deep_clone(),
            &self.clock,
            self.sample_items,
            budget,
            first,
        )
    }

    /// The tokens that may come first. They are found once for all samples.
    ///
    /// # Errors
    /// As [`Matcher::mask`].
    pub fn first_mask(&self) -> Result<Mask, GrammarError> {
        if let Some(first) = self.first.get() {
            return Ok(first.clone());
        }
        let first = self.matcher().mask()?;
        Ok(self.first.get_or_init(|| first).clone())
    }

    /// The tokens that must come first ([`Ahead::forced`](crate::Ahead::forced)). They are found once for all samples.
    pub fn first_forced(&self) -> &[u32] {
        self.forced.get_or_init(|| self.matcher().ahead().forced())
    }

    /// What the source asks for and masks do not ensure: keywords of the schema with their places.
    pub fn not_enforced(&self) -> &[String] {
        &self.not_enforced
    }

    /// About how much memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Grammar")
            .field("bytes", &self.bytes)
            .field("not_enforced", &self.not_enforced)
            .finish_non_exhaustive()
    }
}

/// What a token may take, by how many rules may begin at one place; nothing where those are too many.
fn token_time(parser: &TokenParser, limits: &CompilerLimits) -> Option<Duration> {
    let within = |most: usize| places::within(parser.parser.grammar(), most.min(limits.places));
    if within(limits.few_places) {
        return Some(limits.token_time);
    }
    within(limits.places).then_some(limits.wide_token_time)
}

fn too_many_at_one_place(part: &'static str, limit: usize) -> GrammarError {
    GrammarError::TooComplex {
        part,
        reason: format!(
            "more than {limit} of its rules may begin at one place, where an object of a schema has four for each \
             property that is not in `required`"
        ),
    }
}

fn compile_error(part: &'static str, message: &str) -> GrammarError {
    let reason = regex_problem(part, message).unwrap_or_else(|| first_line(message));
    if reason.starts_with("panic") {
        return GrammarError::Internal { reason };
    }
    if ["too big", "too large", "too many", "exceeded"]
        .iter()
        .any(|words| reason.contains(words))
    {
        return GrammarError::TooComplex { part, reason };
    }
    GrammarError::Invalid { part, reason }
}

/// What is wrong with a regular expression, and where: the library draws that on several lines, the last of which says
/// what it is. It counts characters as the engine reads them, which writes `\d` as `[0-9]`: no number is repeated.
fn regex_problem(part: &'static str, message: &str) -> Option<String> {
    let (head, drawn) = message.split_once("regex parse error:\n")?;
    let lines: Vec<&str> = drawn.lines().collect();
    let end = lines.iter().position(|line| line.starts_with("error: "))?;
    let problem = lines.get(end)?.strip_prefix("error: ")?;
    let place = match &lines[..end] {
        // Both are indented by as much.
        [regex, marks] => marks.find('^').map(|at| {
            let rest: String = regex.chars().skip(at).take(SHOWN_OF_REGEX).collect();
            match rest.as_str() {
                "" => ", at its end".to_owned(),
                rest => format!(", at `{rest}`"),
            }
        }),
        _ => None,
    };
    let problem = format!("{problem}{}", place.unwrap_or_default());
    Some(match part {
        // There is nothing else that it could be about.
        "the regex" => problem,
        _ => first_line(&format!("{head}{problem}")),
    })
}

/// Characters from the wrong place on that a message repeats.
const SHOWN_OF_REGEX: usize = 40;
