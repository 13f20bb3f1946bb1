//! Arguments that are written as elements, one for each.

use serde_json::Value;

use super::{Outcome, Read, read_on};
use crate::format::{Attribute, Parameters, Text};
use crate::json::{escape, quote};
use crate::schema::{self, Types};
use crate::text::{Match, find, starts_with};

/// Keys are shorter; a longer one is not a key.
const MAX_KEY: usize = 256;
/// Between these, a value may have what would else end it.
const CDATA: [&str; 2] = ["<![CDATA[", "]]>"];

#[derive(Debug, Clone)]
pub(super) struct ParameterReader {
    parameters: Parameters,
    /// Ends the call.
    close: Text,
    schema: Option<Value>,
    state: State,
    /// Arguments begun.
    count: usize,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Before an element or the end of the call.
    Between,
    Key,
    /// Inside a text, which is passed on as it comes.
    Text {
        first: bool,
    },
    /// Inside a text that stands between the markers of CDATA.
    Cdata,
    /// Between the end of CDATA and that of the element.
    Closing,
    /// Inside a value that waits for its end. Its closing marker does not begin before `searched`.
    Waiting {
        types: Types,
        searched: usize,
    },
}

impl ParameterReader {
    pub fn new(parameters: Parameters, close: Text, schema: Option<Value>) -> Self {
        Self {
            parameters,
            close,
            schema,
            state: State::Between,
            count: 0,
        }
    }

    pub fn read(&mut self, text: &str, out: &mut String) -> (usize, Outcome) {
        read_on(text, |rest| match self.state {
            State::Between => self.between(rest, out),
            State::Key => self.key(rest, out),
            State::Text { first } => self.text(rest, first, out),
            State::Cdata => self.cdata(rest, out),
            State::Closing => self.closing(rest),
            State::Waiting { types, searched } => self.waiting(rest, types, searched, out),
        })
    }

    fn between(&mut self, text: &str, out: &mut String) -> Read {
        let open = starts_with(text, &self.parameters.open);
        let close = starts_with(text, &self.close);
        match (open, close) {
            (Match::Full(length), _) => {
                self.state = State::Key;
                Ok(length)
            }
            (_, Match::Full(_)) => {
                out.push_str(if self.count == 0 { "{}" } else { "}" });
                Err((0, Outcome::Done))
            }
            (Match::Partial, _) | (_, Match::Partial) => Err((0, Outcome::More)),
            (Match::No, Match::No) => Err((0, Outcome::Broken)),
        }
    }

    fn key(&mut self, text: &str, out: &mut String) -> Read {
        let word = self
            .parameters
            .key_end
            .split_whitespace()
            .next()
            .unwrap_or_default();
        let at = match find(text, word) {
            Ok(at) if at <= MAX_KEY => at,
            Err(sure) if sure <= MAX_KEY => return Err((0, Outcome::More)),
            Ok(_) | Err(_) => return Err((0, Outcome::Broken)),
        };
        let key = text[..at].trim();
        let mut used = match starts_with(&text[at..], &self.parameters.key_end) {
            Match::Full(length) => at + length,
            Match::Partial => return Err((0, Outcome::More)),
            Match::No => return Err((0, Outcome::Broken)),
        };
        let mut types = schema::argument(self.schema.as_ref(), key);
        if let Some(attribute) = self.parameters.attribute {
            let (length, said) = match read_attribute(&text[used..], attribute) {
                Match::Full(found) => found,
                Match::Partial => return Err((0, Outcome::More)),
                Match::No => return Err((0, Outcome::Broken)),
            };
            used += length;
            types = said;
        }
        out.push_str(if self.count == 0 { "{" } else { ", " });
        self.count += 1;
        quote(key, out);
        out.push_str(": ");
        self.state = if types == Types::TEXT {
            out.push('"');
            State::Text { first: true }
        } else {
            State::Waiting { types, searched: 0 }
        };
        Ok(used)
    }

