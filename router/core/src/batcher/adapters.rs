//! Adapters of requests that wait: pages for them, copies that plans bring there, and whose turn it is where pages are
//! short.
//!
//! A request starts when the copy of its adapter is done. Until then those behind it may pass; a copy begins at once for
//! the first that lacks one, where pages are free or of adapters that nobody uses. Where all are in use, adapters that it
//! can follow get no new requests once it has waited for long.

use std::collections::HashSet;
use std::sync::Arc;

use text_generation_client::ClientError;
use text_generation_client::types::AdapterCopy;
use tokio::time::Duration;

use super::Batcher;
use super::in_flight::InFlight;
use crate::adapters::{Adapters, PagePool, Weights};
use crate::metrics::PageMetrics;
use crate::queue::Entry;

/// Requests whose adapters are brought to the device before their turn.
const AHEAD: usize = 32;
/// Requests that are looked at for that, those of the base among them.
const MOST_LOOKED_AT: usize = 512;
/// Those that came so much later than a request, in milliseconds, still keep their adapters from making room for its own.
const BUCKET_MS: i64 = 100;
/// Who has waited so long for pages gets those of the next adapter that has none running.
const PATIENCE: Duration = Duration::from_millis(500);

/// Where the adapters are, as plans have to know it.
#[derive(Debug)]
pub(super) struct AdapterStage {
    pub(super) adapters: Adapters,
    pool: PagePool,
    /// Copies that the next plan brings.
    pending: Vec<AdapterCopy>,
    /// Generations that get no new requests.
    draining: Vec<u64>,
    /// Of the pinned adapters that were brought.
    pins: Option<u64>,
    metrics: PageMetrics,
}

/// A request that waits for its adapter.
struct Wanting {
    weights: Arc<Weights>,
    due: i64,
    waited: Duration,
}

impl AdapterStage {
    pub(super) fn new(adapters: Adapters, ranks: usize) -> Self {
        let pages = adapters.pages();
        Self {
            adapters,
            pool: PagePool::new(pages, ranks),
            pending: Vec::new(),
            draining: Vec::new(),
            pins: None,
            metrics: PageMetrics::new(pages),
        }
    }

    /// What the shards call the adapter of a request that may start now; 0: the base. `None` where it has to wait.
    pub(super) fn number(&self, entry: &Entry) -> Option<u32> {
        match entry.request.adapter_generation() {
            0 => Some(0),
            generation if self.draining.contains(&generation) => None,
            generation => self.pool.number(generation),
        }
    }

    /// A request of this adapter starts.
    pub(super) fn touch(&mut self, entry: &Entry) {
        self.pool.touch(entry.request.adapter_generation());
    }

    /// Whether the shards have to be told of copies, or to say when they are done.
    pub(super) fn must_speak(&self) -> bool {
        !self.pending.is_empty() || self.pool.is_copying()
    }

    /// Copies for the plan that is made.
    pub(super) fn take_copies(&mut self) -> Vec<AdapterCopy> {
        std::mem::take(&mut self.pending)
    }

    /// Nothing is on the shards any more.
    pub(super) fn reset(&mut self) {
        self.pool.reset();
        self.pending.clear();
        self.pins = None;
    }

    pub(super) fn publish(&self) {
        self.metrics.publish(self.pool.used(), self.pool.len());
    }

    /// Brings pinned adapters to pages that nobody has.
    fn bring_pinned(&mut self) {
        let pins = Some(self.adapters.pins());
        if self.pins == pins {
            return;
        }
        self.pins = pins;
        for adapter in self.adapters.pinned() {
            let weights = &adapter.weights;
            if !self.pool.has(weights.generation) && self.pool.has_hole(weights.pages) {
                self.bring(weights, true, |_| true);
            }
        }
    }

    fn bring(&mut self, weights: &Arc<Weights>, pinned: bool, stays: impl Fn(u64) -> bool) -> bool {
        let Some((copy, gone)) = self.pool.bring(weights, pinned, stays) else {
            return false;
        };
        self.metrics.copied(gone);
        self.pending.push(copy);
        true
    }

    /// Brings what those that wait want, in their order; `running` have rows.
    fn bring_wanted(&mut self, wanting: &[Wanting], running: &HashSet<u64>) {
        self.draining.clear();
        for one in wanting {
            let generation = one.weights.generation;
            if self.pool.has(generation) {
                continue;
            }
            let is_late = one.waited > PATIENCE;
            let until = one.due.saturating_add(if is_late { 0 } else { BUCKET_MS });
            let sooner = wanting.iter().filter(|other| other.due <= until);
            let sooner: HashSet<u64> = sooner.map(|other| other.weights.generation).collect();
            let stays = |other: u64| running.contains(&other) || sooner.contains(&other);
            let weights = Arc::clone(&one.weights);
            if !self.bring(&weights, false, stays) && is_late && self.draining.is_empty() {
                self.draining = self.pool.victims(weights.pages);
            }
        }
    }
}

impl Batcher {
    /// Gives adapters of requests that wait, in turn, pages, as far as there are any.
    pub(super) fn prepare_adapters(&mut self) {
        let stage = &mut self.adapters;
        if stage.adapters.pages() == 0 {
            return;
        }
        stage.bring_pinned();
        stage.draining.clear();
        let mut turns = self.queue.in_turn();
        let mut wanting = Vec::new();
        for _ in 0..MOST_LOOKED_AT {
            let Some(order) = turns.next(0).filter(|_| wanting.len() < AHEAD) else {
                break;
            };
            let entry = self.queue.get(order);
            let adapter = entry.and_then(|entry| Some((entry, entry.request.adapter.as_ref()?)));
            if let Some((entry, adapter)) = adapter {
                wanting.push(Wanting {
                    weights: Arc::clone(&adapter.weights),
                    due: order.due,
                    waited: entry.queued.elapsed(),
                });
            }
        }
        if wanting
            .iter()
            .all(|one| stage.pool.has(one.weights.generation))
        {
            return;
        }
        let running = self.rows.iter().flatten();
        let running = running.map(|running| running.entry.request.adapter_generation());
        stage.bring_wanted(&wanting, &running.collect());
    }

    /// Copies that a reply says to be done.
    pub(super) fn adapters_ready(&mut self, in_flight: &InFlight, numbers: &[u32]) {
        for &number in numbers {
            self.adapters.pool.ready(number);
        }
        let waits = in_flight.computes() || !self.in_flight.is_empty();
        if !waits && self.adapters.pending.is_empty() && self.adapters.pool.is_copying() {
            let error = "the shards have not copied an adapter".to_owned();
            self.lose(Vec::new(), &ClientError::Connection(error));
        }
    }
}
