//! Content, and where calls begin in it.

use super::{OutputParser, State, Step};
use crate::delta::Delta;
use crate::text::Match;

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
        if self.active_calls().is_none() {
            self.deliver(self.held.len(), deltas);
            return Step::Wait;
        }
        match self.find_section() {
            (at, Match::Full(section)) => {
                self.deliver(self.held[..at].trim_end().len(), deltas);
                self.state = State::Section(section);
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

    /// The first place where a section begins or may begin, and its number; else the end of what is held.
    fn find_section(&self) -> (usize, Match<usize>) {
        let Some(calls) = self.active_calls() else {
            return (self.held.len(), Match::No);
        };
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
            let mut partial = false;
            for (number, section) in calls.sections.iter().enumerate() {
                let trigger = calls.trigger(section);
                if trigger.is_empty() || (section.at_start && !first) {
                    continue;
                }
                if rest.starts_with(trigger) {
                    return (at, Match::Full(number));
                }
                partial |= trigger.starts_with(rest);
            }
            if partial {
                return (at, Match::Partial);
            }
        }
        (self.held.len(), Match::No)
    }
}
