//! Search for texts of a declaration in generated text of which more may come.

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
    find_first(text, &[marker]).map(|(at, _)| at)
}

/// Where the first of `markers` is in `text`: `Ok` its start and the marker, `Err` the place before which certainly none
/// is. Compares at each byte, which for pieces of a few characters is faster than to prepare a search.
pub(crate) fn find_first<'a>(text: &str, markers: &[&'a str]) -> Result<(usize, &'a str), usize> {
    let mut rest = text.as_bytes();
    while let Some(first) = rest.first() {
        let at = text.len() - rest.len();
        for marker in markers {
            let bytes = marker.as_bytes();
            if bytes.first() != Some(first) {
                continue;
            }
            if rest.starts_with(bytes) {
                return Ok((at, marker));
            }
            if bytes.starts_with(rest) {
                return Err(at);
            }
        }
        rest = &rest[1..];
    }
    Err(text.len())
}
