//! Requests that wait for their prefill: first in, first out.

use std::collections::VecDeque;
use std::time::Instant;

use text_generation_client::types::Generation;
use tokio::sync::mpsc::UnboundedSender;

use crate::error::InferError;
use crate::policy::Candidate;
use crate::validation::ValidRequest;

/// What the batcher tells the task of a request. A sender that is dropped without a finished generation or `Failed`
/// means that the batcher is gone.
#[derive(Debug)]
pub(crate) enum Event {
    /// The prefill that holds the request was sent at this instant.
    Started(Instant),
    /// Its tokens of one step.
    Step(Generation),
    /// Nothing follows.
    Failed(InferError),
}

/// A queued request. Its client has gone, or wants no more tokens, when the receiver of `events` is closed.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) request: ValidRequest,
    pub(crate) events: UnboundedSender<Event>,
}

impl Entry {
    fn candidate(&self) -> Candidate {
        candidate(&self.request)
    }
}

pub(crate) fn candidate(request: &ValidRequest) -> Candidate {
    Candidate {
        // The input was validated against a limit of 32 bits.
        input_length: u32::try_from(request.input_ids.len()).unwrap_or(u32::MAX),
        max_new_tokens: request.stopping.max_new_tokens,
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, request: ValidRequest, events: UnboundedSender<Event>) {
        let id = self.next_id;
        self.next_id += 1;
        self.entries.push_back(Entry {
            id,
            request,
            events,
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Drops the entries whose client has gone. They are counted where the client's end is dropped.
    pub(crate) fn drop_gone(&mut self) {
        self.entries.retain(|entry| !entry.events.is_closed());
    }

    pub(crate) fn candidates(&self) -> impl Iterator<Item = Candidate> + Clone + '_ {
        self.entries.iter().map(Entry::candidate)
    }

    /// Takes the first `count` entries.
    pub(crate) fn take(&mut self, count: usize) -> Vec<Entry> {
        let count = count.min(self.entries.len());
        self.entries.drain(..count).collect()
    }
}
