//! Stop strings in text that arrives in pieces.

use std::cmp::Reverse;
use std::sync::Arc;

/// Finds the first place where one of several strings ends, wherever the pieces are cut: inside a token or over many.
/// When several match, the one that ends first wins, so the answer does not depend on how the text was cut.
///
/// Each string has a Knuth-Morris-Pratt automaton (Knuth, Morris and Pratt, 1977): every byte is looked at once for
/// each string, and four bytes of memory are used for each byte of it. Clones share all of that.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Index of the pattern that was found last.
    found: Option<usize>,
    /// Nothing is found, though the text is followed.
    held: bool,
}

impl StopMatcher {
    /// Empty strings never match.
    pub fn new(stop: &[String]) -> Self {
        Self {
            patterns: stop
                .iter()
                .filter(|stop| !stop.is_empty())
                .map(|stop| Pattern::new(stop))
                .collect(),
            found: None,
            held: false,
        }
    }

    /// Whether strings that end in the pieces from now on are passed over. One that has begun there and ends later is
    /// found.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Takes the next piece of text. Of stop strings that end at the same place the longest is found.
    pub fn push(&mut self, piece: &str) -> Option<Found> {
        if self.held {
            for pattern in &mut self.patterns {
                pattern.pass(piece.as_bytes());
            }
            return None;
        }
        let patterns = self.patterns.iter_mut().enumerate();
        let (index, found) = patterns
            .filter_map(|(index, pattern)| Some((index, pattern.push(piece.as_bytes())?)))
            .min_by_key(|(_, found)| (found.end, Reverse(found.length)))?;
        self.found = Some(index);
        Some(found)
    }

    /// The stop string that was found last.
    pub fn found(&self) -> Option<&str> {
        let pattern = self.patterns.get(self.found?)?;
        std::str::from_utf8(&pattern.bytes).ok()
    }

    /// How many bytes at the end of the text may be the beginning of a stop string, while none was found.
    pub fn partial(&self) -> usize {
        let matched = self.patterns.iter().map(|pattern| pattern.matched);
        matched.max().unwrap_or(0)
    }
}

/// A stop string that ends in the last piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Where it ends in that piece, in bytes.
    pub end: usize,
    /// Of the stop string, in bytes; more than `end` when it began in an earlier piece.
    pub length: usize,
}

#[derive(Debug, Clone)]
struct Pattern {
    bytes: Arc<[u8]>,
    /// `borders[i]`: length of the longest proper prefix of `bytes[..=i]` that is also its suffix.
    borders: Arc<[u32]>,
    /// How many bytes of the pattern the text ends with.
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes: Arc<[u8]> = text.as_bytes().into();
        let mut borders = vec![0; bytes.len()];
        let mut matched = 0;
        for i in 1..bytes.len() {
            matched = advance(&bytes, &borders, matched, bytes[i]);
            borders[i] = matched as u32;
        }
        Self {
            bytes,
            borders: borders.into(),
            matched: 0,
        }
    }

    /// Follows a piece through every place where the pattern ends.
    fn pass(&mut self, mut piece: &[u8]) {
        while let Some(found) = self.push(piece) {
            piece = &piece[found.end..];
        }
    }

    fn push(&mut self, piece: &[u8]) -> Option<Found> {
        for (i, &byte) in piece.iter().enumerate() {
            self.matched = advance(&self.bytes, &self.borders, self.matched, byte);
            if self.matched == self.bytes.len() {
                self.matched = self.borders[self.matched - 1] as usize;
                return Some(Found {
                    end: i + 1,
                    length: self.bytes.len(),
                });
            }
        }
        None
    }
}

/// The number of matched bytes after `byte`; `matched` is less than the pattern's length.
fn advance(pattern: &[u8], borders: &[u32], mut matched: usize, byte: u8) -> usize {
    while matched > 0 && pattern[matched] != byte {
        matched = borders[matched - 1] as usize;
    }
    matched + usize::from(pattern[matched] == byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Case<'a> = (&'a [&'a str], &'a [&'a str], Option<(usize, usize)>);

    /// Index of the piece and end inside it.
    fn find(stop: &[&str], pieces: &[&str]) -> Option<(usize, usize)> {
        let stop: Vec<String> = stop.iter().map(|&stop| stop.to_owned()).collect();
        let mut matcher = StopMatcher::new(&stop);
        pieces
            .iter()
            .enumerate()
            .find_map(|(i, piece)| Some((i, matcher.push(piece)?.end)))
    }

    #[test]
    fn finds_the_first_end() {
        let cases: [Case; 13] = [
            (&[], &["anything"], None),
            (&["stop"], &["a stop!"], Some((0, 6))),
            (&["stop"], &["a s", "to", "p!"], Some((2, 1))),
            (&["stop"], &["sto", "", "stop"], Some((2, 4))),
            (&["stop"], &["sto", "sto", "x"], None),
            // A failed start must not hide a match that began inside it.
            (&["aab"], &["aa", "ab"], Some((1, 2))),
            (&["abab!"], &["ab", "ab", "ab!"], Some((2, 3))),
            // What ends first wins: also a string inside another, also one that is a prefix of another.
            (&["abcd", "bc"], &["abcd"], Some((0, 3))),
            (&["abcd", "ab"], &["abcd"], Some((0, 2))),
            (&["late", "early"], &["early late"], Some((0, 5))),
            (&["\n\n"], &["a\n", "\nb"], Some((1, 1))),
            (&["。"], &["你好", "。再"], Some((1, 3))),
            (&[""], &["text"], None),
        ];
        for (stop, pieces, expected) in cases {
            assert_eq!(find(stop, pieces), expected, "{stop:?} in {pieces:?}");
        }
    }

    #[test]
    fn what_ends_while_it_is_held_is_passed_over() {
        let mut matcher = StopMatcher::new(&["aa".into(), "b".into()]);
        matcher.hold(true);
        assert_eq!(matcher.push("b aaa ba"), None);
        assert_eq!((matcher.found(), matcher.partial()), (None, 1));
        matcher.hold(false);
        // It began before.
        assert_eq!(matcher.push("ab"), Some(Found { end: 1, length: 2 }));
    }

    proptest! {
        #[test]
        fn agrees_with_a_search_of_the_whole_text(
            stop in prop::collection::vec("[ab]{1,5}", 0..4),
            pieces in prop::collection::vec("[abc]{0,4}", 0..20),
        ) {
            let text = pieces.concat();
            let expected = (0..=text.len()).find(|&end| stop.iter().any(|stop| text[..end].ends_with(stop.as_str())));
            let mut matcher = StopMatcher::new(&stop);
            let mut before = 0;
            let mut found = None;
            for piece in &pieces {
                if let Some(Found { end, length }) = matcher.push(piece) {
                    let ends = stop.iter().filter(|stop| text[..before + end].ends_with(stop.as_str()));
                    prop_assert_eq!(ends.map(String::len).max(), Some(length));
                    found = Some(before + end);
                    break;
                }
                before += piece.len();
                let begins = |at: &usize| stop.iter().any(|stop| stop.starts_with(&text[*at..before]));
                let waiting = (0..before).find(begins).map_or(0, |at| before - at);
                prop_assert_eq!(matcher.partial(), waiting);
            }
            prop_assert_eq!(found, expected);
            let named = found.map(|end| stop.iter().filter(|stop| text[..end].ends_with(stop.as_str())).max_by_key(|stop| stop.len()));
            prop_assert_eq!(matcher.found(), named.flatten().map(String::as_str));
        }
    }
}
