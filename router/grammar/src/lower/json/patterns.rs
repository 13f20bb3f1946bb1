//! Which regular expressions of a schema the engine can follow.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

/// Steps of the search for a text that two patterns share.
const FUEL: u64 = 1000;

/// Whether `pattern` can be followed: no look-around and no back-references, and a syntax that is known.
pub(super) fn usable(pattern: &str) -> bool {
    RegexBuilder::new().mk(&search(pattern)).is_ok()
}

/// Whether it is certain that no name matches two of these patterns.
pub(super) fn disjoint(patterns: &[&str]) -> bool {
    let mut builder = RegexBuilder::new();
    patterns.iter().enumerate().all(|(index, first)| {
        patterns[index + 1..].iter().all(|second| {
            let both = RegexAst::And(vec![search(first), search(second)]);
            builder
                .mk(&both)
                .and_then(|both| builder.to_regex_limited(both, FUEL))
                .is_ok_and(|mut both| both.always_empty())
        })
    })
}

/// As the engine reads patterns of schemas: they match anywhere in the text; `\d` and `\w` are ASCII.
fn search(pattern: &str) -> RegexAst {
    RegexAst::SearchRegex(regex_to_lark(pattern, "dw"))
}
