//! Grammars in Lark, as llguidance reads them. Names of special tokens become ids, and schemas in `%json` are treated
//! like any other schema. Everything else goes on as it is.

use llguidance::api::TopLevelGrammar;
use llguidance::regex_to_lark;
use serde_json::Value;

use super::json::{self, Relaxed};
use super::{Lowered, invalid};
use crate::text::literal;
use crate::{CompilerLimits, GrammarError, Vocabulary};

/// How deep brackets may be nested: they are read by recursion.
pub(super) const NESTING: usize = 100;

/// How many rules and terminals there may be: the engine's time grows with the square of a chain of them.
pub(super) const RULES: usize = 1000;

/// How many conditions a grammar may add to its terminals by `&`: the engine's work doubles with each.
const CONDITIONS: usize = 12;

/// What is said of a grammar with more than [`RULES`].
pub(super) fn too_many_rules() -> String {
    format!("it has more than {RULES} rules")
}

/// A grammar of the texts that match `regex` as a whole. `\d` is ASCII.
pub(super) fn regex(regex: &str) -> String {
    format!("start: /{}/", regex_to_lark(regex, "d"))
}

/// A grammar of these texts and nothing else.
pub(super) fn choice(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() {
        return Err(invalid("the list of choices", "it is empty"));
    }
    let texts: Vec<String> = choices.iter().map(|text| literal(text)).collect();
    // One terminal, so that a choice may begin with another one.
    Ok(format!("start: CHOICE\nCHOICE: {}\n", texts.join(" | ")))
}

/// A grammar in Lark, which refers to no other; `part` names where it came from.
pub(super) fn lower(
    part: &'static str,
    grammar: &str,
    vocabulary: &Vocabulary,
    limits: &CompilerLimits,
) -> Result<Lowered, GrammarError> {
    scan(part, false, CONDITIONS, grammar, vocabulary, limits)
}

/// The same of a grammar that was EBNF. Its conditions are ours, and each stands in a terminal of its own.
pub(super) fn from_ebnf(
    part: &'static str,
    grammar: &str,
    vocabulary: &Vocabulary,
    limits: &CompilerLimits,
) -> Result<Lowered, GrammarError> {
    scan(part, false, usize::MAX, grammar, vocabulary, limits)
}

/// A grammar in Lark around another one, which it names.
pub(super) fn around(
    grammar: &str,
    vocabulary: &Vocabulary,
    limits: &CompilerLimits,
) -> Result<Lowered, GrammarError> {
    let part = "the Lark grammar";
    scan(part, true, CONDITIONS, grammar, vocabulary, limits)
}

fn scan(
    part: &'static str,
    refers: bool,
    conditions: usize,
    grammar: &str,
    vocabulary: &Vocabulary,
    limits: &CompilerLimits,
) -> Result<Lowered, GrammarError> {
    let mut scan = Scan {
        part,
        refers,
        rest: grammar,
        text: String::with_capacity(grammar.len()),
        depth: 0,
        rules: 0,
        conditions,
        not_enforced: Vec::new(),
        strict: Vec::new(),
        vocabulary,
        limits,
    };
    while let Some(first) = scan.rest.chars().next() {
        scan.step(first)?;
    }
    Ok(Lowered {
        grammar: TopLevelGrammar::from_lark(scan.text),
        not_enforced: scan.not_enforced,
        strict: scan.strict,
    })
}

struct Scan<'a> {
    part: &'static str,
    /// Whether `@name` may stand for another grammar.
    refers: bool,
    rest: &'a str,
    /// What was read, as it goes on.
    text: String,
    depth: usize,
    rules: usize,
    /// How many more may come.
    conditions: usize,
    not_enforced: Vec<String>,
    strict: Vec<Value>,
    vocabulary: &'a Vocabulary,
    limits: &'a CompilerLimits,
}

