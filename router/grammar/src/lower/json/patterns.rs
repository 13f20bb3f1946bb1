//! Regular expressions of a schema that the engine can follow.

use std::collections::HashMap;

use llguidance::derivre::{Regex, RegexAst, RegexBuilder, StateID};
use llguidance::regex_to_lark;

/// Steps of the search for a text that two patterns share.
const FUEL: u64 = 1000;
/// Steps that the automaton of one pattern may take, and states that are looked at.
const AUTOMATON_FUEL: u64 = 100_000;
const STATES: usize = 64;

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

/// Whether a text can go on without end and not match `pattern` on its way, as with `^a +b$`; also where that takes long
/// to find out. Beside a bound of the length the engine then follows such a text up to the bound, at each place anew, to
/// see whether it can still match.
pub(super) fn waits(pattern: &str) -> bool {
    let mut builder = RegexBuilder::new();
    let regex = builder
        .mk(&search(pattern))
        .and_then(|regex| builder.to_regex_limited(regex, AUTOMATON_FUEL));
    regex.map_or(true, |mut regex| has_waiting_cycle(&mut regex))
}

/// Whether states that do not match form a cycle.
fn has_waiting_cycle(regex: &mut Regex) -> bool {
    let mut found = vec![regex.initial_state()];
    let mut waiting: HashMap<StateID, Vec<StateID>> = HashMap::new();
    let mut next = 0;
    while let Some(&state) = found.get(next) {
        next += 1;
        if next > STATES {
            return true;
        }
        let mut followers: Vec<StateID> = (0..=u8::MAX)
            .map(|byte| regex.transition(state, byte))
            .filter(|follower| !follower.is_dead())
            .collect();
        followers.sort_unstable_by_key(|follower| follower.as_u32());
        followers.dedup();
        for follower in &followers {
            if !found.contains(follower) {
                found.push(*follower);
            }
        }
        if !regex.is_accepting(state) {
            // The usual case, and the automaton may be long.
            if followers.contains(&state) {
                return true;
            }
            waiting.insert(state, followers);
        }
    }
    // States from which no other waiting one follows are on no cycle.
    loop {
        let ends: Vec<StateID> = waiting
            .iter()
            .filter(|(_, followers)| followers.iter().all(|state| !waiting.contains_key(state)))
            .map(|(state, _)| *state)
            .collect();
        if ends.is_empty() {
            return !waiting.is_empty();
        }
        waiting.retain(|state, _| !ends.contains(state));
    }
}

/// As the engine reads patterns of schemas: they match anywhere in the text; `\d` and `\w` are ASCII.
fn search(pattern: &str) -> RegexAst {
    RegexAst::SearchRegex(regex_to_lark(pattern, "dw"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_let_a_text_wait_are_known() {
        for pattern in [
            r"^(?:\S+\s+){0,99}\S+$",
            "^[^@]+@[^@]+$",
            r"^\S(.*\S)?$",
            "^a* b$",
        ] {
            assert!(waits(pattern), "{pattern}");
        }
        for pattern in [
            r"^\S+$",
            "^[A-Za-z ]+$",
            "^https?://.*$",
            "^[^<>]*$",
            "^[0-9]{4}(-[0-9]{2})?$",
            "^é+$",
        ] {
            assert!(!waits(pattern), "{pattern}");
        }
    }
}
