//! What names stand for: a pure state machine without shards.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use text_generation_client::types::LoadAdapter;

use super::weights::{Adapter, Weights};

/// Names that a server has at once.
pub(super) const MOST_NAMES: usize = 4096;

/// Who named an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line.
    Start,
    /// An administrator, while the server runs.
    Loaded,
    /// A request, which found it in the folder of adapters.
    Folder,
}

/// What is known of an adapter before its files are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) name: String,
    /// A folder or a hub id.
    pub(crate) source: String,
    pub(crate) origin: Origin,
    /// It keeps its pages as long as others find room beside it.
    pub(crate) pinned: bool,
}

impl Order {
    /// The call for any contents.
    pub(crate) fn load(&self) -> LoadAdapter {
        LoadAdapter {
            name: self.name.clone(),
            source: self.source.clone(),
            untrusted: self.origin != Origin::Start,
            generation: 0,
        }
    }
}

#[derive(Debug)]
enum State {
    /// In the host memory of the shards.
    Here(Arc<Adapter>),
    /// Its host memory was needed for others; its files are read again when it is asked for.
    Away,
    /// Shards that have started again could not read what they had.
    Lost,
}

#[derive(Debug)]
struct Record {
    order: Order,
    state: State,
    /// Of the record, in the order in which they came.
    sequence: u64,
    used_at: u64,
}

/// What a name stands for.
#[derive(Debug)]
pub(crate) enum Found {
    Here(Arc<Adapter>),
    /// Its files have to be read.
    Away(Order),
    Lost,
    Unknown,
}

/// An adapter as lists show it.
#[derive(Debug, Clone)]
pub struct Listed {
    pub name: String,
    pub source: String,
    /// Nothing while its host memory is used for others, or where it is lost.
    pub adapter: Option<Arc<Adapter>>,
    /// Shards that have started again could not read it as it was.
    pub lost: bool,
}

/// All names, and the contents that anybody holds.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    records: HashMap<String, Record>,
    /// By generation; the second is the first adapter that had these contents.
    contents: HashMap<u64, (Weak<Weights>, Weak<Adapter>)>,
    sequence: u64,
    clock: u64,
    next_id: u32,
    /// Counts changes of what is pinned.
    pub(crate) pins: u64,
}

impl Catalog {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// What a request of this name gets.
    pub(crate) fn find(&mut self, name: &str) -> Found {
        self.clock += 1;
        let Some(record) = self.records.get_mut(name) else {
            return Found::Unknown;
        };
        record.used_at = self.clock;
        match &record.state {
            State::Here(adapter) => Found::Here(adapter.clone()),
            State::Away => Found::Away(record.order.clone()),
            State::Lost => Found::Lost,
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.records.contains_key(name)
    }

    /// All, in the order in which they came.
    pub(crate) fn list(&self) -> Vec<Listed> {
        let mut records: Vec<&Record> = self.records.values().collect();
        records.sort_unstable_by_key(|record| record.sequence);
        let listed = records.into_iter().map(|record| Listed {
            name: record.order.name.clone(),
            source: record.order.source.clone(),
            adapter: match &record.state {
                State::Here(adapter) => Some(adapter.clone()),
                State::Away | State::Lost => None,
            },
            lost: matches!(record.state, State::Lost),
        });
        listed.collect()
    }

    /// Contents that anybody holds.
    pub(crate) fn weights(&self, generation: u64) -> Option<Arc<Weights>> {
        let (weights, _) = self.contents.get(&generation)?;
        weights.upgrade().filter(|weights| !weights.is_lost())
    }

    /// The first adapter with these contents that is still there.
    pub(crate) fn with_generation(&self, generation: u64) -> Option<Arc<Adapter>> {
        let (_, first) = self.contents.get(&generation)?;
        first.upgrade().or_else(|| {
            let records = self.records.values();
            let mut same = records.filter_map(|record| match &record.state {
                State::Here(adapter) if adapter.generation() == generation => Some(adapter),
                _ => None,
            });
            same.next().cloned()
        })
    }

    /// The name stands for these contents from now on. Whoever has asked for it before keeps what it got.
    pub(crate) fn insert(&mut self, order: &Order, weights: Arc<Weights>) -> Arc<Adapter> {
        self.clock += 1;
        self.next_id += 1;
        let adapter = Arc::new(Adapter {
            name: order.name.clone(),
            id: self.next_id,
            source: order.source.clone(),
            weights: weights.clone(),
        });
        let generation = weights.generation;
        if self.weights(generation).is_none() {
            let first = (Arc::downgrade(&weights), Arc::downgrade(&adapter));
            self.contents.insert(generation, first);
        }
        self.sequence += 1;
        let before = self.records.get(&order.name);
        let record = Record {
            sequence: before.map_or(self.sequence, |record| record.sequence),
            order: order.clone(),
            state: State::Here(adapter.clone()),
            used_at: self.clock,
        };
        self.pins += u64::from(order.pinned || before.is_some_and(|record| record.order.pinned));
        self.records.insert(order.name.clone(), record);
        adapter
    }

    /// Nobody holds these contents any more.
    pub(crate) fn forget(&mut self, generation: u64) {
        if self.weights(generation).is_none() {
            self.contents.remove(&generation);
        }
    }

    /// New requests find no such name. Returns whether there was one.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let removed = self.records.remove(name);
        self.pins += u64::from(removed.as_ref().is_some_and(|record| record.order.pinned));
        removed.is_some()
    }

