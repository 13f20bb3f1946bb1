//! The drafts of a request that owns a row: how good they are by where they come from, and what its text may go on with.

use text_generation_client::types::{Drafted, MAX_HINT};

use crate::PLANS_IN_FLIGHT;
use crate::hints::{Answers, Hints, Scope};
use crate::policy::windows::DraftShare;
use crate::queue::Entry;

#[derive(Debug)]
pub(super) struct Drafting {
    /// Drafts that the shards find themselves.
    own: DraftShare,
    /// Drafts from hints.
    hinted: DraftShare,
    /// Its tokens are chosen by masks, so only hints may draft it.
    is_constrained: bool,
    /// Where its text may go on.
    hints: Option<Hints>,
    /// Whose earlier answers may tell it, where they are kept.
    scope: Option<Scope>,
}

impl Drafting {
    /// Of a request that starts, or goes on after a pause, where earlier answers are kept or not.
    pub(super) fn new(entry: &Entry, answers_are_kept: bool) -> Self {
        let is_constrained = entry.is_constrained();
        let prediction = entry.request.prediction.clone();
        let scope = answers_are_kept.then(|| Scope {
            tenant: entry.tenant().name().cloned(),
            root: entry.root.clone(),
        });
        let prompt = entry.ids.len().saturating_sub(entry.generated as usize);
        let generated = entry.ids.get(prompt..).unwrap_or_default();
        let has_hints = prediction.is_some() || scope.is_some() || is_constrained;
        let hints = has_hints.then(|| Hints::new(prediction, generated));
        Self {
            // Of these nobody here knows, so there are no masks for what they lead to.
            own: match is_constrained {
                true => DraftShare::none(),
                false => DraftShare::default(),
            },
            is_constrained,
            hinted: DraftShare::of_hints(),
            hints,
            scope,
        }
    }

    /// No mask chooses its tokens any more.
    pub(super) fn set_free(&mut self) {
        if std::mem::take(&mut self.is_constrained) {
            self.own = DraftShare::default();
        }
    }

    /// How good the drafts of its next step are, as far as is known, where `coming` tokens are on their way.
    pub(super) fn share(&self, coming: u32, forced: &[u32]) -> DraftShare {
        match &self.hints {
            Some(hints) if hints.fits(coming, forced) => self.hinted,
            _ => self.own,
        }
    }

    /// What the shards must be told with the next plan, of the text of `entry`, where windows have at most `widest` tokens
    /// and `coming` tokens are on their way.
    pub(super) fn hint(
        &mut self,
        widest: u32,
        coming: u32,
        entry: &Entry,
        answers: &Answers,
    ) -> Option<Vec<u32>> {
        // The plans that are on their way may bring as many tokens, and the last of them has drafts behind it.
        let ahead = (PLANS_IN_FLIGHT + 1).saturating_mul(widest as usize);
        let scope = self.scope.as_ref();
        let hints = self.hints.as_mut()?;
        let wanted = (ahead.min(MAX_HINT), coming as usize);
        hints.next(wanted, entry.forced(), || answers.after(scope?, &entry.ids))
    }

    /// What the shards draft behind these tokens, as far as they were told; of what they find themselves nobody knows.
    pub(super) fn drafts_behind(&self, ids: impl Iterator<Item = u32>) -> &[u32] {
        let hints = self.hints.as_ref();
        hints.map_or(&[], |hints| hints.drafts_behind(ids))
    }

    /// The answer has ended: it may tell how later ones go on.
    pub(super) fn keep(&self, answer: &[u32], answers: &mut Answers) {
        if let Some(scope) = &self.scope {
            answers.add(scope, answer);
        }
    }

    /// What became of the drafts of a step with windows of `width` tokens.
    pub(super) fn observe(&mut self, width: u32, drafts: Drafted) {
        let share = if drafts.hinted {
            &mut self.hinted
        } else if self.is_constrained || drafts.left_out {
            return;
        } else {
            &mut self.own
        };
        share.observe(width, drafts.right);
    }

    /// Its next tokens came.
    pub(super) fn push(&mut self, ids: impl Iterator<Item = u32>) {
        if let Some(hints) = &mut self.hints {
            hints.push(ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Drafting {
        Drafting {
            own: DraftShare::default(),
            hinted: DraftShare::of_hints(),
            is_constrained: false,
            hints: None,
            scope: None,
        }
    }

    fn share_after(drafts: Drafted) -> DraftShare {
        let mut drafting = fresh();
        drafting.observe(1, drafts);
        drafting.share(1, &[])
    }

    #[test]
    fn steps_without_drafts_say_nothing_of_a_drafter() {
        let left_out = Drafted {
            left_out: true,
            ..Drafted::default()
        };
        assert_eq!(share_after(left_out), DraftShare::default());
        assert_ne!(share_after(Drafted::default()), DraftShare::default());
    }
}
