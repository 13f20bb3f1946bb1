//! Looks ahead of a sample: which tokens must follow, and what may follow tokens that have not come.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::{TokenParser, panic_utils};

use crate::Mask;
use crate::clock::Watch;
use crate::matcher::{advance, forced};

/// A copy of a sample at its place. Nothing that it does moves the sample on or uses up what the sample may cost; it ends
/// where a step of it takes too long or fails.
pub struct Ahead {
    parser: TokenParser,
    watch: Arc<Watch>,
    finished: bool,
}

impl Ahead {
    pub(crate) fn new(mut parser: TokenParser, watch: &Watch, finished: bool) -> Self {
        let watch = watch.of_copy(parser.enable_cancellation());
        Self {
            parser,
            watch,
            finished,
        }
    }

    /// The tokens that must come next, as far as a tokenizer that takes the longest tokens writes them. They are
    /// proposals: the model may write the same text with other tokens, which the masks allow as well.
    pub fn forced(mut self) -> Vec<u32> {
        if self.finished {
            return Vec::new();
        }
        self.run(|parser| Some(forced(parser))).unwrap_or_default()
    }

    /// The masks of the places behind these tokens, one after the other, as far as each token is allowed at its place:
    /// the first by `mask`, which is that of the sample.
    pub fn masks(mut self, mask: &Mask, tokens: &[u32]) -> Vec<Mask> {
        let mut masks: Vec<Mask> = Vec::new();
        for &token in tokens {
            if self.finished || !masks.last().unwrap_or(mask).allows(token) {
                break;
            }
            let Some(next) = self.behind(token) else {
                break;
            };
            masks.push(next);
        }
        masks
    }

    fn behind(&mut self, token: u32) -> Option<Mask> {
        self.finished = self.run(|parser| {
            parser.consume_token(token).ok()?;
            advance(parser).ok()
        })?;
        let finished = self.finished;
        self.run(|parser| {
            if finished {
                return Some(Mask::new(&parser.token_env.tok_trie().eos_token_set()));
            }
            parser.compute_mask().ok().map(|tokens| Mask::new(&tokens))
        })
    }

    fn run<T>(&mut self, step: impl FnOnce(&mut TokenParser) -> Option<T>) -> Option<T> {
        let parser = &mut self.parser;
        let outcome = self.watch.time(|| {
            panic_utils::catch_unwind(AssertUnwindSafe(|| {
                let found = step(parser);
                Ok(found.filter(|_| parser.parser.get_error().is_none()))
            }))
        });
        outcome.ok()?.ok()?
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Ahead")
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}