    /// Host memory of adapters that came after the start.
    pub(crate) fn bytes(&self) -> u64 {
        let contents = self.contents.values();
        let held = contents.filter_map(|(weights, _)| weights.upgrade());
        let counted = held.filter(|weights| !weights.of_start);
        counted.map(|weights| weights.bytes).sum()
    }

    /// Lets go of adapters that no request holds, the least recently used first, until all that came after the start
    /// take at most so many bytes. Returns whether they do.
    pub(crate) fn fit(&mut self, most: u64) -> bool {
        while self.bytes() > most {
            let Some(name) = self.oldest(|record| !record.order.pinned) else {
                return false;
            };
            self.let_go(&name);
        }
        true
    }

    /// Makes room for one more name. Returns whether there is.
    pub(crate) fn fit_name(&mut self) -> bool {
        if self.records.len() < MOST_NAMES {
            return true;
        }
        let oldest = self.oldest(|record| record.order.origin == Origin::Folder);
        oldest.is_some_and(|name| self.remove(&name))
    }

    /// The name of the least recently used adapter that came after the start and that no request holds, nor a copy.
    fn oldest(&self, may_go: impl Fn(&Record) -> bool) -> Option<String> {
        let records = self.records.values().filter(|record| {
            let free = match &record.state {
                State::Here(adapter) => {
                    Arc::strong_count(adapter) == 1 && Arc::strong_count(&adapter.weights) == 1
                }
                State::Away | State::Lost => false,
            };
            free && record.order.origin != Origin::Start && may_go(record)
        });
        let oldest = records.min_by_key(|record| record.used_at)?;
        Some(oldest.order.name.clone())
    }

    fn let_go(&mut self, name: &str) {
        match self.records.get_mut(name) {
            Some(record) if record.order.origin == Origin::Folder => {
                self.records.remove(name);
            }
            Some(record) => record.state = State::Away,
            None => {}
        }
    }

    /// What shards that start again are asked for.
    pub(crate) fn live(&self) -> Vec<LoadAdapter> {
        let contents = self.contents.values();
        let held = contents.filter_map(|(weights, _)| weights.upgrade());
        let held = held.filter(|weights| !weights.is_lost());
        let mut loads: Vec<LoadAdapter> = held.map(|weights| weights.load_again()).collect();
        loads.sort_unstable_by_key(|load| load.generation);
        loads
    }

    /// Contents that are gone: their requests end, and a name that the folder of adapters gave may be read anew.
    pub(crate) fn lose(&mut self, generation: u64) {
        if let Some(weights) = self.weights(generation) {
            weights.lose();
        }
        self.contents.remove(&generation);
        let gone: Vec<String> = self
            .records
            .values()
            .filter(|record| {
                matches!(&record.state, State::Here(adapter) if adapter.generation() == generation)
            })
            .map(|record| record.order.name.clone())
            .collect();
        for name in gone {
            let Some(record) = self.records.get_mut(&name) else {
                continue;
            };
            tracing::error!(
                adapter = name,
                source = record.order.source,
                "the files of an adapter have changed, or are gone: its requests end"
            );
            if record.order.origin == Origin::Folder {
                self.records.remove(&name);
            } else {
                record.state = State::Lost;
            }
        }
    }

    /// Adapters that keep their pages.
    pub(crate) fn pinned(&self) -> Vec<Arc<Adapter>> {
        let mut records: Vec<&Record> = self.records.values().collect();
        records.sort_unstable_by_key(|record| record.sequence);
        let pinned = records.into_iter().filter(|record| record.order.pinned);
        let here = pinned.filter_map(|record| match &record.state {
            State::Here(adapter) => Some(adapter.clone()),
            State::Away | State::Lost => None,
        });
        here.collect()
    }
}

#[cfg(test)]
mod tests;
