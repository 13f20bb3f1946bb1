//! The head of a call: what it says before its arguments.

use crate::format::{self, Arguments, Call, NameForm};
use crate::json::{JsonScanner, Scan};
use crate::text::{Match, starts_with};
use crate::tool::is_in_name;

/// Names are shorter; a longer one is not the beginning of a call.
const MAX_NAME: usize = 256;

/// A call whose arguments begin.
#[derive(Debug)]
pub(super) struct Head {
    pub name: String,
    pub id: Option<String>,
    /// Where the arguments begin, or the call ends.
    pub end: usize,
    pub given: Given,
}

/// Where the arguments are.
#[derive(Debug)]
pub(super) enum Given {
    Later,
    /// They came before the name.
    Before(String),
    /// The call has ended and had none.
    Nothing,
}

/// Reads the head of a call at the start of `text`. `Partial`: more text is needed.
pub(super) fn read(call: &Call, text: &str) -> Match<Head> {
    let head = match &call.head {
        format::Head::Named { open, end, form } => named(text, open, end, *form),
        format::Head::Object {
            name, arguments, ..
        } => object(text, name, arguments),
    };
    match head {
        Match::Full(mut head) if matches!(head.given, Given::Later) => {
            let rest = &text[head.end..];
            let first = match call.arguments {
                Arguments::Json | Arguments::Braces { .. } => starts_with(rest, "{"),
                Arguments::Parameters(_) | Arguments::Keywords | Arguments::Elements { .. } => {
                    return Match::Full(head);
                }
            };
            match first {
                Match::Full(length) => {
                    head.end += length - 1;
                    Match::Full(head)
                }
                Match::Partial => Match::Partial,
                Match::No => Match::No,
            }
        }
        head => head,
    }
}

fn named(text: &str, open: &str, end: &str, form: NameForm) -> Match<Head> {
    let start = match starts_with(text, open) {
        Match::Full(start) => start,
        Match::Partial => return Match::Partial,
        Match::No => return Match::No,
    };
    let (start, before) = match form {
        NameForm::AfterId(marker) => match id_before(&text[start..], marker) {
            Match::Full((length, id)) => (start + length, Some(id)),
            Match::Partial => return Match::Partial,
            Match::No => return Match::No,
        },
        _ => (start, None),
    };
    let rest = text[start..].trim_start();
    let start = text.len() - rest.len();
    let length = rest.find(|c: char| !is_in_name(c)).unwrap_or(rest.len());
    if length > MAX_NAME || (length == 0 && !rest.is_empty()) {
        return Match::No;
    }
    if length == rest.len() {
        return Match::Partial;
    }
    let written = &rest[..length];
    let mut at = start + length;
    let (name, mut id) = match form {
        NameForm::Numbered => (numbered(written), Some(written.to_owned())),
        _ => (Some(written), before),
    };
    let Some(name) = name else {
        return Match::No;
    };
    if let NameForm::WithId(marker) | NameForm::Counted(marker) = form {
        match starts_with(&text[at..], marker) {
            Match::Full(marker) => {
                let rest = &text[at + marker..];
                let length = rest.find(|c: char| !is_in_name(c)).unwrap_or(rest.len());
                if length == rest.len() && length <= MAX_NAME {
                    return Match::Partial;
                }
                if matches!(form, NameForm::WithId(_)) {
                    id = Some(rest[..length].to_owned());
                }
                at += marker + length;
            }
            // The marker and the end of the name may begin alike.
            Match::Partial => return Match::Partial,
            Match::No => {}
        }
    }
    match starts_with(&text[at..], end) {
        Match::Full(length) => Match::Full(Head {
            name: name.to_owned(),
            id,
            end: at + length,
            given: Given::Later,
        }),
        Match::Partial => Match::Partial,
        Match::No => Match::No,
    }
}

/// An id and the marker after it: their length, and the id.
fn id_before(text: &str, marker: &str) -> Match<(usize, String)> {
    let id = text.trim_start();
    let length = id.find(|c: char| !is_in_name(c)).unwrap_or(id.len());
    if length > MAX_NAME {
        return Match::No;
    }
    match starts_with(&id[length..], marker) {
        Match::Full(end) => {
            let used = text.len() - id.len() + length + end;
            Match::Full((used, id[..length].to_owned()))
        }
        Match::Partial => Match::Partial,
        Match::No => Match::No,
    }
}