    fn text(&mut self, text: &str, first: bool, out: &mut String) -> Read {
        let padding = self.parameters.padding;
        if first {
            if text.is_empty() {
                return Err((0, Outcome::More));
            }
            if self.parameters.cdata {
                match starts_with(text, CDATA[0]) {
                    Match::Full(length) => {
                        self.state = State::Cdata;
                        return Ok(length);
                    }
                    Match::Partial => return Err((0, Outcome::More)),
                    Match::No => {}
                }
            }
            self.state = State::Text { first: false };
            return Ok(if text.starts_with(padding) {
                padding.len()
            } else {
                0
            });
        }
        let close = self.parameters.close.trim();
        match find(text, close) {
            Ok(at) => {
                let value = &text[..at];
                escape(value.strip_suffix(padding).unwrap_or(value), out);
                out.push('"');
                self.state = State::Between;
                Ok(at + close.len())
            }
            Err(sure) => {
                let value = &text[..sure];
                let value = value.strip_suffix(padding).unwrap_or(value);
                escape(value, out);
                Err((value.len(), Outcome::More))
            }
        }
    }

    fn cdata(&mut self, text: &str, out: &mut String) -> Read {
        match find(text, CDATA[1]) {
            Ok(at) => {
                escape(&text[..at], out);
                out.push('"');
                self.state = State::Closing;
                Ok(at + CDATA[1].len())
            }
            Err(sure) => {
                escape(&text[..sure], out);
                Err((sure, Outcome::More))
            }
        }
    }

    fn closing(&mut self, text: &str) -> Read {
        match starts_with(text, &self.parameters.close) {
            Match::Full(length) => {
                self.state = State::Between;
                Ok(length)
            }
            Match::Partial => Err((0, Outcome::More)),
            Match::No => Err((0, Outcome::Broken)),
        }
    }

    fn waiting(&mut self, text: &str, types: Types, searched: usize, out: &mut String) -> Read {
        if types.is_text_or_null() && !is_null_so_far(text, &self.parameters.close) {
            out.push('"');
            self.state = State::Text { first: true };
            return Ok(0);
        }
        let close = self.parameters.close.trim();
        match find(&text[searched..], close) {
            Ok(at) => {
                let value = &text[..searched + at];
                let padding = self.parameters.padding;
                let value = value.strip_prefix(padding).unwrap_or(value);
                let value = value.strip_suffix(padding).unwrap_or(value);
                schema::write(self.without_cdata(value), types, out);
                self.state = State::Between;
                Ok(searched + at + close.len())
            }
            Err(sure) => {
                self.state = State::Waiting {
                    types,
                    searched: searched + sure,
                };
                Err((0, Outcome::More))
            }
        }
    }

    fn without_cdata<'a>(&self, value: &'a str) -> &'a str {
        let inside = value
            .trim()
            .strip_prefix(CDATA[0])
            .and_then(|value| value.strip_suffix(CDATA[1]));
        inside.filter(|_| self.parameters.cdata).unwrap_or(value)
    }
}

/// Reads a word of the attribute and what ends it: its length and the types that it stands for.
fn read_attribute(text: &str, attribute: Attribute) -> Match<(usize, Types)> {
    let mut partial = false;
    let words = std::iter::once((attribute.text, Types::TEXT));
    for (word, types) in words.chain(attribute.others.iter().copied()) {
        match starts_with(text, &format!("{word} {}", attribute.end)) {
            Match::Full(length) => return Match::Full((length, types)),
            Match::Partial => partial = true,
            Match::No => {}
        }
    }
    if partial { Match::Partial } else { Match::No }
}

/// Whether a value may still turn out to be `null`.
pub(super) fn is_null_so_far(text: &str, close: &str) -> bool {
    let text = text.trim_start();
    ["null", "None"]
        .iter()
        .any(|null| match text.strip_prefix(null) {
            Some(rest) => {
                let (rest, close) = (rest.trim_start(), close.trim());
                rest.starts_with(close) || close.starts_with(rest)
            }
            None => null.starts_with(text),
        })
}
