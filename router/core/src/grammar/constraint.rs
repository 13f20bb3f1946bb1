//! The grammar of one generation.

use text_generation_client::types::{Row, TokenId};
use text_generation_grammar::{GrammarError, Mask, Matcher};

use super::ValidGrammar;

/// Where one generation stands in its grammar. It belongs to the request, not to its row, so it survives pauses and
/// failed steps: it has accepted all generated ids, and no others.
#[derive(Debug)]
pub(crate) struct Constraint {
    matcher: Matcher,
    /// Of the next token.
    mask: Mask,
}

impl Constraint {
    /// At the beginning.
    pub(crate) fn new(grammar: &ValidGrammar) -> Self {
        Self {
            matcher: grammar.grammar.matcher(),
            mask: grammar.first.clone(),
        }
    }

    pub(crate) fn mask(&self) -> &Mask {
        &self.mask
    }
}

/// A token of a constrained generation, on its way through the worker threads.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) row: Row,
    pub(crate) token: TokenId,
    pub(crate) top_tokens: Option<Vec<TokenId>>,
    pub(crate) constraint: Constraint,
    /// No token may follow, whatever the grammar says.
    pub(crate) is_last: bool,
    /// Whether the grammar ends with this token. An error ends the generation.
    pub(crate) outcome: Result<bool, GrammarError>,
}

impl Arrival {
    pub(crate) fn new(
        row: Row,
        token: TokenId,
        top_tokens: Option<Vec<TokenId>>,
        constraint: Constraint,
        is_last: bool,
    ) -> Self {
        Self {
            row,
            token,
            top_tokens,
            constraint,
            is_last,
            outcome: Ok(false),
        }
    }

    /// Takes the token and computes the mask of the next, which may take milliseconds.
    pub(super) fn advance(&mut self) {
        self.outcome = self.next();
    }

    fn next(&mut self) -> Result<bool, GrammarError> {
        let Constraint { matcher, mask } = &mut self.constraint;
        matcher.accept(self.token.id)?;
        let ended = matcher.is_finished();
        if !ended && !self.is_last {
            *mask = matcher.mask()?;
        }
        Ok(ended)
    }
}
