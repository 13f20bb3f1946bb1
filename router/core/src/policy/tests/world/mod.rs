//! The batcher in model time: the real policy and the real pool, two plans deep, and a clock that moves by what steps
//! are predicted to take.

mod checks;
mod queue;
mod row;
mod step;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::*;
use crate::kv_pool::{KvPool, RootKey};
use crate::queue::turns::Turns;
use crate::tenant::Tenant;
use queue::Candidates;
pub(super) use queue::{Entry, Request};
use row::Row;

/// Plans that are on their way.
const DEPTH: usize = 2;

/// Slots given beyond need while the pool has plenty. Those of all rows are together at most this part of the pool, as
/// the forecast cannot tell them from what is in use.
const RUN: u32 = 64;
const PLENTY: u32 = 8;

/// One step of priority is worth as much as so many milliseconds of waiting.
pub(super) const PRIORITY_STEP_MS: i64 = 10_000;

/// What admission knows of how long outputs get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knowledge {
    Expectation,
    /// Every request counts with `max_new_tokens`.
    Reservation,
    /// Every length is known.
    Oracle,
    /// Every output is believed to end at once, so slots keep running short.
    Careless,
}

#[derive(Debug, Default)]
pub(super) struct Report {
    /// While requests wait, from when one was first refused: model time, tokens that came, and slots in use summed over time.
    pub(super) busy_ms: f64,
    pub(super) busy_tokens: u64,
    pub(super) busy_slots_ms: f64,
    pub(super) pauses: u32,
    pub(super) cancelled: u32,
    /// Of those that generated all they wanted: priority, and milliseconds until they started.
    pub(super) waits: Vec<(i64, f64)>,
    /// Milliseconds of each token: first ones since their request came, others since the one before.
    pub(super) first_ms: Vec<f64>,
    pub(super) gaps_ms: Vec<f64>,
    /// Until everything had ended.
    pub(super) took_ms: f64,
    /// Most steps in which one request let others go first, because it follows somebody.
    pub(super) most_followed: u32,
    /// Steps in which somebody decoded beside chunks.
    pub(super) mixed_steps: u32,
    /// What was computed for each tenant while requests of several waited.
    pub(super) contended: HashMap<Option<Arc<str>>, u64>,
    /// Of each that ended: its tenant, and when.
    pub(super) ended: Vec<(Tenant, f64)>,
}

impl Report {
    fn charge(&mut self, tenant: &Tenant, cost: u64) {
        let name = tenant.name().cloned();
        *self.contended.entry(name).or_default() += cost;
    }
}

struct Flight {
    number: u64,
    /// Rows that get a token.
    rows: Vec<usize>,
    took_ms: f64,
    /// Requests waited when it was sent, and one had been refused.
    busy: bool,
}

pub(super) struct World {
    limits: BatchLimits,
    cost: StepCost,
    knowledge: Knowledge,
    lengths: OutputLengths,
    arrivals: VecDeque<Request>,
    queue: BTreeMap<Order, Entry>,
    turns: Turns,
    pool: KvPool,
    rows: Vec<Option<Row>>,
    in_flight: VecDeque<Flight>,
    clock_ms: f64,
    next_number: u64,
    next_sequence: u64,
    decodes_since_joining: u32,
    known: Arrivals,
    /// Steps in a row that let nobody start while the head of the queue could have, and somebody decoded.
    head_waits: u32,
    /// The pool was too small for somebody.
    refused: bool,
    report: Report,
}

impl World {
    /// `arrivals` by time.
    pub(super) fn new(limits: BatchLimits, knowledge: Knowledge, arrivals: Vec<Request>) -> Self {
        let mut lengths = OutputLengths::default();
        if knowledge != Knowledge::Expectation {
            let longest = arrivals.iter().map(|request| request.max_new_tokens).max();
            (0..1064).for_each(|_| lengths.observe_cut(longest.unwrap_or(1)));
            lengths.refresh([]);
        }
        Self {
            limits,
            cost: card(),
            knowledge,
            lengths,
            arrivals: arrivals.into(),
            queue: BTreeMap::new(),
            turns: Turns::default(),
            pool: KvPool::new(limits.max_batch_total_tokens, limits.prefix_caching),
            rows: (0..limits.max_batch_size).map(|_| None).collect(),
            in_flight: VecDeque::new(),
            clock_ms: 0.0,
            next_number: 0,
            next_sequence: 0,
            decodes_since_joining: 0,
            known: Arrivals::default(),
            head_waits: 0,
            refused: false,
            report: Report::default(),
        }
    }

    /// Until everything has ended.
    pub(super) fn run(mut self) -> Report {
        loop {
            self.arrive();
            self.send_plans();
            if let Some(flight) = self.in_flight.pop_front() {
                self.answered(flight);
            } else {
                assert!(self.queue.is_empty(), "an idle server lets requests wait");
                let Some(next) = self.arrivals.front() else {
                    break;
                };
                self.clock_ms = next.at_ms;
            }
        }
        assert!(self.rows.iter().all(Option::is_none));
        assert_eq!(self.pool.used(), 0, "slots leaked");
        self.report.took_ms = self.clock_ms;
        self.report
    }

