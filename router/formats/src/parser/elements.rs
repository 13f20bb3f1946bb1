//! Arguments that are written as XML elements with their names: objects and arrays as the elements of what they hold.

use serde_json::Value;

use super::parameters::is_null_so_far;
use super::{Outcome, Read, read_on};
use crate::format::{ITEM, Text};
use crate::json::{escape, quote};
use crate::schema::{self, Step, Types};
use crate::text::{Match, find, starts_with};

/// Deeper nesting ends a call.
const MAX_DEPTH: usize = 64;
/// Names of elements are shorter.
const MAX_NAME: usize = 256;

#[derive(Debug, Clone)]
pub(super) struct ElementReader {
    /// Stands before each tag.
    prefix: Text,
    /// Ends the call.
    close: Text,
    schema: Option<Value>,
    /// The elements that are open, from the outermost.
    stack: Vec<Element>,
    /// Members that the arguments have so far.
    members: usize,
    state: State,
}

#[derive(Debug, Clone)]
struct Element {
    name: String,
    /// What is inside, once that is known.
    inside: Inside,
    /// Elements that have begun inside.
    count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    Object,
    Array,
    Value,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Before an element, or the end of what holds it.
    Between,
    /// At the beginning of an element, which may hold others or a value of these types.
    First(Types),
    /// Inside a text, which is passed on as it comes.
    Text,
    /// Inside a value that waits for its end, which does not begin before `searched`.
    Waiting { types: Types, searched: usize },
}

const MORE: Read = Err((0, Outcome::More));
const BROKEN: Read = Err((0, Outcome::Broken));

impl ElementReader {
    pub fn new(prefix: Text, close: Text, schema: Option<Value>) -> Self {
        Self {
            prefix,
            close,
            schema,
            stack: Vec::new(),
            members: 0,
            state: State::Between,
        }
    }

    pub fn read(&mut self, text: &str, out: &mut String) -> (usize, Outcome) {
        read_on(text, |rest| match self.state {
            State::Between => self.between(rest, out),
            State::First(types) => self.first(rest, types, out),
            State::Text => self.text(rest, out),
            State::Waiting { types, searched } => self.waiting(rest, types, searched, out),
        })
    }

    /// The tag that ends the innermost element, or the call.
    fn end_tag(&self) -> String {
        match self.stack.last() {
            Some(element) => format!("{}</{}>", self.prefix, element.name),
            None => self.close.trim().to_owned(),
        }
    }

    fn between(&mut self, text: &str, out: &mut String) -> Read {
        match starts_with(text, &self.end_tag()) {
            Match::Full(length) => match self.stack.pop() {
                Some(element) => {
                    out.push(if element.inside == Inside::Array {
                        ']'
                    } else {
                        '}'
                    });
                    return Ok(length);
                }
                None => {
                    out.push_str(if self.members == 0 { "{}" } else { "}" });
                    return Err((0, Outcome::Done));
                }
            },
            Match::Partial => return MORE,
            Match::No => {}
        }
        let open = format!("{}<", self.prefix);
        match starts_with(text, &open) {
            Match::Full(length) => self.open(text, length, out),
            Match::Partial => MORE,
            Match::No => BROKEN,
        }
    }

    /// An element whose name begins at `start`.
    fn open(&mut self, text: &str, start: usize, out: &mut String) -> Read {
        let rest = &text[start..];
        let Some(length) = rest.find('>') else {
            return if rest.len() <= MAX_NAME { MORE } else { BROKEN };
        };
        let name = rest[..length].trim();
        if name.is_empty()
            || name.starts_with('/')
            || length > MAX_NAME
            || self.stack.len() == MAX_DEPTH
        {
            return BROKEN;
        }
        let types = self.types(name);
        let (object, count) = match self.stack.last_mut() {
            Some(parent) => (parent.inside == Inside::Object, &mut parent.count),
            None => (true, &mut self.members),
        };
        match (*count, object) {
            (0, true) => out.push('{'),
            (0, false) => out.push('['),
            _ => out.push_str(", "),
        }
        *count += 1;
        if object {
            quote(name, out);
            out.push_str(": ");
        }
        self.stack.push(Element {
            name: name.to_owned(),
            inside: Inside::Value,
            count: 0,
        });
        self.state = State::First(types);
        Ok(start + length + 1)
    }

