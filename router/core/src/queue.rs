//! Requests that wait for their prefill: first in, first out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

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

/// One generation of a queued request. Its client has gone, or wants no more tokens, when the receiver of `events` is
/// closed.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) id: u64,
    pub(crate) seed: u64,
    pub(crate) events: UnboundedSender<Event>,
}

/// A queued request with its samples, at least one.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) request: ValidRequest,
    pub(crate) samples: Vec<Sample>,
    pub(crate) queued: Instant,
}

impl Entry {
    pub(crate) fn candidate(&self) -> Candidate {
        candidate(&self.request, self.samples.len())
    }
}

pub(crate) fn candidate(request: &ValidRequest, samples: usize) -> Candidate {
    Candidate {
        // The input was validated against a limit of 32 bits.
        input_length: u32::try_from(request.input_ids.len()).unwrap_or(u32::MAX),
        max_new_tokens: request.stopping.max_new_tokens,
        samples: u32::try_from(samples).unwrap_or(u32::MAX),
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl Queue {
    /// One sample for each of `events`, with the seeds that [`ValidRequest::seed`] gives them.
    pub(crate) fn push(&mut self, request: ValidRequest, events: Vec<UnboundedSender<Event>>) {
        let first = self.next_id;
        self.next_id += events.len() as u64;
        let sample = |(index, events): (u64, _)| Sample {
            id: first + index,
            seed: request.seed(index),
            events,
        };
        let samples = (0..).zip(events).map(sample).collect();
        self.entries.push_back(Entry {
            request,
            samples,
            queued: Instant::now(),
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Drops the samples whose client has gone, and the entries that have none left. They are counted where the
    /// client's end is dropped.
    pub(crate) fn drop_gone(&mut self) {
        self.entries.retain_mut(|entry| {
            entry.samples.retain(|sample| !sample.events.is_closed());
            !entry.samples.is_empty()
        });
    }

    /// Ends the requests that have waited longer than `limit`. The oldest come first.
    pub(crate) fn fail_late(&mut self, limit: Duration) {
        let late = self
            .entries
            .partition_point(|entry| entry.queued.elapsed() > limit);
        for entry in self.entries.drain(..late) {
            for sample in entry.samples {
                // The client may have gone.
                let _ = sample
                    .events
                    .send(Event::Failed(InferError::QueueTime(limit)));
            }
        }
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
