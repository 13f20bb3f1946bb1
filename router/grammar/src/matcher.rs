//! Follows one sample through a grammar.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::api::StopReason;
use llguidance::{TokenParser, panic_utils};
use toktrie::{Recognizer, TokenId};

use crate::budget::{Budget, thread_time};
use crate::clock::{Clock, Watch};
use crate::text::first_line;
use crate::{Ahead, GrammarError, Mask};

/// One sample's place in its grammar. It depends on the accepted ids alone, so a sample that pauses, moves or starts
/// again continues from a new matcher that has accepted the same ids.
///
/// It belongs to one thread at a time (`Send`). After an error it stays at that error.
pub struct Matcher {
    parser: TokenParser,
    watch: Arc<Watch>,
    /// The mask of this position, once it was asked for.
    mask: Option<Mask>,
    /// Items of the parser that it keeps, about, and may keep.
    items: usize,
    most_items: usize,
    budget: Budget,
    /// Those that the last look at the end made, and the next token makes again for nothing.
    looked: usize,
    finished: bool,
    failed: Option<GrammarError>,
}

impl Matcher {
    /// Of a parser that has accepted nothing yet, with the mask of the first token where it is known.
    pub(crate) fn new(
        mut parser: TokenParser,
        clock: &Clock,
        most_items: usize,
        budget: Budget,
        first: Option<Mask>,
    ) -> Self {
        let watch = clock.watch(parser.enable_cancellation());
        Self {
            parser,
            watch,
            mask: first,
            items: 0,
            most_items,
            budget,
            looked: 0,
            finished: false,
            failed: None,
        }
    }

    /// The tokens that may come next. Where the text may end, all ids that end a text are among them.
    ///
    /// # Errors
    /// `OutOfFuel`, if finding them takes more work, or time, than a step may take or the sample has left.
    pub fn mask(&mut self) -> Result<Mask, GrammarError> {
        if let Some(mask) = &self.mask {
            return Ok(mask.clone());
        }
        let finished = self.finished;
        let mask = self.run(|parser| {
            if finished {
                return Ok(Mask::new(&parser.token_env.tok_trie().eos_token_set()));
            }
            let tokens = parser.compute_mask().map_err(|error| error.to_string())?;
            Ok(Mask::new(&tokens))
        })?;
        self.mask = Some(mask.clone());
        Ok(mask)
    }

    /// Takes the token that came.
    ///
    /// # Errors
    /// `Rejected`, if the mask of this position does not have it; `OutOfFuel`, if to follow it takes more work, or time,
    /// than a step may take or the sample has left.
    pub fn accept(&mut self, id: u32) -> Result<(), GrammarError> {
        let trie = self.parser.token_env.tok_trie();
        let ends = trie.eos_tokens().contains(&id);
        if id as usize >= trie.vocab_size() || self.finished && !ends {
            return Err(self.fail(GrammarError::Rejected { id }));
        }
        if self.finished && self.failed.is_none() {
            return Ok(());
        }
        let allowed = self.mask.take().is_some_and(|mask| mask.allows(id));
        self.budget.earn();
        let made = |parser: &TokenParser| parser.parser_stats().all_items;
        let outcome = self.run(|parser| {
            let before = made(parser);
            if let Err(error) = parser.consume_token(id) {
                return Ok(Err(first_line(&error.to_string())));
            }
            let after = made(parser);
            let finished = advance(parser)?;
            Ok(Ok((finished, after - before, made(parser) - after)))
        })?;
        match outcome {
            Ok((finished, taken, looked)) => {
                self.finished = finished;
                self.keep(taken.saturating_sub(self.looked), looked)
            }
            // The parser keeps some of its limits to itself.
            Err(reason) if allowed => Err(self.fail(GrammarError::OutOfFuel { reason })),
            Err(_) => Err(self.fail(GrammarError::Rejected { id })),
        }
    }

    /// Counts the items that a token has added.
    fn keep(&mut self, items: usize, looked: usize) -> Result<(), GrammarError> {
        self.items += items;
        self.looked = looked;
        if self.items <= self.most_items {
            return Ok(());
        }
        let reason = format!("the text so far takes more than {} items", self.most_items);
        Err(self.fail(GrammarError::OutOfFuel { reason }))
    }

    /// Whether nothing but the end may follow.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// A copy that looks ahead. It takes some microseconds for each hundred tokens of the text.
    pub fn ahead(&self) -> Ahead {
        // A matcher that has failed knows nothing that follows.
        let ended = self.finished || self.failed.is_some();
        Ahead::new(self.parser.clone(), &self.watch, ended)
    }

    /// Runs a step of the library: its panics and all errors that it keeps inside become errors of this matcher.
    fn run<T>(
        &mut self,
        step: impl FnOnce(&mut TokenParser) -> Result<T, String>,
    ) -> Result<T, GrammarError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let parser = &mut self.parser;
        let began = thread_time();
        let outcome = self.watch.time(|| {
            panic_utils::catch_unwind(AssertUnwindSafe(|| {
                let outcome = step(parser);
                Ok((outcome, parser.parser.get_error()))
            }))
        });
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(limit) => {
                let reason = format!("one token took more than {} ms", limit.as_millis());
                return Err(self.fail(GrammarError::OutOfFuel { reason }));
            }
        };
        let taken = thread_time().saturating_sub(began);
        if let Err(reason) = self.budget.spend(taken) {
            return Err(self.fail(GrammarError::OutOfFuel { reason }));
        }
        match outcome {
            Ok((_, Some(error))) => {
                let reason = error.message();
                Err(self.fail(GrammarError::OutOfFuel { reason }))
            }
            Ok((Ok(value), None)) => Ok(value),
            Ok((Err(reason), None)) => {
                let error = match self.parser.stop_reason() {
                    StopReason::NoExtensionBias => GrammarError::DeadEnd,
                    _ => GrammarError::Internal { reason },
                };
                Err(self.fail(error))
            }
            Err(panic) => {
                let reason = first_line(&panic.to_string());
                Err(self.fail(GrammarError::Internal { reason }))
            }
        }
    }

    fn fail(&mut self, error: GrammarError) -> GrammarError {
        self.failed.get_or_insert(error).clone()
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Matcher")
            .field("tokens", &self.parser.num_tokens())
            .field("finished", &self.finished)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// Whether the text can only end here.
pub(crate) fn advance(parser: &mut TokenParser) -> Result<bool, String> {
    if parser.check_stop().map_err(|error| error.to_string())? {
        return Ok(true);
    }
    // A lexeme that could be longer as far as the library knows, but for which no byte is left.
    Ok(parser.is_accepting()
        && !parser
            .parser
            .with_recognizer(|recognizer| any_byte(recognizer)))
}

/// Whether any byte, the mark of special tokens among them, may come next.
fn any_byte(recognizer: &mut impl Recognizer) -> bool {
    recognizer.trie_started("any_byte");
    let any = (0..=u8::MAX).any(|byte| recognizer.byte_allowed(byte));
    recognizer.trie_finished();
    any
}

pub(crate) fn forced(parser: &mut TokenParser) -> Vec<TokenId> {
    let bytes = parser.force_bytes();
    if bytes.is_empty() {
        return Vec::new();
    }
    let env = parser.token_env.clone();
    let (mut tokens, fixed) = env.tokenize_bytes_marker(&bytes);
    // Without those at the end that could be the beginning of a longer token.
    let (open, _) = parser
        .parser
        .with_recognizer(|recognizer| env.tok_trie().chop_tokens(recognizer, &tokens[fixed..]));
    tokens.truncate(tokens.len() - open);
    tokens
}