    /// The types that the schema gives to an element with this name in what is open.
    fn types(&self, name: &str) -> Types {
        let Some(root) = &self.schema else {
            return Types::NONE;
        };
        let mut path: Vec<Step> = Vec::new();
        let mut in_array = false;
        for element in &self.stack {
            path.push(step(in_array, &element.name));
            in_array = element.inside == Inside::Array;
        }
        path.push(step(in_array, name));
        schema::at(root, &path).map_or(Types::NONE, |schema| schema::types(schema, root))
    }

    /// Whether the element holds others, nothing, a text, or a value that is known at its end.
    fn first(&mut self, text: &str, types: Types, out: &mut String) -> Read {
        if types == Types::TEXT {
            out.push('"');
            self.state = State::Text;
            return Ok(0);
        }
        let end = starts_with(text, &self.end_tag());
        let open = starts_with(text, &format!("{}<", self.prefix));
        match (end, open) {
            (Match::Full(length), _) if !types.is_unknown() && !types.has(Types::TEXT) => {
                empty(types, out);
                self.stack.pop();
                self.state = State::Between;
                return Ok(length);
            }
            (Match::Full(_), _) => {}
            (Match::Partial, _) => return MORE,
            (Match::No, Match::Full(_)) => return self.inside(text, types),
            (Match::No, Match::Partial) => return MORE,
            (Match::No, Match::No) => {}
        }
        self.state = if types.is_unknown() {
            out.push('"');
            State::Text
        } else {
            State::Waiting { types, searched: 0 }
        };
        Ok(0)
    }

    /// The element holds others: they are items, or members with names.
    fn inside(&mut self, text: &str, types: Types) -> Read {
        let item = format!("{}<{}>", self.prefix, ITEM);
        let array = match (types.has(Types::ARRAY), types.has(Types::OBJECT)) {
            (true, false) => true,
            (false, true) => false,
            _ => match starts_with(text, &item) {
                Match::Full(_) => true,
                Match::Partial => return MORE,
                Match::No => false,
            },
        };
        if let Some(element) = self.stack.last_mut() {
            element.inside = if array { Inside::Array } else { Inside::Object };
        }
        self.state = State::Between;
        Ok(0)
    }

    fn text(&mut self, text: &str, out: &mut String) -> Read {
        let end = self.end_tag();
        match find(text, &end) {
            Ok(at) => {
                escape(&text[..at], out);
                out.push('"');
                self.end_value();
                Ok(at + end.len())
            }
            Err(sure) => {
                escape(&text[..sure], out);
                Err((sure, Outcome::More))
            }
        }
    }

    fn waiting(&mut self, text: &str, types: Types, searched: usize, out: &mut String) -> Read {
        let end = self.end_tag();
        if types.is_text_or_null() && !is_null_so_far(text, &end) {
            out.push('"');
            self.state = State::Text;
            return Ok(0);
        }
        match find(&text[searched..], &end) {
            Ok(at) => {
                schema::write(&text[..searched + at], types, out);
                self.end_value();
                Ok(searched + at + end.len())
            }
            Err(sure) => {
                let searched = searched + sure;
                self.state = State::Waiting { types, searched };
                MORE
            }
        }
    }

    fn end_value(&mut self) {
        self.stack.pop();
        self.state = State::Between;
    }
}

fn step(in_array: bool, name: &str) -> Step<'_> {
    if in_array {
        Step::Item
    } else {
        Step::Member(name)
    }
}

/// The value of an element without anything in it.
fn empty(types: Types, out: &mut String) {
    out.push_str(if types.has(Types::ARRAY) {
        "[]"
    } else if types.has(Types::OBJECT) {
        "{}"
    } else if types.has(Types::NULL) {
        "null"
    } else {
        "\"\""
    });
}