/// The name in `functions.name:0`.
fn numbered(written: &str) -> Option<&str> {
    let (name, number) = written.rsplit_once(':')?;
    let name = name.strip_prefix("functions.").unwrap_or(name);
    (!name.is_empty() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
        .then_some(name)
}

fn object(text: &str, name_key: &str, argument_keys: &[&str]) -> Match<Head> {
    let mut members = match starts_with(text, "{") {
        Match::Full(at) => Members { text, at },
        Match::Partial => return Match::Partial,
        Match::No => return Match::No,
    };
    let mut name: Option<String> = None;
    let mut early: Option<String> = None;
    loop {
        let key = match members.key() {
            Match::Full(key) => key,
            Match::Partial => return Match::Partial,
            Match::No => return Match::No,
        };
        let is_arguments = argument_keys.contains(&key.as_str());
        if let (true, Some(name), None) = (is_arguments, &name, &early) {
            return Match::Full(Head {
                name: name.clone(),
                id: None,
                end: members.at,
                given: Given::Later,
            });
        }
        let value = match members.value() {
            Match::Full(value) => value,
            Match::Partial => return Match::Partial,
            Match::No => return Match::No,
        };
        if key == name_key {
            match serde_json::from_str::<String>(value) {
                Ok(value) if !value.is_empty() && value.len() <= MAX_NAME => name = Some(value),
                _ => return Match::No,
            }
        } else if is_arguments {
            if !value.starts_with('{') {
                return Match::No;
            }
            early = Some(value.to_owned());
        }
        match members.next() {
            Match::Full(true) => {}
            Match::Full(false) => break,
            Match::Partial => return Match::Partial,
            Match::No => return Match::No,
        }
    }
    let Some(name) = name else {
        return Match::No;
    };
    Match::Full(Head {
        name,
        id: None,
        end: members.at,
        given: early.map_or(Given::Nothing, Given::Before),
    })
}

/// What follows the arguments in the object of a call: further members and the closing brace. `Full` is its length.
pub(super) fn object_end(text: &str) -> Match<usize> {
    let mut members = Members { text, at: 0 };
    loop {
        match members.next() {
            Match::Full(true) => {}
            Match::Full(false) => return Match::Full(members.at),
            Match::Partial => return Match::Partial,
            Match::No => return Match::No,
        }
        match members.key() {
            Match::Full(_) => {}
            Match::Partial => return Match::Partial,
            Match::No => return Match::No,
        }
        match members.value() {
            Match::Full(_) => {}
            Match::Partial => return Match::Partial,
            Match::No => return Match::No,
        }
    }
}

/// The members of a JSON object, read one by one.
struct Members<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Members<'a> {
    /// A key and its colon.
    fn key(&mut self) -> Match<String> {
        let key = match self.value() {
            Match::Full(key) => key,
            Match::Partial => return Match::Partial,
            Match::No => return Match::No,
        };
        let Ok(key) = serde_json::from_str::<String>(key) else {
            return Match::No;
        };
        match starts_with(&self.text[self.at..], ":") {
            Match::Full(length) => {
                self.at += length;
                Match::Full(key)
            }
            Match::Partial => Match::Partial,
            Match::No => Match::No,
        }
    }

    fn value(&mut self) -> Match<&'a str> {
        let text = self.text;
        let rest = text[self.at..].trim_start();
        let start = text.len() - rest.len();
        match JsonScanner::new().scan(rest) {
            Scan::Done(length) => {
                self.at = start + length;
                Match::Full(&text[start..self.at])
            }
            Scan::More => Match::Partial,
            Scan::Broken(_) => Match::No,
        }
    }

    /// Whether another member follows; false: the object has ended.
    fn next(&mut self) -> Match<bool> {
        let rest = self.text[self.at..].trim_start();
        let more = match rest.as_bytes().first() {
            None => return Match::Partial,
            Some(b',') => true,
            Some(b'}') => false,
            Some(_) => return Match::No,
        };
        self.at = self.text.len() - rest.len() + 1;
        Match::Full(more)
    }
}
