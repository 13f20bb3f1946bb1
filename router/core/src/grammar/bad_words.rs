//! Words that a text may not contain, as the sequences of tokens that write them.

use std::sync::Arc;

use text_generation_grammar::Mask;

/// Sequences of tokens that are never generated as a whole: the last token of each is forbidden where the others came
/// just before. Samples share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadWords {
    sequences: Arc<[Vec<u32>]>,
    /// Tokens before the last, of the longest sequence.
    memory: usize,
    vocab_size: u32,
}

impl BadWords {
    /// For a model whose logits have `vocab_size` entries. Nothing where no sequence has a token.
    pub(crate) fn new(mut sequences: Vec<Vec<u32>>, vocab_size: u32) -> Option<Self> {
        sequences.retain(|ids| !ids.is_empty() && ids.iter().all(|&id| id < vocab_size));
        let longest = sequences.iter().map(Vec::len).max()?;
        Some(Self {
            sequences: sequences.into(),
            memory: longest - 1,
            vocab_size,
        })
    }

    /// The beginning of an empty text.
    pub(crate) fn watch(&self) -> BadWordWatch {
        BadWordWatch {
            words: self.clone(),
            recent: Vec::new(),
        }
    }
}

/// Follows one text. It depends on the accepted ids alone.
#[derive(Debug, Clone)]
pub(crate) struct BadWordWatch {
    words: BadWords,
    /// The last tokens, as many as a sequence has before its last.
    recent: Vec<u32>,
}

impl BadWordWatch {
    /// Takes the token that came.
    pub(crate) fn accept(&mut self, id: u32) {
        self.recent.push(id);
        if self.recent.len() > self.words.memory {
            self.recent.remove(0);
        }
    }

    /// `allowed` without the tokens that would end a sequence here, but for those to be spared.
    pub(crate) fn narrow(&self, allowed: Mask, spared: impl Fn(u32) -> bool) -> Mask {
        let ends = |ids: &Vec<u32>| match ids.split_last() {
            Some((&last, before)) if self.recent.ends_with(before) => Some(last),
            _ => None,
        };
        let ends = self.words.sequences.iter().filter_map(ends);
        let ends: Vec<u32> = ends.filter(|&id| !spared(id)).collect();
        if ends.is_empty() {
            return allowed;
        }
        allowed.without(&ends, self.words.vocab_size)
    }

    /// Whether nothing is left of a mask that was narrowed.
    pub(crate) fn forbids_all_of(&self, narrowed: &Mask) -> bool {
        narrowed.is_empty(self.words.vocab_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_token_of_a_word_is_forbidden_after_the_others() {
        let words = vec![vec![5], vec![1, 2, 3], vec![2, 4], vec![], vec![99]];
        let words = BadWords::new(words, 10).unwrap();
        let mut watch = words.watch();
        let forbidden = |watch: &BadWordWatch| -> Vec<u32> {
            let mask = watch.narrow(Mask::all(), |_| false);
            (0..10).filter(|&id| !mask.allows(id)).collect()
        };
        assert_eq!(forbidden(&watch), [5]);
        for (id, expected) in [
            (1, vec![5]),
            (1, vec![5]),
            (2, vec![3, 4, 5]),
            (2, vec![4, 5]),
            (7, vec![5]),
        ] {
            watch.accept(id);
            assert_eq!(forbidden(&watch), expected, "after {id}");
        }
        assert!(BadWords::new(vec![vec![], vec![10]], 10).is_none());
    }
}
