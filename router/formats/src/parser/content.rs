//! Content, and where calls begin in it.

use super::{OutputParser, State, Step};
use crate::delta::Delta;
use crate::text::Match;

/// Beginnings of messages are shorter.
const MAX_HEADER: usize = 512;

impl OutputParser {
    /// Passes on content up to a marker of calls, or to where one, with white space before, may have begun.
    pub(super) fn content(&mut self, end: bool, deltas: &mut Vec<Delta>) -> Step {
        if self.drop_space {
            let space = self.held.len() - self.held.trim_start().len();
            self.held.drain(..space);
            self.drop_space = self.held.is_empty();
        }
        if self.held.is_empty() {
            return Step::Wait;
        }
        if self.active_calls().is_none() && self.format.envelope.is_none() {
            self.deliver(self.held.len(), deltas);
            return Step::Wait;
        }
        if self.in_header {
            return self.message_header(end);
        }
        match self.find_marker() {
            (at, Match::Full(Marker::Section(section))) => {
                self.deliver(self.held[..at].trim_end().len(), deltas);
                self.state = State::Section(section);
                Step::Go
            }
            (at, Match::Full(Marker::Envelope(length))) => {
                let content = self.held[..at].trim_end().len();
                self.deliver(content, deltas);
                let marker: String = self.held.drain(..at - content + length).collect();
                let envelope = self.format.envelope;
                let opens = envelope.is_some_and(|envelope| envelope.opens(marker.trim_start()));
                self.in_header = self.format.has_headers() && !opens;
                self.drop_space = true;
                Step::Go
            }
            (_, _) if end => {
                self.deliver(self.held.len(), deltas);
                Step::Wait
            }
            (at, _) => {
                self.deliver(self.held[..at].trim_end().len(), deltas);
                Step::Wait
            }
        }
    }

    /// Drops the beginning of a message, up to the marker that says what follows. What has none is content.
    fn message_header(&mut self, end: bool) -> Step {
        match self.find_marker() {
            (at, Match::Full(_)) => {
                self.held.drain(..at);
            }
            _ if !end && self.held.len() <= MAX_HEADER => return Step::Wait,
            _ => {}
        }
        self.in_header = false;
        Step::Go
    }

    /// The first place where a marker is or may be, and which; else the end of what is held.
    fn find_marker(&self) -> (usize, Match<Marker>) {
        let bytes = self.held.as_bytes();
        for (at, _) in bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| self.triggers[usize::from(**byte)])
        {
            // Markers begin with a character that is not the inside of another one.
            let Some(rest) = self.held.get(at..) else {
                continue;
            };
            let first = self.fresh && self.held[..at].trim_start().is_empty();
            match self.marker(rest, first) {
                Match::No => {}
                found => return (at, found),
            }
        }
        (self.held.len(), Match::No)
    }

    /// The marker at the start of `rest`, with nothing before it or not.
    fn marker(&self, rest: &str, first: bool) -> Match<Marker> {
        let sections = self.active_calls().into_iter().flat_map(|calls| {
            let sections = calls.sections.iter().enumerate();
            let looked_for = sections.filter(move |(_, section)| first || !section.at_start);
            looked_for.flat_map(|(number, section)| {
                let triggers = self.triggers_of(calls, section);
                triggers.map(move |trigger| (trigger, Marker::Section(number)))
            })
        });
        let envelope = self
            .envelope_markers()
            .map(|marker| (marker, Marker::Envelope(marker.len())));
        let mut partial = false;
        for (text, marker) in sections
            .chain(envelope)
            .filter(|(text, _)| !text.is_empty())
        {
            if rest.starts_with(text) {
                return Match::Full(marker);
            }
            partial |= text.starts_with(rest);
        }
        if partial { Match::Partial } else { Match::No }
    }
}

/// What is found in content.
#[derive(Debug, Clone, Copy)]
enum Marker {
    /// A section of this number may begin.
    Section(usize),
    /// A marker of this length that is no part of content.
    Envelope(usize),
}
