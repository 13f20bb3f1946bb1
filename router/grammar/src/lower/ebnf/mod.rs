//! Grammars in EBNF: GBNF of llama.cpp, which is also what vLLM takes as a grammar with `::=`. They become Lark.

mod parse;
mod write;

use crate::GrammarError;

/// How messages name it.
const PART: &str = "the EBNF grammar";

/// What a rule is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Literal(String),
    /// One character of these ranges, or of none of them.
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
    Rule(String),
    /// `<name>`.
    Special(String),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    /// From `least` to `most` times.
    Repeat {
        node: Box<Node>,
        least: u32,
        most: Option<u32>,
    },
}

/// The same grammar in Lark.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = parse::parse(text).map_err(|reason| super::invalid(PART, reason))?;
    write::write(&rules).map_err(|reason| super::invalid(PART, reason))
}

#[cfg(test)]
mod tests {
    use super::to_lark;

    #[test]
    fn a_regular_grammar_is_one_terminal() {
        let lark = to_lark("root ::= digit+ # some\ndigit ::= [0-9]").unwrap_or_default();
        assert_eq!(lark, "start: R0\nR0: R1+\nR1: /[\\x{30}-\\x{39}]/\n");
    }
}
