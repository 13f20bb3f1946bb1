//! A text that an answer is expected to resemble, and where an answer stands in it.

use std::sync::Arc;

use crate::types::PredictedTokens;

/// An answer that has left the prediction goes on in it wherever so many tokens of both agree.
pub(super) const MATCH: usize = 8;
/// So many are enough near the place where it left it.
const NEAR_MATCH: usize = 3;
/// So far from where it would be if each token had been replaced by another.
const NEAR: usize = 32;
/// Places with an equal hash that are looked at.
const MOST_LOOKS: usize = 4;

/// A text that an answer is expected to resemble, with an index of all its runs of eight tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct Prediction {
    ids: Box<[u32]>,
    /// The hash of each run and the place behind it, ascending.
    runs: Box<[(u32, u32)]>,
}

impl Prediction {
    /// Takes about as long as encoding the text did.
    pub fn new(ids: Vec<u32>) -> Self {
        let ends = MATCH as u32..;
        let hashed = ids.windows(MATCH).zip(ends);
        let mut runs: Vec<_> = hashed.map(|(run, end)| (hash(run), end)).collect();
        runs.sort_unstable();
        Self {
            ids: ids.into(),
            runs: runs.into(),
        }
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The place behind `run` that is nearest to `expected`, from the place `from` on and not far from it.
    fn near(&self, run: &[u32], from: usize, expected: usize) -> Option<usize> {
        let least = from.max(expected.saturating_sub(NEAR)).max(run.len());
        let most = self.ids.len().min(expected.saturating_add(NEAR));
        let fits = |&end: &usize| self.ids.get(end - run.len()..end) == Some(run);
        let places = (least..=most).filter(fits);
        places.min_by_key(|place| place.abs_diff(expected))
    }

    /// The place behind `run`: the first from the place `from` on, else the last before it.
    fn behind(&self, run: &[u32], from: usize) -> Option<usize> {
        let wanted = hash(run);
        let from = u32::try_from(from).unwrap_or(u32::MAX);
        let next = self.runs.partition_point(|&each| each < (wanted, from));
        let (before, after) = self.runs.split_at(next);
        let fits = |&&(hash, end): &&(u32, u32)| {
            let end = end as usize;
            hash == wanted && self.ids.get(end.saturating_sub(MATCH)..end) == Some(run)
        };
        let found = after.iter().take(MOST_LOOKS).find(fits);
        let found = found.or_else(|| before.iter().rev().take(MOST_LOOKS).find(fits));
        found.map(|&(_, end)| end as usize)
    }
}

/// FNV-1a, of tokens.
pub(super) fn hash(run: &[u32]) -> u32 {
    run.iter().fold(0x811C_9DC5, |hash, id| {
        (hash ^ id).wrapping_mul(0x0100_0193).rotate_left(5)
    })
}

/// Where an answer stands in a prediction: at its beginning at first. A token that is not the predicted one loses the
/// place. Three tokens in a row that stand in the prediction near it find it again, and eight anywhere.
#[derive(Debug, Clone)]
pub struct Follower {
    prediction: Arc<Prediction>,
    /// Of the next token, where the answer follows the prediction, else where it left it.
    place: usize,
    follows: bool,
    /// Tokens since it was left.
    astray: usize,
    /// The newest tokens, the newest last.
    newest: [u32; MATCH],
    tokens: usize,
    accepted: usize,
}

impl Follower {
    pub(crate) fn new(prediction: Arc<Prediction>) -> Self {
        Self {
            prediction,
            place: 0,
            follows: true,
            astray: 0,
            newest: [0; MATCH],
            tokens: 0,
            accepted: 0,
        }
    }

    /// The next token of the answer.
    pub(crate) fn push(&mut self, id: u32) {
        self.newest.rotate_left(1);
        self.newest[MATCH - 1] = id;
        self.tokens += 1;
        if self.follows && self.prediction.ids.get(self.place) == Some(&id) {
            self.place += 1;
            self.accepted += 1;
            return;
        }
        if self.follows {
            (self.follows, self.astray) = (false, 0);
        }
        self.astray += 1;
        if let Some((place, agree)) = self.found() {
            (self.place, self.follows) = (place, true);
            self.accepted += self.astray.min(agree);
        }
    }

    /// Where the newest tokens stand in the prediction, and how many of them do.
    fn found(&self) -> Option<(usize, usize)> {
        let last = &self.newest[MATCH - NEAR_MATCH..];
        let near = || {
            let expected = self.place.saturating_add(self.astray);
            let near = self.prediction.near(last, self.place, expected);
            near.filter(|_| self.tokens >= NEAR_MATCH)
        };
        let anywhere = || {
            let found = self.prediction.behind(&self.newest, self.place);
            found.filter(|_| self.tokens >= MATCH)
        };
        near()
            .map(|place| (place, NEAR_MATCH))
            .or_else(|| anywhere().map(|place| (place, MATCH)))
    }

    /// What comes next in the prediction; nothing where the answer does not follow it.
    pub(crate) fn rest(&self) -> &[u32] {
        let rest = self.prediction.ids.get(self.place..).unwrap_or_default();
        if self.follows { rest } else { &[] }
    }

    /// How many tokens of the prediction the answer has, and how many it does not have.
    pub(crate) fn counts(&self) -> PredictedTokens {
        let all = self.prediction.len();
        let accepted = self.accepted.min(all);
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        PredictedTokens {
            accepted: number(accepted),
            rejected: number(all - accepted),
        }
    }
}
