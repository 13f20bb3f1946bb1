//! Sections of calls.

use super::arguments::Reader;
use super::head::{self, Given, Head};
use super::{LONG, Outcome, OutputParser, State, Step};
use crate::delta::Delta;
use crate::format::{self, Calls, Layout};
use crate::text::{Match, starts_with};

impl OutputParser {
    /// At the opening of a section.
    pub(super) fn section(&mut self, section: usize, end: bool, deltas: &mut Vec<Delta>) -> Step {
        match self.begin(section, &|calls| &calls.sections[section].open) {
            Match::Full(head) => {
                self.enter(section, head, deltas);
                Step::Go
            }
            Match::Partial if !end => self.wait_for_head(),
            Match::No | Match::Partial => {
                // Not a call: its marker is content, and what follows is looked at again.
                let space = self.held.len() - self.held.trim_start().len();
                let trigger = self
                    .active_calls()
                    .map_or(0, |calls| calls.trigger(&calls.sections[section]).len());
                self.state = State::Content;
                self.deliver(space + trigger, deltas);
                // A call without marker begins at the start or not at all.
                self.fresh = false;
                Step::Go
            }
        }
    }

    /// Reads `before` and the head of a call at the start of what is held.
    fn begin(&self, section: usize, before: &dyn Fn(&Calls) -> &str) -> Match<Head> {
        let Layout::Calls(calls) = &self.format.layout else {
            return Match::No;
        };
        let start = match starts_with(&self.held, before(calls)) {
            Match::Full(start) => start,
            Match::Partial => return Match::Partial,
            Match::No => return Match::No,
        };
        let mut head = match head::read(&calls.call, &self.held[start..]) {
            Match::Full(head) => head,
            other => return other,
        };
        if calls.call.is_doubled() && self.tool(&head.name).is_none() {
            let half = head
                .name
                .split_once('.')
                .filter(|(space, name)| space == name);
            if let Some((_, name)) = half.filter(|(_, name)| self.tool(name).is_some()) {
                head.name = name.to_owned();
            }
        }
        head.end += start;
        let bare = calls.sections[section].at_start;
        if bare && (self.tool(&head.name).is_none() || matches!(head.given, Given::Nothing)) {
            return Match::No;
        }
        Match::Full(head)
    }

    /// A long head is read again only after it has grown by an eighth, so that one without end costs little.
    fn wait_for_head(&mut self) -> Step {
        if self.held.len() > LONG {
            self.retry_at = self.held.len() + self.held.len() / 8;
        }
        Step::Wait
    }

    fn enter(&mut self, section: usize, head: Head, deltas: &mut Vec<Delta>) {
        self.held.drain(..head.end);
        let reader = match &self.format.layout {
            Layout::Calls(calls) => Reader::new(&calls.call, self.tool(&head.name)),
            _ => Reader::json(),
        };
        self.start_call(head.name, head.id, deltas);
        self.state = match head.given {
            Given::Later => State::Arguments {
                section,
                reader: Box::new(reader),
            },
            given => {
                let fragment = match given {
                    Given::Before(arguments) => arguments,
                    _ => "{}".to_owned(),
                };
                self.call_arguments(fragment, deltas);
                self.end_call(deltas);
                State::Between { section }
            }
        };
    }

    pub(super) fn arguments(&mut self, end: bool, deltas: &mut Vec<Delta>) -> Step {
        let State::Arguments { section, reader } = &mut self.state else {
            return Step::Wait;
        };
        let section = *section;
        let mut fragment = String::new();
        let (used, outcome) = reader.read(&self.held, &mut fragment);
        self.held.drain(..used);
        self.call_arguments(fragment, deltas);
        match outcome {
            Outcome::More if end => {
                // What is left is the beginning of something that never became a part of the arguments.
                self.held.clear();
                Step::Wait
            }
            Outcome::More => Step::Wait,
            Outcome::Done => {
                self.end_call(deltas);
                self.state = State::Tail { section };
                Step::Go
            }
            Outcome::Broken => {
                self.state = State::Content;
                self.fresh = false;
                Step::Go
            }
        }
    }

    /// The end of a call, which may be missing.
    pub(super) fn tail(&mut self, section: usize, end: bool) -> Step {
        let Layout::Calls(calls) = &self.format.layout else {
            self.state = State::Content;
            return Step::Go;
        };
        let tail = match &calls.call.head {
            format::Head::Object { .. } => head::object_end(&self.held),
            format::Head::Named { .. } => starts_with(&self.held, &calls.call.close),
        };
        match tail {
            Match::Full(length) => {
                self.held.drain(..length);
            }
            Match::Partial if !end => return self.wait_for_head(),
            Match::Partial => self.held.clear(),
            Match::No => {}
        }
        self.state = State::Between { section };
        Step::Go
    }

    /// Another call, the end of the section, or neither.
    pub(super) fn between(&mut self, section: usize, end: bool, deltas: &mut Vec<Delta>) -> Step {
        let Layout::Calls(calls) = &self.format.layout else {
            self.state = State::Content;
            return Step::Go;
        };
        let close = starts_with(&self.held, &calls.sections[section].close);
        let next = if calls.several {
            self.begin(section, &|calls| &calls.separator)
        } else {
            Match::No
        };
        match (next, close) {
            (Match::Full(head), _) => {
                self.enter(section, head, deltas);
                return Step::Go;
            }
            (Match::Partial, _) | (_, Match::Partial) if !end => return self.wait_for_head(),
            (_, Match::Full(length)) => {
                self.held.drain(..length);
            }
            (_, Match::Partial) => self.held.clear(),
            (_, Match::No) => {}
        }
        self.state = State::Content;
        self.drop_space = true;
        self.in_header = self.format.has_headers();
        Step::Go
    }
}
