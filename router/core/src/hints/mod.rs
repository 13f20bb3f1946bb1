//! Hints: what the text of a request may go on with. Shards that draft are told it, and draft from it as long as the
//! tokens since agree; the text does not depend on it.
//!
//! Nothing here waits, sends or looks at a clock. A hint follows the tokens that are known, while the shards are a step
//! or two further: they see for themselves whether it still fits.

mod answers;
mod prediction;

use std::sync::Arc;

use text_generation_client::types::MAX_HINT;

pub(crate) use self::answers::{Answers, Scope};
pub(crate) use self::prediction::Follower;
pub use self::prediction::Prediction;

/// The hints of a running request.
#[derive(Debug)]
pub(crate) struct Hints {
    /// Of the client.
    prediction: Option<Follower>,
    /// What the shards were told last, while the tokens since agree and do not use it up.
    told: Option<Told>,
}

#[derive(Debug)]
struct Told {
    ids: Vec<u32>,
    /// So many of them have come.
    come: usize,
}

impl Told {
    /// Whether the next token is the expected one, and another one is expected behind it.
    fn take(&mut self, id: u32) -> bool {
        self.come += 1;
        self.ids.get(self.come - 1) == Some(&id) && self.come < self.ids.len()
    }

    fn rest(&self) -> &[u32] {
        self.ids.get(self.come..).unwrap_or_default()
    }
}

impl Hints {
    /// Of a request that has these tokens, where it starts or goes on after a pause.
    pub(crate) fn new(prediction: Option<Arc<Prediction>>, generated: &[u32]) -> Self {
        let mut prediction = prediction.map(Follower::new);
        if let Some(follower) = &mut prediction {
            generated.iter().for_each(|&id| follower.push(id));
        }
        Self {
            prediction,
            told: None,
        }
    }

    /// Its next tokens came.
    pub(crate) fn push(&mut self, ids: impl Iterator<Item = u32>) {
        for id in ids {
            if let Some(prediction) = &mut self.prediction {
                prediction.push(id);
            }
            if self.told.as_mut().is_some_and(|told| !told.take(id)) {
                self.told = None;
            }
        }
    }

    /// What the prediction goes on with; nothing where the answer does not follow it.
    fn predicted(&self) -> &[u32] {
        self.prediction.as_ref().map_or(&[], Follower::rest)
    }

    /// Whether the shards draft from a hint as far as is known, or will when they are told, where `coming` tokens are on
    /// their way. `forced` are the tokens that must come next, as far as a grammar says it.
    pub(crate) fn fits(&self, coming: u32, forced: &[u32]) -> bool {
        let told = self.told.as_ref().map_or(0, |told| told.rest().len());
        let known = told.max(self.predicted().len()).max(forced.len());
        known > coming as usize
    }

    /// What the shards draft behind these tokens, which have come and are not pushed yet, from what they were told.
    pub(crate) fn drafts_behind(&self, ids: impl Iterator<Item = u32>) -> &[u32] {
        let mut rest = self.told.as_ref().map_or(&[][..], Told::rest);
        for id in ids {
            match rest.split_first() {
                Some((expected, behind)) if *expected == id => rest = behind,
                _ => return &[],
            }
        }
        rest
    }

    /// What the shards have to be told with the next plan: ids that may follow those that are known. So many `ahead` may
    /// come, and be drafted, before another plan can tell them more, and so many are `coming` in any case. They are those
    /// that are `forced`, or a prediction that says the same and more. Where there is neither, they are what `elsewhere`
    /// gives.
    pub(crate) fn next<'a>(
        &mut self,
        (ahead, coming): (usize, usize),
        forced: &[u32],
        elsewhere: impl FnOnce() -> Option<&'a [u32]>,
    ) -> Option<Vec<u32>> {
        let left = self.told.as_ref().map_or(0, |told| told.rest().len());
        if left >= ahead {
            return None;
        }
        let rest = match (self.predicted(), forced) {
            ([], []) => elsewhere()?,
            (predicted, forced) if predicted.starts_with(forced) => predicted,
            (_, forced) => forced,
        };
        let ids = &rest[..rest.len().min(MAX_HINT)];
        if ids.len() <= left.max(coming) {
            return None;
        }
        let ids = ids.to_vec();
        self.told = Some(Told {
            ids: ids.clone(),
            come: 0,
        });
        Some(ids)
    }
}

#[cfg(test)]
mod tests;
