//! Constraint of one generation: its grammar and its bad words.

use text_generation_client::types::{Row, TokenId};
use text_generation_grammar::{GrammarError, Mask, Matcher};

use super::ValidGrammar;
use super::bad_words::{BadWordWatch, BadWords};

/// Where one generation stands in its grammar and its bad words. It belongs to the request, not to its row, so it
/// survives pauses and failed steps: it has accepted all generated ids, and no others.
#[derive(Debug)]
pub(crate) struct Constraint {
    matcher: Option<Matcher>,
    bad_words: Option<BadWordWatch>,
    /// Of the next token.
    mask: Mask,
}

impl Constraint {
    /// At the beginning; nothing where any text is allowed.
    pub(crate) fn new(
        grammar: Option<&ValidGrammar>,
        bad_words: Option<&BadWords>,
    ) -> Option<Self> {
        if grammar.is_none() && bad_words.is_none() {
            return None;
        }
        let first = grammar.map_or_else(Mask::all, |grammar| grammar.first.clone());
        let bad_words = bad_words.map(BadWords::watch);
        Some(Self {
            matcher: grammar.map(|grammar| grammar.grammar.matcher()),
            mask: narrowed(bad_words.as_ref(), first),
            bad_words,
        })
    }

    pub(crate) fn mask(&self) -> &Mask {
        &self.mask
    }

    /// Whether a grammar says when the text ends.
    pub(crate) fn has_grammar(&self) -> bool {
        self.matcher.is_some()
    }

    /// Takes the next token; whether the grammar ends with it.
    fn accept(&mut self, id: u32) -> Result<bool, GrammarError> {
        if let Some(bad_words) = &mut self.bad_words {
            bad_words.accept(id);
        }
        let Some(matcher) = &mut self.matcher else {
            return Ok(false);
        };
        matcher.accept(id)?;
        Ok(matcher.is_finished())
    }

    /// Finds the mask of the next token.
    fn look_ahead(&mut self) -> Result<(), GrammarError> {
        let allowed = match &mut self.matcher {
            Some(matcher) => matcher.mask()?,
            None => Mask::all(),
        };
        self.mask = narrowed(self.bad_words.as_ref(), allowed);
        Ok(())
    }
}

fn narrowed(bad_words: Option<&BadWordWatch>, allowed: Mask) -> Mask {
    match bad_words {
        Some(bad_words) => bad_words.narrow(allowed),
        None => allowed,
    }
}

/// A token of a constrained generation, on its way through the worker threads.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) row: Row,
    pub(crate) token: TokenId,
    pub(crate) top_tokens: Option<Vec<TokenId>>,
    pub(crate) constraint: Constraint,
    /// The token ends the text, whatever the grammar says.
    pub(crate) ends: bool,
    /// No token may follow.
    pub(crate) is_last: bool,
    /// Whether the text ends with this token. An error ends the generation.
    pub(crate) outcome: Result<bool, GrammarError>,
}

impl Arrival {
    pub(crate) fn new(
        row: Row,
        token: TokenId,
        top_tokens: Option<Vec<TokenId>>,
        constraint: Constraint,
        ends: bool,
        is_last: bool,
    ) -> Self {
        Self {
            row,
            token,
            top_tokens,
            constraint,
            ends,
            is_last,
            outcome: Ok(false),
        }
    }

    /// Takes the token and computes the mask of the next, which may take milliseconds.
    pub(super) fn advance(&mut self) {
        self.outcome = self.next();
    }

    fn next(&mut self) -> Result<bool, GrammarError> {
        let ended = self.constraint.accept(self.token.id)? || self.ends;
        if !ended && !self.is_last {
            self.constraint.look_ahead()?;
        }
        Ok(ended)
    }
}
