//! What the batcher does next, as a pure function.
//!
//! The rules are those of TGI's v2 batching loop: running requests go on decoding, and are interrupted for a prefill
//! when enough requests wait (`waiting_served_ratio`) or when they have waited long enough (`max_waiting_tokens`).
//! First in, first out: a request that does not fit holds back those behind it, so none starves.

use crate::budget::{self, Demand};
use crate::types::BatchLimits;

/// What the policy must know of a queued request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub input_length: u32,
    pub max_new_tokens: u32,
}

impl Candidate {
    fn demand(self) -> Demand {
        Demand::admitted(self.input_length, self.max_new_tokens)
    }

    /// Whether it can run at all, alone on an idle server. A request that cannot must not be queued.
    pub fn fits_alone(self, limits: &BatchLimits) -> bool {
        self.input_length <= limits.max_batch_prefill_tokens
            && self.demand().limit() <= limits.max_batch_total_tokens
    }
}

/// Decode steps since the last prefill.
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
    if queue.clone().take(min_size).count() < min_size {
        return Action::Decode;
    }
    let count = admissible(queue, running, limits);
    if count < min_size {
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
    let candidates: Vec<Demand> = queue
        .take(rows)
        .take_while(|candidate| {
            prefill_tokens += u64::from(candidate.input_length);
            prefill_tokens <= u64::from(limits.max_batch_prefill_tokens)
        })
        .map(Candidate::demand)
        .collect();
    let fits = |count: usize| {
        let all = running.iter().chain(candidates.iter().take(count)).copied();
        budget::fits(all, limits.max_batch_total_tokens)
    };
    // One more request never lowers the peak, so the answers are true up to some count and false from there on.
    let (mut most, mut refused) = (0, candidates.len() + 1);
    let mut next = candidates.len();
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
