//! The declaration of a format: what parser and grammar know about a family of models.

use std::borrow::Cow;

use crate::schema::Types;

/// A text of a declaration. White space in it may be missing or different in what a model writes.
pub(crate) type Text = Cow<'static, str>;

pub(crate) const fn text(text: &'static str) -> Text {
    Cow::Borrowed(text)
}

/// How a family of models writes reasoning, content and tool calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Format {
    pub(crate) name: Text,
    /// Further names, as the `--tool-call-parser` of vLLM has them.
    pub(crate) aliases: &'static [&'static str],
    pub(crate) reasoning: Option<Reasoning>,
    pub(crate) envelope: Option<Envelope>,
    pub(crate) layout: Layout,
    pub(crate) ids: Ids,
    /// A marker is a special token in vocabularies of this family.
    pub(crate) special: bool,
}

/// Reasoning stands between two markers, before everything else.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reasoning {
    pub open: Text,
    pub close: Text,
    /// A call that begins inside the reasoning ends it.
    pub ended_by_calls: bool,
    /// Other pairs of markers, of which the prompt begins one.
    pub others: &'static [(&'static str, &'static str)],
}

/// Markers around content, which are no part of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Envelope {
    pub open: &'static str,
    pub close: &'static str,
    /// May stand before content and before calls.
    pub before: &'static [&'static str],
    /// May stand at the end.
    pub after: &'static [&'static str],
    /// What begins a message where an answer has several.
    pub header: Option<Header>,
}

/// The beginning of a message: what follows `open` up to the next marker is no content. That of a call has its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Header {
    pub open: &'static str,
    /// Around the name of a call.
    pub name: [&'static str; 2],
    /// Ends a message with a call.
    pub close: &'static str,
}

/// Where content and calls stand.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there are a few dozen declarations"
)]
pub(crate) enum Layout {
    /// Content only.
    Plain,
    /// Content with sections of calls in it.
    Calls(Calls),
    /// Messages of gpt-oss, each with a header that names its channel and recipient.
    Channels,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Calls {
    /// The first is the one that the grammar writes.
    pub sections: Vec<Section>,
    /// Between two calls of a section.
    pub separator: Text,
    /// A section holds one call or more.
    pub several: bool,
    pub call: Call,
}

/// Text around one or more calls.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Section {
    pub open: Text,
    pub close: Text,
    /// It has no marker of its own, so it counts only at the start of the content and for tools that exist.
    pub at_start: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub head: Head,
    pub arguments: Arguments,
    /// Follows the arguments.
    pub close: Text,
}

/// How the name is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Head {
    /// `open`, the name, `end`, then the arguments.
    Named {
        open: Text,
        end: Text,
        form: NameForm,
    },
    /// A JSON object with the name under `name` and the arguments under one of `arguments`, of which the first is the
    /// one that the grammar writes. Where there is `number`, the count of the call comes first, under this key.
    Object {
        number: Option<&'static str>,
        name: &'static str,
        arguments: &'static [&'static str],
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameForm {
    Plain,
    /// `functions.name:0`, which is the id of the call.
    Numbered,
    /// An id may follow the name after this marker.
    WithId(&'static str),
    /// The name, or twice it with a dot between, as if it were its own namespace.
    Doubled,
    /// An id stands before the name and this marker.
    AfterId(&'static str),
    /// The count of the call, from 1, may follow the name after this marker.
    Counted(&'static str),
}

/// How the arguments are written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Arguments {
    /// As one JSON object, which is passed on byte by byte.
    Json,
    /// One element for each argument, with texts as they are and other values as JSON.
    Parameters(Parameters),
    /// As Python keyword arguments up to `)`.
    Keywords,
    /// As an object whose keys have no quotes and whose texts stand between two of these markers.
    Braces { quote: Text },
    /// As XML elements that are named as the arguments are, with this before each tag: objects as the elements of their
    /// members, arrays as elements with the name [`ITEM`].
    Elements { prefix: Text },
}

/// The element of an item in an array.
pub(crate) const ITEM: &str = "item";

/// An argument is `open` key `key_end` value `close`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameters {
    pub open: Text,
    pub key_end: Text,
    pub close: Text,
    /// One of these on either side of a value does not belong to it.
    pub padding: &'static str,
    /// Written between two arguments.
    pub separator: &'static str,
    /// What follows `key_end` and says the type of the value. Without it, the schema of the tool says so.
    pub attribute: Option<Attribute>,
    /// A value may stand between `<![CDATA[` and `]]>`.
    pub cdata: bool,
}

/// A word that says which type a value has, and what ends it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Attribute {
    /// The word for texts.
    pub text: &'static str,
    /// Those for other values.
    pub others: &'static [(&'static str, Types)],
    pub end: &'static str,
}

