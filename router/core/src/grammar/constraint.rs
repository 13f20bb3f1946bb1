//! Constraint of one generation: the end of its prompt that it writes again, its grammar and its bad words.

use std::iter::once;
use std::sync::Arc;

use smallvec::SmallVec;
use text_generation_client::types::{Row, TokenId};
use text_generation_grammar::{GrammarError, Mask, MaskForm, Matcher};

use super::ValidGrammar;
use super::bad_words::{BadWordWatch, BadWords};
use super::healing::Healing;

/// Where one generation stands in what it has to write, in its grammar and its bad words. It belongs to the request, not
/// to its row, so it survives pauses and failed steps: it has accepted all generated ids, and no others.
#[derive(Debug)]
pub(crate) struct Constraint {
    /// Where there is a healed prompt too, its end is a part of the grammar.
    matcher: Option<Matcher>,
    healing: Option<Healing>,
    bad_words: Option<BadWordWatch>,
    /// Of the next token.
    mask: Mask,
    /// The tokens that must come next, where somebody asked for them.
    forced: Arc<[u32]>,
    /// Tokens that may come next, each with the mask of the place behind it.
    ahead: Vec<(u32, Mask)>,
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
            forced: grammar.map_or_else(Arc::default, |grammar| grammar.forced.clone()),
            ahead: Vec::new(),
            bad_words,
        })
    }

    /// Of the next token, and of those behind it if these tokens come, as far as that is known.
    pub(crate) fn masks(&self, drafts: &[u32]) -> impl Iterator<Item = &Mask> {
        let known = self.ahead.iter().zip(drafts);
        let known = known.take_while(|((id, _), draft)| id == *draft);
        once(&self.mask).chain(known.map(|((_, mask), _)| mask))
    }

    /// The tokens that must come next, as the tokenizer writes them; none where they are not known.
    pub(crate) fn forced(&self) -> &[u32] {
        &self.forced
    }

    /// Whether a grammar says when the text ends.
    pub(crate) fn has_grammar(&self) -> bool {
        self.matcher.is_some()
    }

    /// How many of these tokens, which come next, only write a part of the prompt again. They end no text, and are in
    /// no word.
    pub(crate) fn rewriting(&self, ids: impl IntoIterator<Item = u32>) -> usize {
        let Some(mut healing) = self.healing.clone() else {
            return 0;
        };
        let rewrites = |&id: &u32| {
            let covered = healing.covers(id);
            healing.accept(id);
            covered
        };
        ids.into_iter().take_while(rewrites).count()
    }

    /// Whether any token may come from now on.
    pub(crate) fn is_spent(&self) -> bool {
        let healed = self.healing.as_ref().is_none_or(Healing::is_written);
        healed && self.matcher.is_none() && self.bad_words.is_none()
    }

    /// Takes the next token; whether the grammar ends with it.
    fn accept(&mut self, id: u32) -> Result<bool, GrammarError> {
        (self.forced, self.ahead) = (Arc::default(), Vec::new());
        let rewrites = self.rewriting([id]) > 0;
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

    /// Finds the mask of the next token, and what `look` asks for.
    fn look_ahead(&mut self, look: &Look) -> Result<(), GrammarError> {
        let allowed = match (&mut self.matcher, &self.healing) {
            (Some(matcher), _) => matcher.mask()?,
            (None, Some(healing)) => healing.mask(),
            (None, None) => Mask::all(),
        };
        if look.speculates
            && let Some(matcher) = &self.matcher
            // Where bytes are forced, few tokens write them.
            && matches!(allowed.form(), MaskForm::Only(_))
        {
            self.forced = matcher.ahead().forced().into();
        }
        let drafts = if look.drafts.is_empty() {
            &self.forced
        } else {
            &look.drafts[..]
        };
        let drafts = &drafts[..drafts.len().min(look.width.saturating_sub(1) as usize)];
        self.ahead = self.masks_behind(&allowed, drafts);
        self.mask = narrowed(self.bad_words.as_ref(), self.healing.as_ref(), allowed);
        match self.is_stuck() {
            true => Err(GrammarError::AllForbidden),
            false => Ok(()),
        }
    }

    /// Whether bad words leave no token that may come next.
    pub(crate) fn is_stuck(&self) -> bool {
        let bad_words = self.bad_words.as_ref();
        bad_words.is_some_and(|bad_words| bad_words.forbids_all_of(&self.mask))
    }

    /// These drafts, each with the mask of the place behind it, as far as each is allowed.
    fn masks_behind(&self, first: &Mask, drafts: &[u32]) -> Vec<(u32, Mask)> {
        let by_grammar = match &self.matcher {
            Some(matcher) if !drafts.is_empty() => Some(matcher.ahead().masks(first, drafts)),
            _ => None,
        };
        let (mut bad_words, mut healing) = (self.bad_words.clone(), self.healing.clone());
        let mut masks = Vec::with_capacity(drafts.len());
        let mut before = narrowed(bad_words.as_ref(), healing.as_ref(), first.clone());
        for (place, &draft) in drafts.iter().enumerate() {
            if !before.allows(draft) {
                break;
            }
            let rewrites = healing
                .as_ref()
                .is_some_and(|healing| healing.covers(draft));
            if let Some(healing) = &mut healing {
                healing.accept(draft);
            }
            if let Some(bad_words) = bad_words.as_mut().filter(|_| !rewrites) {
                bad_words.accept(draft);
            }
            let allowed = match &by_grammar {
                Some(masks) => masks.get(place).cloned(),
                None => Some(healing.as_ref().map_or_else(Mask::all, Healing::mask)),
            };
            let Some(allowed) = allowed else { break };
            before = narrowed(bad_words.as_ref(), healing.as_ref(), allowed);
            masks.push((draft, before.clone()));
        }
        masks
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

/// How far masks are wanted ahead of a text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Look {
    /// So many masks at most, of the next token and those behind it.
    pub(crate) width: u32,
    /// Somebody drafts the tokens that must come.
    pub(crate) speculates: bool,
    /// What the shards draft next; empty: nothing, or what a grammar forces.
    pub(crate) drafts: Vec<u32>,
}

/// Tokens of a constrained generation, of one step, on their way through the worker threads.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) row: Row,
    /// At the end those that count.
    pub(crate) tokens: SmallVec<[TokenId; 1]>,
    /// A list for each token, or none.
    pub(crate) top_tokens: Vec<Vec<TokenId>>,
    pub(crate) constraint: Constraint,
    /// The one of `tokens` that ends the text, whatever the grammar says.
    pub(crate) last: Option<usize>,
    /// No token may follow.
    pub(crate) is_last: bool,
    pub(crate) look: Look,
    /// Whether the text ends with the last token. An error ends the generation, behind the tokens that are left.
    pub(crate) outcome: Result<bool, GrammarError>,
}

impl Arrival {
    /// Takes the tokens and computes the mask of the next, which may take milliseconds.
    pub(super) fn advance(&mut self) {
        self.outcome = self.next();
    }

    fn next(&mut self) -> Result<bool, GrammarError> {
        for place in 0..self.tokens.len() {
            let accepted = self.constraint.accept(self.tokens[place].id);
            if accepted.is_err() {
                self.keep(place);
            }
            if accepted? || self.last == Some(place) {
                self.keep(place + 1);
                return Ok(true);
            }
        }
        if !self.is_last
            && let Err(error) = self.constraint.look_ahead(&self.look)
        {
            // Behind the token that leads nowhere nobody has looked.
            self.keep(self.tokens.len().saturating_sub(1));
            return Err(error);
        }
        Ok(false)
    }

    fn keep(&mut self, count: usize) {
        self.tokens.truncate(count);
        self.top_tokens.truncate(count);
    }
}