impl<'a> Scan<'a> {
    /// Takes one piece, which begins with `first`.
    fn step(&mut self, first: char) -> Result<(), GrammarError> {
        let rest = self.rest;
        match first {
            '#' => self.copy(rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("//") => self.copy(rest.find('\n').unwrap_or(rest.len())),
            '"' | '/' => self.copy(quoted(rest, first)),
            '(' | '[' | '{' => {
                self.depth += 1;
                if self.depth > NESTING {
                    return Err(invalid(
                        self.part,
                        format!("brackets are nested more than {NESTING} deep"),
                    ));
                }
                self.copy(1);
            }
            ')' | ']' | '}' => {
                self.depth = self.depth.saturating_sub(1);
                self.copy(1);
            }
            ':' => {
                self.rules += 1;
                if self.rules > RULES {
                    return Err(invalid(self.part, too_many_rules()));
                }
                self.copy(1);
            }
            '&' => {
                let Some(left) = self.conditions.checked_sub(1) else {
                    let reason = format!("it has more than {CONDITIONS} conditions with `&`");
                    return Err(invalid(self.part, reason));
                };
                self.conditions = left;
                self.copy(1);
            }
            // One that names itself would have no end.
            '@' if !self.refers => {
                return Err(invalid(
                    self.part,
                    "there is no other grammar that `@` could refer to",
                ));
            }
            '%' => self.directive()?,
            '<' => match special(rest) {
                Some(name) => self.special(name)?,
                None => self.copy(1),
            },
            other => self.copy(other.len_utf8()),
        }
        Ok(())
    }

    fn copy(&mut self, length: usize) {
        let (piece, rest) = self.rest.split_at(length);
        self.text.push_str(piece);
        self.rest = rest;
    }

    /// `%json`, and other keywords that JSON follows.
    fn directive(&mut self) -> Result<(), GrammarError> {
        let rest = self.rest;
        let Some(name) = ["%json", "%llguidance", "%regex"]
            .into_iter()
            .find(|name| rest.starts_with(name))
        else {
            self.copy(1);
            return Ok(());
        };
        self.copy(name.len());
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<Value>();
        let value = match values.next() {
            Some(Ok(value)) => value,
            Some(Err(error)) => {
                return Err(invalid(
                    self.part,
                    format!("no JSON follows `{name}`: {error}"),
                ));
            }
            None => return Err(invalid(self.part, format!("no JSON follows `{name}`"))),
        };
        let length = values.byte_offset();
        if name != "%json" {
            self.copy(length);
            return Ok(());
        }
        let strict = json::is_strict(&value);
        let Relaxed {
            schema,
            not_enforced,
        } = json::relax(value, strict, self.limits)?;
        self.not_enforced.extend(not_enforced);
        self.text.push_str(&format!(" {schema}"));
        if strict {
            self.strict.push(schema);
        }
        self.rest = &self.rest[length..];
        Ok(())
    }

    /// `<name>` of a token `<name>` or `name`, by its id; ids and ranges of ids as they are.
    fn special(&mut self, name: &'a str) -> Result<(), GrammarError> {
        let inner = &name[1..name.len() - 1];
        let id = self
            .vocabulary
            .special_id(name)
            .or_else(|| self.vocabulary.special_id(inner));
        match id {
            Some(id) => self.text.push_str(&format!("<[{id}]>")),
            None if inner.starts_with('[') => self.text.push_str(name),
            None => {
                return Err(invalid(
                    self.part,
                    format!("this model has no special token `{name}`"),
                ));
            }
        }
        self.rest = &self.rest[name.len()..];
        Ok(())
    }
}

/// Length of a string or regex, both quotes included.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (index, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return index + 1,
            // Nothing is quoted over lines; the engine says what is wrong.
            '\n' => return index,
            _ => {}
        }
    }
    text.len()
}

/// `<...>` at the beginning of `text`.
fn special(text: &str) -> Option<&str> {
    let end = text[1..].find(|character: char| {
        character == '<' || character == '>' || character.is_whitespace()
    })? + 1;
    (text[end..].starts_with('>') && end > 1).then(|| &text[..=end])
}
