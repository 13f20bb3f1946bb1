//! The scheduling policy: what the next step computes, as a pure function of what runs, what waits, the pool and what
//! steps cost.
//!
//! Continuous batching with chunked prefill: running requests decode in every step, and prompts are prefilled in chunks
//! beside them (Sarathi-Serve, Agrawal et al., 2024), as many tokens as keep the step within the inter-token latency that
//! running streams are promised. With chunking switched off the rules are those of TGI's v2 batching loop: a step is
//! either whole prompts or a decode of all that runs.
//!
//! Requests start in the order of the queue: one that does not fit holds back those behind it, so none starves.
//! The queue takes tenants in turn, and those of one tenant by priority and age.
//! Admission expects outputs to become as long as earlier ones. Where that was wrong and slots run short, the
//! newest request of the lowest priority pauses, of the tenant that was served most where tenants wait for each other.

pub mod arrivals;
pub mod cost;
pub mod encode;
pub mod expectation;
mod joining;
pub mod peak;
mod prompts;
mod slots;
pub mod windows;

use std::time::Duration;

use self::arrivals::Arrivals;
use self::cost::StepCost;
use self::expectation::OutputLengths;
pub use self::joining::WaitingServedRatio;
use self::peak::Demand;
use self::windows::{DraftShare, Windows};

/// Where a request stands in the queue: lower runs first, and is the last to pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order {
    /// When it came, in milliseconds, moved by its priority.
    pub due: i64,
    /// Counts requests; breaks ties.
    pub sequence: u64,
}

/// Limits of batching.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchLimits {
    pub waiting_served_ratio: WaitingServedRatio,
    /// Tokens that running streams get at most before those that wait join them.
    pub max_waiting_tokens: u32,
    pub max_batch_prefill_tokens: u32,
    /// Slots of the pool.
    pub max_batch_total_tokens: u32,
    pub max_batch_size: u32,
    /// Requests that waited longer for their prefill fail.
    pub max_queue_time: Option<Duration>,
    /// Prompts are computed in chunks beside the decodes; else whole, in steps of their own.
    pub prefill_chunking: bool,
    /// Chunks are so small that a step with decodes takes no longer, where they can be.
    pub max_token_gap: Option<Duration>,
    /// What was computed stays for requests that begin with the same tokens.
    pub prefix_caching: bool,
}

/// What the policy must know of a request that owns a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Running {
    /// What its tenant was served, where others wait for it.
    pub served: u64,
    pub order: Order,
    /// Positions whose K and V are computed by the plans so far.
    pub computed: u32,
    /// Positions of its prompt that are not.
    pub prompt_left: u32,
    /// Its prompt is computed, and it may get one more token.
    pub decodes: bool,
    /// The position that its next decode computes has no slot.
    pub lacks_slot: bool,
    /// What it needs, and how it may grow.
    pub demand: Demand,
    /// Slots that it holds for tokens to come, beside those of its demand.
    pub ahead: u32,
    /// How good its drafts are, where the shards draft.
    pub drafts: DraftShare,
}

impl Running {
    /// Lower goes first and is the last to pause: requests of the tenant that was served least, and of one tenant in
    /// their order.
    fn place(&self) -> (u64, Order) {
        (self.served, self.order)
    }

    /// All its tokens are computed by the plans so far: it leaves when they have come.
    fn ends(&self) -> bool {
        !self.decodes && self.prompt_left == 0
    }

    /// Slots that are free when it leaves.
    fn own_slots(&self) -> u32 {
        self.demand.slots.saturating_add(self.ahead)
    }
}

/// What the policy must know of a queued request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Its ids: the prompt and, when it was paused, what it has generated.
    pub length: u32,
    /// Of these, from the first on, found in the prefix tree.
    pub cached: u32,
    /// Of the cached ones, those that nobody uses now: they count as free until it starts.
    pub unlocked: u32,
    /// Tokens that it has generated.
    pub generated: u32,
    /// The most that it may generate yet.
    pub left: u32,
    /// It waits for something, and holds nobody back: for a request that is just computing more of what both begin with,
    /// which saves that work, for one that gives up what it needs for its grammar, for its images or for its adapter.
    pub follows: bool,
}

impl Candidate {
    /// Tokens of its prompt that must be computed.
    fn prompt(&self) -> u32 {
        self.length.saturating_sub(self.cached)
    }

    /// Slots that it takes out of the free ones when it starts, the first token's among them.
    fn takes(&self) -> u32 {
        self.prompt()
            .saturating_add(self.unlocked)
            .saturating_add(1)
    }

    fn demand(&self) -> Demand {
        Demand {
            slots: self.takes(),
            generated: self.generated,
            left: self.left,
        }
    }
}

/// The queue, in turn.
pub trait Waiting {
    /// How many requests wait.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The request at `index`, where those of `admitted` start with the step being planned. Asked for in ascending
    /// order, each after the one before it was admitted or passed over.
    fn candidate(&mut self, index: usize, admitted: &[Admission]) -> Option<Candidate>;
}

/// All that a step depends on, beside the queue.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    pub running: &'a [Running],
    /// Rows that nobody owns.
    pub rows: usize,
    /// Free slots, cached ones that nobody uses among them.
    pub free: u32,
    /// Slots of requests that already pause and are free in one of the next steps.
    pub freeing: u32,
    /// Slots of the pool.
    pub capacity: u32,
    /// How long encoding images takes in this step, before everything else.
    pub encode: Duration,
    /// Tokens that the running streams got since requests last joined them.
    pub decodes_since_joining: u32,
    /// Of the clock that `arrivals` has its times from.
    pub now: Duration,
    pub arrivals: &'a Arrivals,
    pub limits: &'a BatchLimits,
    pub cost: &'a StepCost,
    pub lengths: &'a OutputLengths,
    /// How many tokens decodes may compute of each request.
    pub windows: &'a Windows,
}

/// A queued request that starts, with a chunk of its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// In the queue.
    pub index: usize,
    pub count: u32,
}

/// Why waiting prompts join while others decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// Enough requests wait.
    Backpressure,
    /// They have waited long enough.
    WaitExceeded,
}

/// What a step computes. Numbers are places in [`Situation::running`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    pub decode: Vec<usize>,
    /// The most tokens that each of `decode` gets; 0 where nobody decodes.
    pub width: u32,
    /// With the tokens of the chunk.
    pub chunks: Vec<(usize, u32)>,
    pub admit: Vec<Admission>,
    /// These leave, and wait in the queue for slots.
    pub pause: Vec<usize>,
    /// Set when requests are admitted while others decode.
    pub joined: Option<Joined>,
    /// How many had to wait for each one that decodes before they joined. `None` where nobody waits or decodes.
    pub ratio: Option<f32>,
}

impl Plan {
    /// Nothing is computed.
    pub fn is_idle(&self) -> bool {
        self.decode.is_empty() && self.chunks.is_empty() && self.admit.is_empty()
    }
}

/// The next step.
pub fn plan(situation: &Situation<'_>, queue: &mut impl Waiting) -> Plan {
    let mut plan = Plan::default();
    let free = slots::decide_decodes(situation, &mut plan);
    let room = if situation.limits.prefill_chunking {
        prompts::add_chunks(situation, queue, free, &mut plan)
    } else {
        prompts::add_whole_prompts(situation, queue, free, &mut plan)
    };
    if !plan.decode.is_empty() {
        plan.width = situation.windows.width(situation, &plan, &room);
    }
    plan
}

#[cfg(test)]
mod tests;
