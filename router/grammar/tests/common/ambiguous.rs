//! A grammar that is cheap to compile and dear to follow; shared with the tests of `router/core`.

use text_generation_grammar::GrammarSource;

/// Two hundred ways to cut a text in two: a few tokens on, one more takes a tenth of a second and
/// much longer on slow machines, and soon after that the parser has too many items.
pub fn ambiguous() -> GrammarSource {
    let names: Vec<String> = (0..200).map(|index| format!("r{index}")).collect();
    let rules: String = names
        .iter()
        .map(|name| format!("{name}: text text\n"))
        .collect();
    GrammarSource::Lark(format!(
        "start: text\ntext: \"a\" | {}\n{rules}",
        names.join(" | ")
    ))
}
