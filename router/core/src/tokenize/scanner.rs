//! Splits a text as the regular expression of a pre-tokenizer does, in linear time.
//!
//! The expressions of today's models need a backtracking engine for one alternative only, a look-ahead: `\s+(?!\S)`
//! before `\s+` at their end leaves the last space of a run to the word after it. Without it they are regular. So all
//! other alternatives are pattern 0 and `\s+` is pattern 1 of one automaton, and a match of pattern 1 gives its last
//! character back unless the text ends there. (The idea is that of GitHub's crate `bpe-openai`.)

use regex_automata::meta::{Cache, Regex};
use regex_automata::util::pool::{Pool, PoolGuard};
use regex_automata::{Anchored, Input};
use regex_syntax::ast::{self, Ast};

/// The end of an expression that keeps the last space of a run for the next word.
const SPACES: &str = r"|\s+(?!\S)|\s+";

/// The only group that is known to mean the same in both engines: `regex-syntax` folds case letter by letter, and in
/// Oniguruma one letter may fold to two, but to no two of these.
const CONTRACTIONS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";

/// General categories; both engines know those of Unicode 16.
const CATEGORIES: [&str; 10] = ["L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S"];

/// Room for the states of the automaton that a thread has met, in bytes.
const STATES: usize = 8 << 20;

type NewCache = Box<dyn Fn() -> Cache + Send + Sync>;
type Caches = Pool<Cache, NewCache>;

/// A compiled expression. Threads may share it; each uses a cache of its own while it splits.
pub(super) struct Scanner {
    regex: Regex,
    caches: Caches,
}

impl Scanner {
    /// Nothing for an expression that is not known to mean the same as in Oniguruma, the engine of the library.
    pub(super) fn new(expression: &str) -> Option<Self> {
        let words = expression.strip_suffix(SPACES);
        let regular = words.unwrap_or(expression);
        let ast = ast::parse::Parser::new().parse(regular).ok()?;
        let shortest = regex_syntax::parse(regular)
            .ok()?
            .properties()
            .minimum_len();
        if !means_the_same(&ast, regular) || shortest.is_none_or(|bytes| bytes == 0) {
            return None;
        }
        let spaces = words.map(|_| r"\s+");
        let patterns: Vec<&str> = std::iter::once(regular).chain(spaces).collect();
        let config = Regex::config().hybrid_cache_capacity(STATES);
        let regex = Regex::builder()
            .configure(config)
            .build_many(&patterns)
            .ok()?;
        let of_caches = regex.clone();
        let caches: Caches = Pool::new(Box::new(move || of_caches.create_cache()));
        Some(Self { regex, caches })
    }

    /// The matches in `text` and what lies between them, in order; together they are the text.
    pub(super) fn pieces<'a>(&'a self, text: &'a str) -> Pieces<'a> {
        Pieces {
            regex: &self.regex,
            cache: self.caches.get(),
            text,
            at: 0,
            matched: None,
        }
    }
}

pub(super) struct Pieces<'a> {
    regex: &'a Regex,
    cache: PoolGuard<'a, Cache, NewCache>,
    text: &'a str,
    at: usize,
    /// End of the match that starts at `at`, where the text before it was a piece.
    matched: Option<usize>,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.at == self.text.len() {
            return None;
        }
        let start = self.at;
        self.at = match self.matched.take() {
            Some(end) => end,
            None => match self.find() {
                Some((next, end)) if next > start => {
                    self.matched = Some(end);
                    next
                }
                Some((_, end)) => end,
                None => self.text.len(),
            },
        };
        Some(&self.text[start..self.at])
    }
}

impl Pieces<'_> {
    /// Start and end of the next match. Most start where the last one ended, and an anchored search is faster.
    fn find(&mut self) -> Option<(usize, usize)> {
        let input = Input::new(self.text).range(self.at..);
        let anchored = input.clone().anchored(Anchored::Yes);
        let found = self.regex.search_with(&mut self.cache, &anchored);
        let found = found.or_else(|| self.regex.search_with(&mut self.cache, &input))?;
        let run = &self.text[found.range()];
        let last = run.chars().next_back().map_or(0, char::len_utf8);
        let gives_back =
            found.pattern().as_usize() == 1 && found.end() < self.text.len() && run.len() > last;
        let end = found.end() - if gives_back { last } else { 0 };
        Some((found.start(), end))
    }
}

