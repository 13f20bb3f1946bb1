//! Buffer of text that may be the beginning of a stop string.

use std::collections::VecDeque;

use crate::stop::{Found, StopMatcher};

/// Cuts a text before the first stop string in it, wherever its pieces are cut. Text is let out as soon as no stop
/// string can begin in it, so at most one stop string is held back.
#[derive(Debug, Clone)]
pub(crate) struct StopBuffer {
    stop: StopMatcher,
    /// In order; only the shown pieces are let out, the others are looked at alone.
    pieces: VecDeque<(String, bool)>,
    /// Bytes of all pieces.
    length: usize,
}

impl StopBuffer {
    pub(crate) fn new(stop: &[String]) -> Self {
        Self {
            stop: StopMatcher::new(stop),
            pieces: VecDeque::new(),
            length: 0,
        }
    }

    /// Takes the next piece of text and appends to `out` what is let out. True when a stop string ended in the piece;
    /// then everything before it is out, and nothing may follow.
    pub(crate) fn push(&mut self, piece: String, shown: bool, out: &mut String) -> bool {
        let found = self.stop.push(&piece);
        let released = match found {
            Some(Found { end, length }) => self.length + end - length,
            None => self.length + piece.len() - self.stop.partial(),
        };
        if self.pieces.is_empty() && released == piece.len() {
            if shown {
                append(out, piece);
            }
        } else {
            self.length += piece.len();
            self.pieces.push_back((piece, shown));
            self.release(released, out);
        }
        found.is_some()
    }

    /// See [`StopMatcher::hold`].
    pub(crate) fn hold(&mut self, held: bool) {
        self.stop.hold(held);
    }

    /// The stop string that was found.
    pub(crate) fn found(&self) -> Option<&str> {
        self.stop.found()
    }

    /// No stop string was found: appends all that waits.
    pub(crate) fn flush(&mut self, out: &mut String) {
        self.release(self.length, out);
    }

    /// Lets out the first `count` bytes. They end at a character: a stop string begins with a whole one.
    fn release(&mut self, count: usize, out: &mut String) {
        self.length -= count;
        let mut missing = count;
        while missing > 0
            && let Some((piece, shown)) = self.pieces.front_mut()
        {
            let taken = missing.min(piece.len());
            missing -= taken;
            let rest = piece.split_off(taken);
            let piece = std::mem::replace(piece, rest);
            if *shown {
                append(out, piece);
            }
            if self.pieces.front().is_some_and(|(rest, _)| rest.is_empty()) {
                self.pieces.pop_front();
            }
        }
    }
}

/// Without a copy where there is nothing to append to.
fn append(out: &mut String, text: String) {
    if out.is_empty() {
        *out = text;
    } else {
        out.push_str(&text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What is out is always a beginning of the text before the stop string, and in the end all of it; nothing
        /// waits longer than it must.
        #[test]
        fn the_text_before_the_first_stop_string_comes_out(
            stop in prop::collection::vec("[abé]{1,4}", 0..3),
            pieces in prop::collection::vec(("[abcé]{0,4}", any::<bool>()), 0..20),
        ) {
            let whole: String = pieces.iter().map(|(piece, _)| piece.as_str()).collect();
            let end = (0..=whole.len())
                .filter(|&end| whole.is_char_boundary(end))
                .find(|&end| stop.iter().any(|stop| whole[..end].ends_with(stop.as_str())));
            let cut = end.map_or(whole.len(), |end| {
                let ends_here = stop.iter().filter(|stop| whole[..end].ends_with(stop.as_str()));
                end - ends_here.map(String::len).max().unwrap_or(0)
            });
            // The shown part of a beginning of the text.
            let shown = |until: usize| {
                let mut start = 0;
                let mut text = String::new();
                for (piece, shown) in &pieces {
                    let stop = (start + piece.len()).min(until);
                    if *shown && stop > start {
                        text.push_str(&piece[..stop - start]);
                    }
                    start += piece.len();
                }
                text
            };
            let (mut buffer, mut out, mut read) = (StopBuffer::new(&stop), String::new(), 0);
            let mut stopped = false;
            for (piece, shown_piece) in &pieces {
                stopped = buffer.push(piece.clone(), *shown_piece, &mut out);
                if stopped {
                    break;
                }
                read += piece.len();
                let begins = |at: &usize| stop.iter().any(|stop| stop.starts_with(&whole[*at..read]));
                let waiting = (0..read).filter(|at| whole.is_char_boundary(*at)).find(begins);
                prop_assert_eq!(&out, &shown(waiting.unwrap_or(read)));
            }
            prop_assert_eq!(stopped, end.is_some());
            if !stopped {
                buffer.flush(&mut out);
            }
            prop_assert_eq!(out, shown(cut));
        }
    }
}
