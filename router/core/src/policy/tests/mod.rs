//! The rules of one step, and a simulation of many.

mod chunks;
mod decodes;
mod fairness;
mod joining;
mod loads;
mod random;
mod throughput;
mod whole;
mod windows;
mod world;

use std::time::Duration;

use super::*;
use crate::tenant::{Grant, Tenant};

/// When a case is planned.
const NOW: Duration = Duration::from_secs(100);

/// A queue that is only looked at.
struct Queued(Vec<Candidate>);

impl Waiting for Queued {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn candidate(&mut self, index: usize, _: &[Admission]) -> Option<Candidate> {
        self.0.get(index).copied()
    }
}

/// Everything that a step depends on.
#[derive(Debug, Clone)]
struct Case {
    running: Vec<Running>,
    queue: Vec<Candidate>,
    rows: usize,
    free: u32,
    freeing: u32,
    decodes_since_joining: u32,
    arrivals: Arrivals,
    limits: BatchLimits,
    cost: StepCost,
    lengths: OutputLengths,
    windows: Windows,
}

impl Case {
    /// An idle server with 1,000 free slots and 8 rows, which computes at most 100 tokens of prompts in a step.
    fn idle(queue: Vec<Candidate>) -> Self {
        Self {
            running: Vec::new(),
            queue,
            rows: 8,
            free: 1000,
            freeing: 0,
            decodes_since_joining: 0,
            arrivals: Arrivals::default(),
            limits: limits(),
            cost: StepCost::new(&[], &[], 0.0, 0.0, &[]),
            lengths: OutputLengths::default(),
            windows: Windows::default(),
        }
    }

    fn with(running: Vec<Running>, queue: Vec<Candidate>) -> Self {
        Self {
            running,
            ..Self::idle(queue)
        }
    }

    fn plan(&self) -> Plan {
        let situation = Situation {
            running: &self.running,
            rows: self.rows,
            free: self.free,
            freeing: self.freeing,
            capacity: self.limits.max_batch_total_tokens,
            encode: Duration::ZERO,
            decodes_since_joining: self.decodes_since_joining,
            now: NOW,
            arrivals: &self.arrivals,
            limits: &self.limits,
            cost: &self.cost,
            lengths: &self.lengths,
            windows: &self.windows,
        };
        plan(&situation, &mut Queued(self.queue.clone()))
    }

    /// Places in the queue of those that start, and how much of each is computed.
    fn admitted(&self) -> Vec<(usize, u32)> {
        let admit = self.plan().admit;
        admit.iter().map(|a| (a.index, a.count)).collect()
    }
}

fn limits() -> BatchLimits {
    BatchLimits {
        waiting_served_ratio: WaitingServedRatio::Fixed(0.3),
        max_waiting_tokens: 20,
        max_batch_prefill_tokens: 100,
        max_batch_total_tokens: 1000,
        max_batch_size: 8,
        max_queue_time: None,
        prefill_chunking: true,
        max_token_gap: None,
        prefix_caching: true,
    }
}

/// An H100 with a model of 8 billion parameters, about as it was measured.
fn card() -> StepCost {
    StepCost::new(
        &[1, 64, 128, 256, 512, 1024, 2048],
        &[4.2, 4.6, 5.2, 6.3, 10.8, 21.5, 43.0],
        0.0025,
        0.03,
        &[16, 32, 64, 128, 256, 512, 1024],
    )
}

fn tenant(name: &str, weight: u32) -> Tenant {
    let grant = Grant {
        weight,
        ..Grant::default()
    };
    Tenant::new(name, grant)
}

fn ms(time: f64) -> Duration {
    Duration::from_secs_f64(time / 1e3)
}

/// Came as the one of this number, and decodes its last token with a slot at hand.
fn decoding(number: u64) -> Running {
    Running {
        served: 0,
        order: Order {
            due: number as i64,
            sequence: number,
        },
        computed: 20,
        prompt_left: 0,
        decodes: true,
        lacks_slot: false,
        ahead: 0,
        drafts: DraftShare::default(),
        demand: Demand {
            slots: 20,
            generated: 10,
            left: 0,
        },
    }
}

/// The same without a slot for its next token.
fn short(number: u64) -> Running {
    Running {
        lacks_slot: true,
        ..decoding(number)
    }
}

/// Of its prompt 50 tokens are computed and `left` are not.
fn begun(number: u64, left: u32) -> Running {
    Running {
        computed: 50,
        prompt_left: left,
        decodes: false,
        ..decoding(number)
    }
}

fn many(count: u64) -> Vec<Running> {
    (0..count).map(decoding).collect()
}

/// A prompt of so many tokens, of which nothing is expected but what it takes now.
fn prompt(length: u32) -> Candidate {
    Candidate {
        length,
        left: 0,
        ..Candidate::default()
    }
}

fn prompts(lengths: &[u32]) -> Vec<Candidate> {
    lengths.iter().copied().map(prompt).collect()
}
