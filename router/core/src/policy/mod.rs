//! What the batcher does next, as a pure function.
//!
//! The rules are those of TGI's v2 batching loop: running requests go on decoding, and are interrupted for a prefill
//! when enough requests wait (`waiting_served_ratio`) or when they have waited long enough (`max_waiting_tokens`).
//! First in, first out: a request that does not fit holds back those behind it, so none starves.

pub mod cost;
pub mod expectation;
pub mod peak;

use crate::budget::{self, Demand};
use crate::types::BatchLimits;

/// What the policy must know of a queued request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub input_length: u32,
    pub max_new_tokens: u32,
    /// Generations of this prompt, which run together: one row each.
    pub samples: u32,
}

impl Candidate {
    /// One for each sample; the prompt counts once.
    pub fn demands(self) -> impl Iterator<Item = Demand> + Clone {
        Demand::group(self.input_length, self.max_new_tokens, self.samples)
    }

    /// The most slots it will ever use.
    pub fn limit(self) -> u64 {
        self.demands().map(|demand| u64::from(demand.limit())).sum()
    }

    /// Whether it can run at all, alone on an idle server. A request that cannot must not be queued.
    pub fn fits_alone(self, limits: &BatchLimits) -> bool {
        self.input_length <= limits.max_batch_prefill_tokens
            && self.samples <= limits.max_batch_size
            && self.limit() <= u64::from(limits.max_batch_total_tokens)
    }
}

/// Decode calls since the last prefill. Where shards run ahead, the first of them may bring no token of the requests
/// that were prefilled, but it does bring one of those that the prefill interrupted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    pub steps: u32,
}

impl Progress {
    /// As TGI counts its waiting tokens: 1 after a prefill, one more after each decode.
    fn waiting_tokens(self) -> u32 {
        self.steps.saturating_add(1)
    }
}

/// Why running requests are interrupted for a prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concat {
    /// Enough requests wait.
    Backpressure,
    /// They have waited long enough.
    WaitExceeded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Prefill the first `count` (> 0) queued requests; `concat` is set when others are running.
    Prefill {
        count: usize,
        concat: Option<Concat>,
    },
    /// One decode step of all that runs.
    Decode,
    /// Nothing runs and nothing is queued.
    Wait,
}

/// `queue` is in order of arrival; `running` holds the requests that own a row.
///
/// A prefill is always followed by a decode of the requests that it interrupted.
pub fn next_action<Q>(
    queue: Q,
    running: &[Demand],
    progress: Progress,
    limits: &BatchLimits,
) -> Action
where
    Q: Iterator<Item = Candidate> + Clone,
{
    if running.is_empty() {
        return match admissible(queue, running, limits) {
            0 => Action::Wait,
            count => Action::Prefill {
                count,
                concat: None,
            },
        };
    }
    if progress.steps == 0 {
        return Action::Decode;
    }
    let (min_size, concat) = if progress.waiting_tokens() >= limits.max_waiting_tokens {
        (1, Concat::WaitExceeded)
    } else {
        // The conversion saturates; a negative ratio counts as 0.
        let wanted = (running.len() as f32 * limits.waiting_served_ratio).floor() as usize;
        (wanted.max(1), Concat::Backpressure)
    };
    // Each has at least one sample, so more of them than `min_size` need not be looked at.
    let waiting: usize = queue
        .clone()
        .take(min_size)
        .map(|candidate| candidate.samples as usize)
        .sum();
    if waiting < min_size {
        return Action::Decode;
    }
    // How many wait decides, not how many fit into one prefill: else long prompts, of which few fit, would wait for
    // `max_waiting_tokens` again and again while rows stand empty.
    let count = admissible(queue, running, limits);
    if count == 0 {
        return Action::Decode;
    }
    Action::Prefill {
        count,
        concat: Some(concat),
    }
}

/// How many requests from the head of the queue may join: by rows, by the tokens of one prefill, and by slots.
fn admissible<Q>(queue: Q, running: &[Demand], limits: &BatchLimits) -> usize
where
    Q: Iterator<Item = Candidate>,
{
    let rows = (limits.max_batch_size as usize).saturating_sub(running.len());
    let mut prefill_tokens = 0u64;
    let mut demands: Vec<Demand> = Vec::new();
    // `demands[..ends[n]]` are those of the first `n` requests.
    let mut ends = vec![0];
    for candidate in queue {
        prefill_tokens += u64::from(candidate.input_length);
        if prefill_tokens > u64::from(limits.max_batch_prefill_tokens)
            || demands.len() + candidate.samples as usize > rows
        {
            break;
        }
        demands.extend(candidate.demands());
        ends.push(demands.len());
    }
    let fits = |count: usize| {
        let all = running.iter().chain(&demands[..ends[count]]).copied();
        budget::fits(all, limits.max_batch_total_tokens)
    };
    // One more request never lowers the peak, so the answers are true up to some count and false from there on.
    let (mut most, mut refused) = (0, ends.len());
    let mut next = ends.len() - 1;
    while most + 1 < refused {
        if fits(next) {
            most = next;
        } else {
            refused = next;
        }
        next = most.midpoint(refused);
    }
    most
}

#[cfg(test)]
mod tests;
