//! Constraint of one generation: the end of its prompt that it writes again, its grammar and its bad words.

use text_generation_client::types::{Row, TokenId};
use text_generation_grammar::{GrammarError, Mask, Matcher};

use super::ValidGrammar;
use super::bad_words::{BadWordWatch, BadWords};
use super::healing::Healing;

/// Where one generation stands in what it has to write, in its grammar and its bad words. It belongs to the request, not to its row, so it
/// survives pauses and failed steps: it has accepted all generated ids, and no others.
#[derive(Debug)]
pub(crate) struct Constraint {
    /// Where there is a healed prompt too, its end is a part of the grammar.
    matcher: Option<Matcher>,
    healing: Option<Healing>,
    bad_words: Option<BadWordWatch>,
    /// Of the next token.
    mask: Mask,
}

impl Constraint {
    /// At the beginning; nothing where any text is allowed.
    pub(crate) fn new(
        grammar: Option<&ValidGrammar>,
        healing: Option<&Healing>,
        bad_words: Option<&BadWords>,
    ) -> Option<Self> {
        let first = grammar.map(|grammar| &grammar.first);
        let first = first.or_else(|| healing.map(Healing::first));
        let first = match (first, bad_words) {
            (None, None) => return None,
            (first, _) => first.cloned().unwrap_or_else(Mask::all),
        };
        let bad_words = bad_words.map(BadWords::watch);
        Some(Self {
            matcher: grammar.map(|grammar| grammar.grammar.matcher()),
            mask: narrowed(bad_words.as_ref(), healing, first),
            healing: healing.cloned(),
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

    /// Whether a token only writes a part of the prompt again. Such a token ends no text, and is in no word.
    pub(crate) fn rewrites(&self, id: u32) -> bool {
        let healing = self.healing.as_ref();
        healing.is_some_and(|healing| healing.covers(id))
    }

    /// Whether any token may come from now on.
    pub(crate) fn is_spent(&self) -> bool {
        let healed = self.healing.as_ref().is_none_or(Healing::is_written);
        healed && self.matcher.is_none() && self.bad_words.is_none()
    }

    /// Takes the next token; whether the grammar ends with it.
    fn accept(&mut self, id: u32) -> Result<bool, GrammarError> {
        let rewrites = self.rewrites(id);
        if let Some(healing) = &mut self.healing {
            healing.accept(id);
        }
        if let Some(bad_words) = self.bad_words.as_mut().filter(|_| !rewrites) {
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
        let allowed = match (&mut self.matcher, &self.healing) {
            (Some(matcher), _) => matcher.mask()?,
            (None, Some(healing)) => healing.mask(),
            (None, None) => Mask::all(),
        };
        self.mask = narrowed(self.bad_words.as_ref(), self.healing.as_ref(), allowed);
        Ok(())
    }
}

/// Without bad words; what only writes the prompt again is none of the text.
fn narrowed(bad_words: Option<&BadWordWatch>, healing: Option<&Healing>, allowed: Mask) -> Mask {
    let spared = |id| healing.is_some_and(|healing| healing.covers(id));
    match bad_words {
        Some(bad_words) => bad_words.narrow(allowed, spared),
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