    fn arrive(&mut self) {
        while let Some(request) = self
            .arrivals
            .pop_front_if(|next| next.at_ms <= self.clock_ms)
        {
            let order = Order {
                due: request.at_ms as i64 + request.priority * PRIORITY_STEP_MS,
                sequence: self.next_sequence,
            };
            self.next_sequence += 1;
            self.wait(Entry::new(order, request));
        }
        let (now, before) = (self.clock_ms, self.queue.len());
        let turns = &mut self.turns;
        self.queue.retain(|&order, entry| {
            let stays = !entry.is_unwanted(now);
            if !stays {
                turns.leave(&entry.request.tenant, order);
            }
            stays
        });
        self.report.cancelled += (before - self.queue.len()) as u32;
    }

    fn wait(&mut self, entry: Entry) {
        self.turns.join(&entry.request.tenant, entry.order);
        self.queue.insert(entry.order, entry);
    }

    fn send_plans(&mut self) {
        while self.in_flight.len() < DEPTH {
            self.release_leaving();
            if !self.next_plan() {
                if self.in_flight.is_empty() && self.rows.iter().flatten().any(Row::has_paused) {
                    continue;
                }
                return;
            }
        }
    }

    fn release_leaving(&mut self) {
        for index in 0..self.rows.len() {
            let now = self.clock_ms;
            let gone = |row: &mut Row| row.entry.is_unwanted(now) || row.has_paused();
            let Some(row) = self.rows[index].take_if(gone) else {
                continue;
            };
            let entry = row.leave(&mut self.pool);
            if entry.is_unwanted(now) {
                self.lengths.observe_cut(entry.generated);
                self.report.cancelled += 1;
            } else {
                self.wait(entry);
            }
        }
    }

    /// Plans a step, and sends it where it computes something.
    fn next_plan(&mut self) -> bool {
        let generated = self.rows.iter().flatten().map(|row| row.entry.generated);
        self.lengths.refresh(generated);
        let owned = self.rows.iter().enumerate();
        let owned = owned.filter_map(|(index, row)| Some((index, row.as_ref()?)));
        let (places, running): (Vec<usize>, Vec<Running>) = owned
            .filter(|(_, row)| !row.pausing)
            .map(|(index, row)| {
                let served = self.turns.served(&row.entry.request.tenant);
                let running = row.for_policy(self.knowledge);
                (index, Running { served, ..running })
            })
            .unzip();
        let pausing = self.rows.iter().flatten().filter(|row| row.pausing);
        let free_rows = self.rows.iter().filter(|row| row.is_none()).count();
        let ready = self.queue.len().min(free_rows);
        self.known.ready(ms(self.clock_ms), ready);
        let windows = Windows::default();
        let situation = Situation {
            running: &running,
            rows: free_rows,
            free: self.pool.free(),
            freeing: pausing.map(Row::own_slots).sum(),
            capacity: self.pool.capacity(),
            encode: Duration::ZERO,
            decodes_since_joining: self.decodes_since_joining,
            now: ms(self.clock_ms),
            arrivals: &self.known,
            limits: &self.limits,
            cost: &self.cost,
            lengths: &self.lengths,
            windows: &windows,
        };
        let mut candidates = Candidates::of(self);
        let decision = plan(&situation, &mut candidates);
        let visited = candidates.visited();
        let starts = !decision.admit.is_empty();
        let could_start = !starts && self.could_start(situation);
        self.check_joining(&decision, could_start);
        for &index in &decision.pause {
            if let Some(row) = &mut self.rows[places[index]] {
                row.pausing = true;
                self.report.pauses += 1;
            }
        }
        if decision.is_idle() {
            return false;
        }
        self.check_order(&decision, &visited);
        self.apply(&decision, &places, &running, &visited);
        true
    }

    fn answered(&mut self, flight: Flight) {
        self.clock_ms += flight.took_ms;
        if flight.busy {
            self.report.busy_ms += flight.took_ms;
            self.report.busy_slots_ms += flight.took_ms * f64::from(self.pool.used());
        }
        for place in flight.rows {
            let Some(row) = self.rows[place]
                .as_mut()
                .filter(|row| row.since <= flight.number)
            else {
                continue;
            };
            self.report.busy_tokens += u64::from(flight.busy);
            let waited = row.waited_ms(self.clock_ms);
            match row.entry.generated {
                0 => self.report.first_ms.push(waited),
                _ => self.report.gaps_ms.push(waited),
            }
            if !row.accept() {
                continue;
            }
            let entry = self.rows[place].take().unwrap().leave(&mut self.pool);
            if entry.generated >= entry.request.max_new_tokens {
                self.lengths.observe_cut(entry.generated);
            } else {
                self.lengths.observe(entry.generated);
            }
            let waited = entry.started_ms.unwrap() - entry.request.at_ms;
            self.report.waits.push((entry.request.priority, waited));
            let ended = (entry.request.tenant, self.clock_ms);
            self.report.ended.push(ended);
        }
    }
}

fn root() -> RootKey {
    RootKey::default()
}
