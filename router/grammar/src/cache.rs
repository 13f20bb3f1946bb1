//! Compiled grammars by content, the least recently used forgotten first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::{Grammar, GrammarError};

pub(crate) type Outcome = Result<Arc<Grammar>, GrammarError>;
type Waiting = watch::Receiver<Progress>;

/// How far a compilation is.
#[derive(Debug)]
pub(crate) enum Progress {
    /// No thread was free yet.
    Waits,
    Runs,
    Ended(Outcome),
}

/// A source that is being compiled is compiled once, however many ask for it meanwhile.
#[derive(Debug)]
pub(crate) struct Cache {
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ready: HashMap<Arc<str>, Entry>,
    /// Keys of `ready` by last use.
    order: BTreeMap<u64, Arc<str>>,
    pending: HashMap<Arc<str>, Waiting>,
    bytes: usize,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    grammar: Arc<Grammar>,
    bytes: usize,
    used: u64,
}

/// What is known of a key.
pub(crate) enum Lookup {
    Ready(Arc<Grammar>),
    /// Someone compiles it.
    Pending(Waiting),
    /// The caller has to compile it, and to call [`Cache::finish`] in any case.
    Missing(watch::Sender<Progress>, Waiting),
}

impl Cache {
    /// For about `capacity` bytes of grammars and keys.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            state: Mutex::default(),
        }
    }

    pub fn lookup(&self, key: &Arc<str>) -> Lookup {
        let mut state = self.lock();
        if let Some(grammar) = state.touch(key) {
            return Lookup::Ready(grammar);
        }
        // A compilation that panicked has ended without a word.
        let pending = state.pending.get(key);
        if let Some(waiting) = pending.filter(|waiting| waiting.has_changed().is_ok()) {
            return Lookup::Pending(waiting.clone());
        }
        let (sender, waiting) = watch::channel(Progress::Waits);
        state.pending.insert(key.clone(), waiting.clone());
        Lookup::Missing(sender, waiting)
    }

    /// Keeps a grammar, unless it is larger than the cache. Errors are kept by nobody.
    pub fn finish(&self, key: &Arc<str>, outcome: &Outcome) {
        let mut state = self.lock();
        state.pending.remove(key);
        let Ok(grammar) = outcome else { return };
        let bytes = grammar.bytes() + 2 * key.len();
        if bytes > self.capacity {
            return;
        }
        while state.bytes + bytes > self.capacity {
            state.evict();
        }
        state.insert(key.clone(), grammar.clone(), bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn touch(&mut self, key: &str) -> Option<Arc<Grammar>> {
        let entry = self.ready.get_mut(key)?;
        if let Some(key) = self.order.remove(&entry.used) {
            self.uses += 1;
            entry.used = self.uses;
            self.order.insert(self.uses, key);
        }
        Some(entry.grammar.clone())
    }

    fn insert(&mut self, key: Arc<str>, grammar: Arc<Grammar>, bytes: usize) {
        self.uses += 1;
        let used = self.uses;
        self.order.insert(used, key.clone());
        self.bytes += bytes;
        self.ready.insert(
            key,
            Entry {
                grammar,
                bytes,
                used,
            },
        );
    }

    fn evict(&mut self) {
        let Some((_, key)) = self.order.pop_first() else {
            return;
        };
        if let Some(entry) = self.ready.remove(&key) {
            self.bytes -= entry.bytes;
        }
    }
}
