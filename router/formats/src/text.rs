//! Finding texts of a declaration in generated text of which more may come.

/// How a text that is still being generated compares with what is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match<T> {
    Full(T),
    /// It is the beginning of what is expected.
    Partial,
    No,
}

/// Compares the start of `text` with `expected`, without its outer white space. White space before it is skipped, and
/// where `expected` has white space, any or none is accepted. `Full` is the length in bytes.
pub(crate) fn starts_with(text: &str, expected: &str) -> Match<usize> {
    let mut rest = text;
    for word in expected.split_whitespace() {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(word) {
            rest = after;
        } else if word.starts_with(rest) {
            return Match::Partial;
        } else {
            return Match::No;
        }
    }
    Match::Full(text.len() - rest.len())
}

/// Where `marker` is in `text`: `Ok` its start, `Err` the place before which it certainly is not.
pub(crate) fn find(text: &str, marker: &str) -> Result<usize, usize> {
    text.find(marker)
        .ok_or_else(|| text.len() - overlap(text, marker))
}

/// The length of the longest beginning of `marker`, shorter than itself, with which `text` ends.
pub(crate) fn overlap(text: &str, marker: &str) -> usize {
    let longest = marker.len().saturating_sub(1).min(text.len());
    (1..=longest)
        .rev()
        .find(|&length| text.as_bytes().ends_with(&marker.as_bytes()[..length]))
        .unwrap_or(0)
}
