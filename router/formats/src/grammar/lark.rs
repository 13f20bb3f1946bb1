//! Writes Lark as llguidance reads it.

use std::fmt::Write;

use serde_json::{Value, json};

use super::SpecialTokens;
use crate::json;

/// Any text. Special tokens are no part of it.
pub(super) const TEXT: &str = "/(?s:.*)/";

/// Beyond this size of its rules a grammar is given up. Those that are compiled are smaller.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// The rules of a grammar.
pub(super) struct Lark<'a> {
    rules: String,
    count: usize,
    space: Option<String>,
    special: &'a SpecialTokens,
}

/// A part of a marker.
enum Piece<'a> {
    Text(&'a str),
    Special(u32),
}

impl<'a> Lark<'a> {
    pub fn new(special: &'a SpecialTokens) -> Self {
        Self {
            rules: String::new(),
            count: 0,
            space: None,
            special,
        }
    }

    /// The whole grammar.
    pub fn finish(self, start: &str) -> String {
        format!("%llguidance {{}}\nstart: {start}\n{}", self.rules)
    }

    /// Whether the grammar is given up, so that no more needs to be added: definitions that refer to each other make
    /// grammars that are much larger than they are.
    pub fn is_full(&self) -> bool {
        self.rules.len() > MAX_BYTES
    }

    /// Adds a rule and returns its name, which begins with `hint`.
    pub fn rule(&mut self, hint: &str, body: &str) -> String {
        self.attributed(hint, "", body)
    }

    fn attributed(&mut self, hint: &str, attribute: &str, body: &str) -> String {
        let name = self.name(hint);
        self.define(&name, attribute, body);
        name
    }

    /// A name for a rule that is defined later.
    pub fn name(&mut self, hint: &str) -> String {
        self.count += 1;
        format!("{hint}_{}", self.count)
    }

    pub fn define(&mut self, name: &str, attribute: &str, body: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.rules, "{name}{attribute}: {body}");
    }

    /// A little white space.
    pub fn space(&mut self) -> String {
        if let Some(name) = &self.space {
            return name.clone();
        }
        let name = self.rule("space", r"/[ \t\r\n]{1,4}/");
        self.space = Some(name.clone());
        name
    }

    /// Exactly this text, special tokens in it as tokens. A single space after a closing bracket may be missing, as the
    /// tokenizers of one family differ in it.
    pub fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut after_bracket = false;
        for piece in self.pieces(text) {
            match piece {
                Piece::Special(id) => {
                    after_bracket = true;
                    parts.push(format!("<[{id}]>"));
                }
                Piece::Text(text) => {
                    let mut rest = text;
                    while let Some(at) = optional_space(rest, after_bracket) {
                        if at > 0 {
                            parts.push(string(&rest[..at]));
                        }
                        parts.push("\" \"?".to_owned());
                        rest = &rest[at + 1..];
                        after_bracket = false;
                    }
                    if !rest.is_empty() {
                        parts.push(string(rest));
                    }
                    after_bracket = false;
                }
            }
        }
        parts.join(" ")
    }

    /// A rule for any text and then `marker`, the first time that it comes.
    pub fn until(&mut self, marker: &str) -> String {
        self.text_until("(?s:.*)", marker)
    }

    /// As `until`, for text that the regex `text` matches.
    pub fn text_until(&mut self, text: &str, marker: &str) -> String {
        let pieces = self.pieces(marker);
        let (before, rest) = match pieces.split_first() {
            Some((Piece::Text(before), rest)) => (*before, rest),
            _ => ("", pieces.as_slice()),
        };
        let head = regex(&format!("{text}{}", escape_regex(before)));
        if rest.is_empty() {
            return self.attributed("until", "[lazy]", &head);
        }
        // A special token ends the text, as it can be no part of it.
        let rest: Vec<String> = rest
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => string(text),
                Piece::Special(id) => format!("<[{id}]>"),
            })
            .collect();
        let body = format!("{head} {}", rest.join(" "));
        self.rule("until", &body)
    }

    /// A text that matches the regex `text` and not the regex `other`.
    pub fn except(&mut self, text: &str, other: &str) -> String {
        let name = self.name("TEXT");
        self.define(&name, "", &format!("{} & ~{}", regex(text), regex(other)));
        name
    }

    /// JSON that fits `schema`. Unless `strict`, what cannot be enforced is let through, as the engine reads in the
    /// schema itself.
    pub fn json(&self, schema: &Value, strict: bool) -> String {
        let mut schema = match schema {
            Value::Object(_) => schema.clone(),
            Value::Bool(false) => json!({"not": {}}),
            _ => json!({}),
        };
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("x-guidance".to_owned(), json!({"lenient": !strict}));
        }
        format!("%json {schema}")
    }

    /// Splits a marker at the special tokens in it.
    fn pieces<'t>(&self, text: &'t str) -> Vec<Piece<'t>> {
        let mut pieces = Vec::new();
        // Where each of the tokens comes next.
        let mut coming: Vec<(usize, &str, u32)> = self
            .special
            .iter()
            .filter(|(token, _)| !token.is_empty())
            .filter_map(|(token, id)| Some((text.find(token.as_str())?, token.as_str(), *id)))
            .collect();
        let mut at = 0;
        while at < text.len() {
            coming.retain_mut(|(start, token, _)| {
                if *start < at {
                    let Some(further) = text[at..].find(*token) else {
                        return false;
                    };
                    *start = at + further;
                }
                true
            });
            // The first special token, and the longest where several begin.
            let first = coming
                .iter()
                .min_by_key(|(start, token, _)| (*start, std::cmp::Reverse(token.len())));
            let Some(&(start, token, id)) = first else {
                pieces.push(Piece::Text(&text[at..]));
                break;
            };
            if start > at {
                pieces.push(Piece::Text(&text[at..start]));
            }
            pieces.push(Piece::Special(id));
            at = start + token.len();
        }
        pieces
    }
}

/// Where in `text` a single space may be missing.
fn optional_space(text: &str, after_bracket: bool) -> Option<usize> {
    if after_bracket && text.starts_with(' ') {
        return Some(0);
    }
    [">", "]"]
        .iter()
        .filter_map(|bracket| Some(text.find(&format!("{bracket} "))? + 1))
        .min()
}

/// A string of Lark.
pub(super) fn string(text: &str) -> String {
    let mut quoted = String::new();
    json::quote(text, &mut quoted);
    quoted.replace('\u{7f}', "\\u007f")
}

/// A regex of Lark.
pub(super) fn regex(regex: &str) -> String {
    let mut escaped = String::from("/");
    let mut backslash = false;
    for character in regex.chars() {
        match character {
            '/' if !backslash => escaped.push_str("\\/"),
            '\n' => escaped.push_str(if backslash { "n" } else { "\\n" }),
            other => escaped.push(other),
        }
        backslash = character == '\\' && !backslash;
    }
    escaped.push('/');
    escaped
}

/// A grammar inside another one.
pub(super) fn nested(grammar: &str) -> String {
    format!("%lark {{\n{grammar}\n}}")
}

/// A regex that matches this text.
pub(super) fn escape_regex(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if character.is_ascii_punctuation()
            && character != '_'
            && character != '<'
            && character != '>'
        {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}
