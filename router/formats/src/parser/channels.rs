//! Answers in messages, each with a header that names its channel and its recipient: the harmony format of gpt-oss.

use super::arguments::Reader;
use super::{Outcome, OutputParser, Step};
use crate::delta::Delta;
use crate::json::{escape, quote};
use crate::text::find_first;
use crate::tool::{CUSTOM_INPUT, ToolKind};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
/// What ends the body of a message.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", START, CHANNEL];
/// With what a header begins.
const HEADERS: [&str; 5] = [START, CHANNEL, CONSTRAIN, MESSAGE, "to="];
/// Headers are shorter; a longer one is content.
const MAX_HEADER: usize = 1024;

/// Where in a message the text is.
#[derive(Debug, Clone, Default)]
pub(super) enum Channels {
    /// In a header or between messages.
    #[default]
    Header,
    Reasoning,
    Content,
    /// In the body of a call whose arguments have not begun.
    Call {
        recipient: String,
    },
    Arguments(Box<Reader>),
    /// In the free text of a custom tool.
    Input,
    /// After the arguments, up to the end of the message.
    Rest,
}

impl OutputParser {
    /// Starts where the prompt leaves off: in a header, or in a message that it has begun.
    pub(super) fn begin_channels(&mut self, prompt: &str) {
        let message = prompt.rfind(START).map_or("", |at| &prompt[at..]);
        if ENDS[..3].iter().any(|end| message.contains(end)) {
            return;
        }
        match message.split_once(MESSAGE) {
            Some((header, body)) => {
                self.channels = self.body(header);
                self.held.push_str(body);
                // What the prompt says of the body is no part of the answer.
                self.run(false, &mut Vec::new());
            }
            None => self.held.push_str(message),
        }
    }

    pub(super) fn channels(&mut self, end: bool, deltas: &mut Vec<Delta>) -> Step {
        match &mut self.channels {
            Channels::Header => self.header(end),
            Channels::Reasoning | Channels::Content | Channels::Input | Channels::Rest => {
                self.body_text(end, deltas)
            }
            Channels::Call { recipient } => {
                let recipient = recipient.clone();
                self.begin_call(&recipient, end, deltas)
            }
            Channels::Arguments(reader) => {
                let mut fragment = String::new();
                let (used, outcome) = reader.read(&self.held, &mut fragment);
                self.held.drain(..used);
                self.call_arguments(fragment, deltas);
                match outcome {
                    Outcome::More => return Step::Wait,
                    Outcome::Done => {
                        self.end_call(deltas);
                        self.channels = Channels::Rest;
                    }
                    Outcome::Broken => self.channels = Channels::Content,
                }
                Step::Go
            }
        }
    }

    fn header(&mut self, end: bool) -> Step {
        let text = self.held.trim_start();
        let space = self.held.len() - text.len();
        if let Some((header, _)) = text.split_once(MESSAGE)
            && header.len() <= MAX_HEADER
            && HEADERS.iter().any(|start| text.starts_with(start))
        {
            self.channels = self.body(header);
            let used = space + header.len() + MESSAGE.len();
            self.held.drain(..used);
            return Step::Go;
        }
        let header = HEADERS
            .iter()
            .any(|start| text.starts_with(start) || start.starts_with(text));
        if header && text.len() <= MAX_HEADER + MESSAGE.len() {
            if end {
                // A header without its message says nothing.
                self.held.clear();
            }
            return Step::Wait;
        }
        // Its marker would be taken for the end of the content that follows.
        let marker = HEADERS.iter().find(|start| text.starts_with(**start));
        if let Some(marker) = marker {
            self.held.drain(..space + marker.len());
        }
        self.channels = Channels::Content;
        Step::Go
    }

    /// What the body of a message with this header is.
    fn body(&self, header: &str) -> Channels {
        let recipient = header
            .split_once("to=")
            .and_then(|(_, rest)| rest.split(|c: char| c.is_whitespace() || c == '<').next())
            .filter(|recipient| !recipient.is_empty());
        let channel = header
            .split_once(CHANNEL)
            .map_or("", |(_, rest)| rest.trim_start());
        match recipient {
            Some(recipient) => Channels::Call {
                recipient: recipient
                    .strip_prefix("functions.")
                    .unwrap_or(recipient)
                    .to_owned(),
            },
            None if channel.starts_with("analysis") && self.options.separate_reasoning => {
                Channels::Reasoning
            }
            None => Channels::Content,
        }
    }

    /// Text up to the end of the message.
    fn body_text(&mut self, end: bool, deltas: &mut Vec<Delta>) -> Step {
        let close = find_first(&self.held, &ENDS);
        let sure = match close {
            Ok((at, _)) => at,
            Err(_) if end => self.held.len(),
            Err(sure) => sure,
        };
        let text: String = self.held.drain(..sure).collect();
        if !text.is_empty() {
            match &self.channels {
                Channels::Reasoning => deltas.push(Delta::Reasoning(text)),
                Channels::Content => deltas.push(Delta::Content(text)),
                Channels::Input => {
                    let mut fragment = String::new();
                    escape(&text, &mut fragment);
                    self.call_arguments(fragment, deltas);
                }
                _ => {}
            }
        }
        let Ok((_, marker)) = close else {
            return Step::Wait;
        };
        if matches!(self.channels, Channels::Input) {
            self.call_arguments("\"}".to_owned(), deltas);
            self.end_call(deltas);
        }
        // The next header begins with these two.
        if marker != START && marker != CHANNEL {
            self.held.drain(..marker.len());
        }
        self.channels = Channels::Header;
        Step::Go
    }

    /// At the body of a call: it counts once its arguments begin.
    fn begin_call(&mut self, recipient: &str, end: bool, deltas: &mut Vec<Delta>) -> Step {
        let space = self.held.len() - self.held.trim_start().len();
        let custom = self
            .tool(recipient)
            .is_some_and(|tool| matches!(tool.kind, ToolKind::Custom { .. }));
        if custom {
            self.start_call(recipient.to_owned(), None, deltas);
            let mut fragment = "{".to_owned();
            quote(CUSTOM_INPUT, &mut fragment);
            fragment.push_str(": \"");
            self.call_arguments(fragment, deltas);
            self.channels = Channels::Input;
        } else if self.held[space..].starts_with('{') {
            self.held.drain(..space);
            self.start_call(recipient.to_owned(), None, deltas);
            self.channels = Channels::Arguments(Box::new(Reader::json()));
        } else if space < self.held.len() || end {
            self.channels = Channels::Content;
        } else {
            return Step::Wait;
        }
        Step::Go
    }
}