/// Whether all of `ast`, parsed from `source`, is of the kinds that both engines read alike: literals, `\s`, categories,
/// flat classes, greedy repetitions of these, and [`CONTRACTIONS`]. A repetition of a repetition is possessive in Oniguruma.
fn means_the_same(ast: &Ast, source: &str) -> bool {
    let all = |parts: &[Ast]| parts.iter().all(|part| means_the_same(part, source));
    match ast {
        Ast::Alternation(alternation) => all(&alternation.asts),
        Ast::Concat(concat) => all(&concat.asts),
        Ast::Repetition(repetition) => {
            let nested = matches!(*repetition.ast, Ast::Repetition(_));
            repetition.greedy && !nested && means_the_same(&repetition.ast, source)
        }
        Ast::Group(group) => source
            .get(group.span.start.offset..group.span.end.offset)
            .is_some_and(|text| text == CONTRACTIONS),
        Ast::Literal(literal) => is_plain(literal),
        Ast::ClassPerl(class) => class.kind == ast::ClassPerlKind::Space,
        Ast::ClassUnicode(class) => is_category(class),
        Ast::ClassBracketed(class) => match &class.kind {
            ast::ClassSet::Item(ast::ClassSetItem::Union(union)) => union.items.iter().all(is_flat),
            ast::ClassSet::Item(item) => is_flat(item),
            ast::ClassSet::BinaryOp(_) => false,
        },
        _ => false,
    }
}

fn is_flat(item: &ast::ClassSetItem) -> bool {
    match item {
        ast::ClassSetItem::Literal(literal) => is_plain(literal),
        ast::ClassSetItem::Range(range) => is_plain(&range.start) && is_plain(&range.end),
        ast::ClassSetItem::Unicode(class) => is_category(class),
        ast::ClassSetItem::Perl(class) => class.kind == ast::ClassPerlKind::Space,
        _ => false,
    }
}

fn is_plain(literal: &ast::Literal) -> bool {
    match literal.kind {
        ast::LiteralKind::Verbatim | ast::LiteralKind::Meta => true,
        ast::LiteralKind::Special(_) => matches!(literal.c, '\t' | '\r' | '\n'),
        _ => false,
    }
}

fn is_category(class: &ast::ClassUnicode) -> bool {
    matches!(&class.kind, ast::ClassUnicodeKind::Named(name) if CATEGORIES.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use tokenizers::tokenizer::pattern::Pattern;
    use tokenizers::utils::SysRegex;

    use super::*;

    fn assert_same_pieces(expression: &str, text: &str) {
        let library = SysRegex::new(expression).unwrap();
        let expected = (&library).find_matches(text).unwrap().into_iter();
        let scanner = Scanner::new(expression).unwrap();
        let same = expected
            .map(|((start, end), _)| &text[start..end])
            .eq(scanner.pieces(text));
        assert!(same, "{expression}");
    }

    /// Fails if one engine comes to know another version of Unicode than the other.
    #[test]
    fn every_class_holds_the_same_characters_as_in_the_library() {
        // No other plane has characters.
        let planes = ('\0'..='\u{3ffff}').chain('\u{e0000}'..='\u{effff}');
        let characters: String = planes.collect();
        assert_same_pieces(r"\s+", &characters);
        for category in CATEGORIES {
            assert_same_pieces(&format!(r"\p{{{category}}}+"), &characters);
        }
        assert_same_pieces(r"[^\s\p{L}\p{N}]+|\S", &characters);
    }

    #[test]
    fn contractions_fold_case_as_in_the_library() {
        let letters = ('\0'..='\u{3ffff}').filter(|character| character.is_alphabetic());
        let texts: String = letters
            .map(|letter| format!("'{letter}'L{letter}'{letter}e "))
            .collect();
        assert_same_pieces(CONTRACTIONS, &texts);
    }

    #[test]
    fn the_last_space_goes_to_the_next_word() {
        let scanner = Scanner::new(r" ?\p{L}+|\s+(?!\S)|\s+").unwrap();
        for (text, expected) in [
            ("a b", vec!["a", " b"]),
            ("a   b", vec!["a", "  ", " b"]),
            (
                "a\u{3000}\u{a0}b  ",
                vec!["a", "\u{3000}", "\u{a0}", "b", "  "],
            ),
            ("--a  -", vec!["--", "a", " ", " ", "-"]),
            (" ", vec![" "]),
            ("", vec![]),
        ] {
            assert_eq!(scanner.pieces(text).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn expressions_that_may_mean_something_else_are_refused() {
        for expression in [
            r"[^\r\n\p{L}\p{N}]?+\p{L}++",
            r"\p{L}+?",
            r"\p{L}+(?=\s)",
            r"\s+(?!\S)",
            r"a|\s+(?!\S)|\s+|b",
            r"(a|\s+(?!\S)|\s+",
            r"(\p{L}+)",
            r"(?i:ss)",
            r"(?i)a",
            r"\w+",
            r"\d",
            r"\bа",
            r"^a",
            r"a$",
            r".",
            r"\x41",
            r"\p{Greek}",
            r"\pL",
            r"[a-z&&[^b]]",
            r"[a--b]",
            r"[[:alpha:]]",
            r"\p{L}*",
            r"a||b",
            "",
        ] {
            assert!(Scanner::new(expression).is_none(), "{expression}");
        }
    }
}