impl Attribute {
    /// The word for values of these types, and what ends it.
    pub(crate) fn written(self, types: Types) -> String {
        let mut others = self.others.iter();
        let word = match others.find(|(_, others)| types.has(*others)) {
            Some((word, _)) if !types.has(Types::TEXT) => word,
            _ => self.text,
        };
        format!("{word}{}", self.end)
    }
}

/// The form of call ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// `call_` and 24 characters.
    Call,
    /// 9 letters and digits.
    Nine,
    /// `functions.name:index`, written by the model.
    Numbered,
}

impl Format {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parser must be given the text of special tokens too.
    pub fn keeps_special_tokens(&self) -> bool {
        self.special
    }

    /// Whether an answer has several messages, each with a beginning that is no content.
    pub(crate) fn has_headers(&self) -> bool {
        self.envelope
            .is_some_and(|envelope| envelope.header.is_some())
    }

    /// Whether the parser can find tool calls.
    pub fn has_calls(&self) -> bool {
        self.layout != Layout::Plain
    }

    /// The markers of reasoning behind this prompt.
    pub(crate) fn reasoning_after(&self, prompt: &str) -> Option<Reasoning> {
        let reasoning = self.reasoning.clone()?;
        let other = reasoning
            .others
            .iter()
            .find(|(open, _)| ends_with(prompt, open));
        Some(match other {
            Some((open, close)) => Reasoning {
                open: text(open),
                close: text(close),
                ..reasoning
            },
            None => reasoning,
        })
    }

    /// Whether the parser can tell reasoning from content.
    pub fn has_reasoning(&self) -> bool {
        self.reasoning.is_some() || self.layout == Layout::Channels
    }
}

impl Call {
    /// A call as a JSON object, with the arguments under one of these keys.
    pub(crate) fn object(arguments: &'static [&'static str]) -> Self {
        Self {
            head: Head::Object {
                number: None,
                name: "name",
                arguments,
            },
            arguments: Arguments::Json,
            close: text("}"),
        }
    }

    /// Whether a name may be its own namespace.
    pub(crate) fn is_doubled(&self) -> bool {
        let doubled = NameForm::Doubled;
        matches!(&self.head, Head::Named { form, .. } if *form == doubled)
    }
}

impl Reasoning {
    /// Whether the prompt has begun it.
    pub(crate) fn is_begun(&self, prompt: &str) -> bool {
        ends_with(prompt, &self.open)
    }
}

impl Header {
    /// Whether the prompt has begun it.
    pub(crate) fn is_begun(&self, prompt: &str) -> bool {
        ends_with(prompt, self.open)
    }
}

/// Whether a prompt ends with this marker, but for white space.
fn ends_with(prompt: &str, marker: &str) -> bool {
    prompt.trim_end().ends_with(marker.trim_end())
}

impl Envelope {
    /// Whether content may follow this marker.
    pub(crate) fn opens(self, marker: &str) -> bool {
        self.open == marker || self.before.contains(&marker)
    }

    /// Every marker that is no part of content.
    pub(crate) fn markers(self) -> impl Iterator<Item = &'static str> {
        let around = [self.open, self.close].into_iter();
        let header = self.header.into_iter().map(|header| header.open);
        let others = self.before.iter().chain(self.after).copied();
        around.chain(header).chain(others)
    }
}

impl Calls {
    /// What stands before the name, apart from the brace of an object.
    pub(crate) fn before_name(&self) -> &str {
        match &self.call.head {
            Head::Named { open, .. } => open,
            Head::Object { .. } => "",
        }
    }

    /// Whether a call begins with its name alone.
    pub(crate) fn is_unmarked(&self) -> bool {
        let mut sections = self.sections.iter();
        sections.any(|section| section.at_start && self.trigger(section).is_empty())
    }

    /// The text by which a section is found: the first word of its opening, or of that of a call.
    pub(crate) fn trigger<'a>(&'a self, section: &'a Section) -> &'a str {
        let opening = match (section.open.is_empty(), &self.call.head) {
            (false, _) => section.open.as_ref(),
            (true, Head::Named { open, .. }) => open.as_ref(),
            (true, Head::Object { .. }) => "{",
        };
        let end = opening.find(char::is_whitespace).unwrap_or(opening.len());
        &opening[..end]
    }
}
