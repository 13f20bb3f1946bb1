//! Earlier answers: what followed the last time that one of them said the same is a hint for the next one.
//!
//! Who may not know of others' texts draws no drafts from them, because drafts that are right tell by the time that they
//! save: answers are kept apart by tenant, and as cached prefixes are, by adapter and salt.

use std::collections::HashMap;
use std::sync::Arc;

use text_generation_client::types::MAX_HINT;

use super::prediction::{MATCH, hash};
use crate::kv_pool::RootKey;

/// Bytes that a token takes at most: its id, and its place in the index of runs, which may be half empty.
const TOKEN_BYTES: usize = 40;
/// Bytes of a scope that has nothing.
const SCOPE_BYTES: usize = 256;
/// Stands between two answers; no token has this id.
const END: u32 = u32::MAX;

/// Those whose answers are hints for each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) root: RootKey,
}

/// Answers of one scope, one after the other.
#[derive(Default)]
struct Texts {
    ids: Vec<u32>,
    /// From the hash of a run of eight tokens to the place behind its last one.
    runs: HashMap<u32, u32>,
}

impl Texts {
    fn add(&mut self, answer: &[u32]) {
        let first = self.ids.len();
        self.ids.extend(answer);
        self.ids.push(END);
        for (run, end) in answer.windows(MATCH).zip(first + MATCH..) {
            if let Ok(end) = u32::try_from(end) {
                self.runs.insert(hash(run), end);
            }
        }
    }

    fn behind(&self, run: &[u32]) -> Option<&[u32]> {
        let end = *self.runs.get(&hash(run))? as usize;
        if self.ids.get(end.checked_sub(MATCH)?..end)? != run {
            return None;
        }
        let rest = self.ids.get(end..)?;
        let rest = rest.split(|&id| id == END).next()?;
        (!rest.is_empty()).then(|| &rest[..rest.len().min(MAX_HINT)])
    }
}

/// Answers since some moment.
#[derive(Default)]
struct Generation {
    scopes: HashMap<Scope, Texts>,
    bytes: usize,
}

/// The answers of the last time, within a limit of bytes: when the younger half is full, the older one is dropped.
pub(crate) struct Answers {
    limit: usize,
    young: Generation,
    old: Generation,
}

impl Answers {
    /// Of at most so many bytes; 0: none are kept.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            young: Generation::default(),
            old: Generation::default(),
        }
    }

    /// Whether any are kept.
    pub(crate) fn are_kept(&self) -> bool {
        self.limit > 0
    }

    /// Keeps the tokens of an answer, if it may take a quarter of all memory.
    pub(crate) fn add(&mut self, scope: &Scope, answer: &[u32]) {
        let bytes = SCOPE_BYTES + (answer.len() + 1) * TOKEN_BYTES;
        if answer.len() <= MATCH || bytes > self.limit / 4 {
            return;
        }
        if self.young.bytes + bytes > self.limit / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.bytes += bytes;
        self.young
            .scopes
            .entry(scope.clone())
            .or_default()
            .add(answer);
    }

    /// What followed the last time that an answer of this scope had the tokens with which `text` ends.
    pub(crate) fn after(&self, scope: &Scope, text: &[u32]) -> Option<&[u32]> {
        let run = text.get(text.len().checked_sub(MATCH)?..)?;
        [&self.young, &self.old]
            .into_iter()
            .find_map(|generation| generation.scopes.get(scope)?.behind(run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(tenant: &str, salt: Option<&str>) -> Scope {
        Scope {
            tenant: Some(tenant.into()),
            root: RootKey {
                adapter: 0,
                salt: salt.map(Into::into),
            },
        }
    }

    #[test]
    fn the_newest_answer_that_said_the_same_goes_on() {
        let (mut answers, own) = (Answers::new(1 << 20), scope("a", None));
        let begin: Vec<u32> = (1..9).collect();
        answers.add(&own, &[&begin[..], &[50, 51]].concat());
        let text = [&[7, 7][..], &begin].concat();
        assert_eq!(answers.after(&own, &text), Some(&[50, 51][..]));
        answers.add(&own, &[&begin[..], &[60]].concat());
        assert_eq!(answers.after(&own, &text), Some(&[60][..]));
        // Nothing follows the end of an answer, and seven tokens are no match.
        assert_eq!(answers.after(&own, &[&begin[1..], &[60]].concat()), None);
        assert_eq!(answers.after(&own, &begin[1..]), None);
        let long: Vec<u32> = (100..300).collect();
        answers.add(&own, &long);
        assert_eq!(answers.after(&own, &long[..20]), Some(&long[20..84]));
    }

    #[test]
    fn nobody_sees_the_answers_of_others() {
        let mut answers = Answers::new(1 << 20);
        let text: Vec<u32> = (1..20).collect();
        answers.add(&scope("a", None), &text);
        assert!(answers.after(&scope("a", None), &text[..8]).is_some());
        for other in [scope("b", None), scope("a", Some("salt"))] {
            assert_eq!(answers.after(&other, &text[..8]), None);
        }
    }

    #[test]
    fn the_oldest_answers_make_room_for_new_ones() {
        let (limit, own) = (100_000, scope("a", None));
        let mut answers = Answers::new(limit);
        let text = |n: u32| -> Vec<u32> { (n * 1000..n * 1000 + 100).collect() };
        for n in 0..1000 {
            answers.add(&own, &text(n));
            assert!(answers.young.bytes + answers.old.bytes <= limit);
            assert!(answers.after(&own, &text(n)[..8]).is_some(), "{n}");
        }
        assert_eq!(answers.after(&own, &text(0)[..8]), None);
        // One that would take all the room is not kept.
        let longest: Vec<u32> = (0..2000).collect();
        answers.add(&own, &longest);
        assert_eq!(answers.after(&own, &longest[..8]), None);
        assert!(!Answers::new(0).are_kept());
    }
}
