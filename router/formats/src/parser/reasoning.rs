//! Reasoning before everything else.

use super::{OutputParser, State, Step};
use crate::delta::Delta;
use crate::format::Reasoning;
use crate::text::{Match, find, starts_with};

/// Where the reasoning ends in what is held.
enum End {
    /// Before this byte; the marker has this length, which is 0 if a call ends the reasoning.
    At(usize, usize),
    /// Not before this byte.
    After(usize),
}

impl OutputParser {
    /// Decides whether the text begins with reasoning, once that can be known.
    pub(super) fn start(&mut self, end: bool) -> Step {
        let Some(reasoning) = &self.reasoning else {
            self.state = State::Content;
            return Step::Go;
        };
        let open = starts_with(&self.held, &reasoning.open);
        // Some models close a reasoning that they have not begun.
        let close = starts_with(&self.held, &reasoning.close);
        let (state, marker) = match (open, close) {
            (Match::Full(length), _) => (State::Reasoning, length),
            (_, Match::Full(length)) => (State::Content, length),
            (Match::Partial, _) | (_, Match::Partial) if !end => return Step::Wait,
            // White space before it is content like the rest.
            _ => (State::Content, 0),
        };
        if marker > 0 {
            self.in_header = matches!(state, State::Content) && self.format.has_headers();
        }
        self.state = state;
        if marker > 0 && self.options.separate_reasoning {
            self.held.drain(..marker);
            self.drop_space = true;
        }
        Step::Go
    }

    /// Passes on reasoning up to the closing marker, or to where it, with white space before, may have begun.
    pub(super) fn reasoning(&mut self, end: bool, deltas: &mut Vec<Delta>) -> Step {
        let Some(reasoning) = self.reasoning.clone() else {
            self.state = State::Content;
            return Step::Go;
        };
        if !self.options.separate_reasoning {
            return self.unseparated(&reasoning, end, deltas);
        }
        if self.drop_space {
            let space = self.held.len() - self.held.trim_start().len();
            self.held.drain(..space);
            self.drop_space = self.held.is_empty();
        }
        match self.reasoning_end(&reasoning) {
            End::At(at, marker) => {
                let length = self.held[..at].trim_end().len();
                self.reason(length, deltas);
                self.held.drain(..at - length + marker);
                self.state = State::Content;
                self.in_header = self.format.has_headers();
                self.drop_space = true;
                Step::Go
            }
            End::After(sure) => {
                let sure = if end { self.held.len() } else { sure };
                let length = self.held[..sure].trim_end().len();
                self.reason(length, deltas);
                if end {
                    self.held.clear();
                }
                Step::Wait
            }
        }
    }

    fn reasoning_end(&self, reasoning: &Reasoning) -> End {
        let close = find(&self.held, reasoning.close.trim());
        let mut earliest = close;
        if let (true, Some(calls)) = (reasoning.ended_by_calls, self.active_calls()) {
            for section in calls.sections.iter().filter(|section| !section.at_start) {
                earliest = match (earliest, find(&self.held, calls.trigger(section))) {
                    (Ok(one), Ok(other)) => Ok(one.min(other)),
                    (Ok(at), Err(sure)) | (Err(sure), Ok(at)) if at < sure => Ok(at),
                    (Ok(_), Err(sure)) | (Err(sure), Ok(_)) => Err(sure),
                    (Err(one), Err(other)) => Err(one.min(other)),
                };
            }
        }
        match earliest {
            Ok(at) if close == Ok(at) => End::At(at, reasoning.close.trim().len()),
            Ok(at) => End::At(at, 0),
            Err(sure) => End::After(sure),
        }
    }

    fn reason(&mut self, length: usize, deltas: &mut Vec<Delta>) {
        if length > 0 {
            deltas.push(Delta::Reasoning(self.held.drain(..length).collect()));
        }
    }

    /// Reasoning as content, with its markers and white space.
    fn unseparated(&mut self, reasoning: &Reasoning, end: bool, deltas: &mut Vec<Delta>) -> Step {
        let close = reasoning.close.trim();
        let (length, step) = match find(&self.held, close) {
            Ok(at) => (at + close.len(), Step::Go),
            Err(_) if end => (self.held.len(), Step::Wait),
            Err(sure) => (sure, Step::Wait),
        };
        self.deliver(length, deltas);
        if step == Step::Go {
            self.state = State::Content;
            self.fresh = true;
        }
        step
    }
}
