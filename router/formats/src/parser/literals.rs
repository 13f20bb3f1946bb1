//! Arguments that are written as literals: Python's, or objects whose keys have no quotes.

use super::Outcome;
use crate::format::Text;
use crate::json::{self, escape, quote};
use crate::text::find;

/// Deeper nesting ends a call.
const MAX_DEPTH: usize = 128;
/// Words are keys, numbers and names; a longer one is none of them.
const MAX_WORD: usize = 256;

/// How literals are written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Dialect {
    /// Keyword arguments up to `)`, values as in Python.
    Keywords,
    /// An object; texts stand between two of these markers.
    Braces(Text),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Keywords,
    Object,
    Array,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// The brace that opens everything.
    Open,
    /// A key or an item, or the end of the container; `first` of it.
    Member {
        first: bool,
    },
    /// What stands between a key and its value.
    Assign,
    Value,
    /// A comma or the end of the container.
    Next,
    /// The inside of a text that ends with `quote`, or with the dialect's marker.
    Text {
        quote: Option<char>,
        key: bool,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Literals {
    dialect: Dialect,
    stack: Vec<Container>,
    expect: Expect,
}

/// How far a step got: it used this much, or reading stops here for now.
type Read = Result<usize, Outcome>;

impl Literals {
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            stack: Vec::new(),
            expect: Expect::Open,
        }
    }

    pub fn read(&mut self, text: &str, out: &mut String) -> (usize, Outcome) {
        let mut used = 0;
        loop {
            let rest = &text[used..];
            let step = match self.expect {
                Expect::Open => self.open(rest, out),
                Expect::Text { quote, key } => self.text(rest, quote, key, out),
                expect => {
                    let trimmed = rest.trim_start();
                    let space = rest.len() - trimmed.len();
                    match (expect, trimmed.chars().next()) {
                        (_, None) => Err(Outcome::More),
                        (Expect::Member { first }, Some(next)) => {
                            self.member(trimmed, next, first, out)
                        }
                        (Expect::Assign, Some(next)) => self.assign(next, out),
                        (Expect::Next, Some(next)) => self.next(next, out),
                        (_, Some(next)) => self.value(trimmed, next, out),
                    }
                    .map(|length| length + space)
                }
            };
            match step {
                Ok(length) => used += length,
                Err(outcome) => {
                    let last = usize::from(outcome == Outcome::Done);
                    // The closing bracket of everything stands after white space at most.
                    let space = rest.len() - rest.trim_start().len();
                    let length = if outcome == Outcome::Done {
                        space + last
                    } else {
                        0
                    };
                    return (used + length, outcome);
                }
            }
        }
    }

    fn open(&mut self, text: &str, out: &mut String) -> Read {
        let (container, length) = match &self.dialect {
            Dialect::Keywords => (Container::Keywords, 0),
            Dialect::Braces(_) if text.is_empty() => return Err(Outcome::More),
            Dialect::Braces(_) if text.starts_with('{') => (Container::Object, 1),
            Dialect::Braces(_) => return Err(Outcome::Broken),
        };
        out.push('{');
        self.stack.push(container);
        self.expect = Expect::Member { first: true };
        Ok(length)
    }

    /// A key, an item, or the end of the container.
    fn member(&mut self, text: &str, next: char, first: bool, out: &mut String) -> Read {
        if self.closes(next) {
            return self.close(out);
        }
        let container = self.stack.last().copied();
        let separator = if first { "" } else { ", " };
        if container == Some(Container::Array) {
            let before = out.len();
            out.push_str(separator);
            let read = self.value(text, next, out);
            if read.is_err() {
                out.truncate(before);
            }
            return read;
        }
        if let Some((quote, length)) = self.quote(text) {
            let quote = match quote? {
                Some(_) if container == Some(Container::Keywords) => return Err(Outcome::Broken),
                quote => quote,
            };
            out.push_str(separator);
            out.push('"');
            self.expect = Expect::Text { quote, key: true };
            return Ok(length);
        }
        let key = word(text)?;
        out.push_str(separator);
        quote(key, out);
        self.expect = Expect::Assign;
        Ok(key.len())
    }

    fn assign(&mut self, next: char, out: &mut String) -> Read {
        let expected = if self.stack.last() == Some(&Container::Keywords) {
            '='
        } else {
            ':'
        };
        if next != expected {
            return Err(Outcome::Broken);
        }
        out.push_str(": ");
        self.expect = Expect::Value;
        Ok(1)
    }

    fn value(&mut self, text: &str, next: char, out: &mut String) -> Read {
        let container = match next {
            '{' => Some(Container::Object),
            '[' => Some(Container::Array),
            _ => None,
        };
        if let Some(container) = container {
            if self.stack.len() == MAX_DEPTH {
                return Err(Outcome::Broken);
            }
            out.push(next);
            self.stack.push(container);
            self.expect = Expect::Member { first: true };
            return Ok(1);
        }
        if let Some((quote, length)) = self.quote(text) {
            let quote = quote?;
            out.push('"');
            self.expect = Expect::Text { quote, key: false };
            return Ok(length);
        }
        let word = word(text)?;
        match word {
            "true" | "True" => out.push_str("true"),
            "false" | "False" => out.push_str("false"),
            "null" | "None" => out.push_str("null"),
            number if json::is_value(number) => out.push_str(number),
            _ => return Err(Outcome::Broken),
        }
        self.expect = Expect::Next;
        Ok(word.len())
    }

    fn next(&mut self, next: char, out: &mut String) -> Read {
        if self.closes(next) {
            return self.close(out);
        }
        if next != ',' {
            return Err(Outcome::Broken);
        }
        self.expect = Expect::Member { first: false };
        Ok(1)
    }

    fn closes(&self, next: char) -> bool {
        match self.stack.last() {
            Some(Container::Keywords) => next == ')',
            Some(Container::Object) => next == '}',
            Some(Container::Array) => next == ']',
            None => false,
        }
    }

    fn close(&mut self, out: &mut String) -> Read {
        out.push(if self.stack.pop() == Some(Container::Array) {
            ']'
        } else {
            '}'
        });
        self.expect = Expect::Next;
        if self.stack.is_empty() {
            Err(Outcome::Done)
        } else {
            Ok(1)
        }
    }

    /// The quote with which `text` begins and its length; the dialect's marker is `None`.
    fn quote(&self, text: &str) -> Option<(Result<Option<char>, Outcome>, usize)> {
        match &self.dialect {
            Dialect::Keywords => {
                let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
                Some((Ok(Some(quote)), 1))
            }
            Dialect::Braces(marker) if text.starts_with(marker.as_ref()) => {
                Some((Ok(None), marker.len()))
            }
            Dialect::Braces(marker) if marker.starts_with(text) => Some((Err(Outcome::More), 0)),
            Dialect::Braces(_) => None,
        }
    }

    fn text(&mut self, text: &str, quote: Option<char>, key: bool, out: &mut String) -> Read {
        let (used, closed) = match (quote, &self.dialect) {
            (Some(quote), _) => python_text(text, quote, out)?,
            (None, Dialect::Braces(marker)) => match find(text, marker) {
                Ok(at) => {
                    escape(&text[..at], out);
                    (at + marker.len(), true)
                }
                Err(sure) => {
                    escape(&text[..sure], out);
                    (sure, false)
                }
            },
            (None, Dialect::Keywords) => return Err(Outcome::Broken),
        };
        if closed {
            out.push('"');
            self.expect = if key { Expect::Assign } else { Expect::Next };
        } else if used == 0 {
            return Err(Outcome::More);
        }
        Ok(used)
    }
}

/// A word and that something else follows it.
fn word(text: &str) -> Result<&str, Outcome> {
    let length = text
        .find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | '$')))
        .unwrap_or(text.len());
    if length == 0 || length > MAX_WORD {
        return Err(Outcome::Broken);
    }
    if length == text.len() {
        return Err(Outcome::More);
    }
    Ok(&text[..length])
}

/// Reads the inside of a Python string: how much, and whether it ended.
fn python_text(text: &str, quote: char, out: &mut String) -> Result<(usize, bool), Outcome> {
    let plain = text.find([quote, '\\', '\n']).unwrap_or(text.len());
    if plain > 0 {
        escape(&text[..plain], out);
        return Ok((plain, false));
    }
    let mut characters = text.chars();
    match characters.next() {
        None => return Err(Outcome::More),
        Some('\\') => {}
        Some('\n') => return Err(Outcome::Broken),
        Some(_) => return Ok((1, true)),
    }
    let Some(kind) = characters.next() else {
        return Err(Outcome::More);
    };
    let digits = match kind {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => 0,
    };
    if digits > 0 {
        let Some(hex) = text.get(2..2 + digits) else {
            let so_far = text.get(2..).unwrap_or_default();
            let hex = so_far.len() < digits && so_far.bytes().all(|b| b.is_ascii_hexdigit());
            return Err(if hex { Outcome::More } else { Outcome::Broken });
        };
        let code = u32::from_str_radix(hex, 16).map_err(|_| Outcome::Broken)?;
        match char::from_u32(code) {
            Some(character) => escape(character.encode_utf8(&mut [0; 4]), out),
            // Half of a surrogate pair, which JSON writes in the same way.
            None if digits == 4 => {
                out.push_str("\\u");
                out.push_str(hex);
            }
            None => return Err(Outcome::Broken),
        }
        return Ok((2 + digits, false));
    }
    match kind {
        'n' => out.push_str("\\n"),
        't' => out.push_str("\\t"),
        'r' => out.push_str("\\r"),
        'b' => out.push_str("\\b"),
        'f' => out.push_str("\\f"),
        '\'' => out.push('\''),
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '/' => out.push('/'),
        '\n' => {}
        // Python leaves what it does not know as it is.
        other => {
            out.push_str("\\\\");
            escape(other.encode_utf8(&mut [0; 4]), out);
        }
    }
    Ok((1 + kind.len_utf8(), false))
}
