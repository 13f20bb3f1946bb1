//! Clock that ends what takes too long: the engine counts its items and states, but not the work between them, which
//! grows with the cube of the items of a place where a grammar is ambiguous.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::CancellationHandle;

/// How often it looks, in parts of the limit.
const LOOKS: u32 = 5;
/// Of a matcher that does nothing.
const IDLE: u64 = u64::MAX;

/// A thread that looks at all matchers while there are any. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Clock {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: Duration,
    start: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    watches: Vec<Weak<Watch>>,
    closed: bool,
}

/// What one matcher is doing.
#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
    /// Milliseconds from the clock's start to that of the step that runs, or `IDLE`.
    began: AtomicU64,
    engine: CancellationHandle,
}

impl Clock {
    /// Steps may take `limit`, and end at most a fifth of it later. Where no thread can be started, they take what they
    /// take.
    pub fn new(limit: Duration) -> Self {
        let shared = Arc::new(Shared {
            limit,
            start: Instant::now(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let looking = shared.clone();
        let _ = thread::Builder::new()
            .name("grammar-clock".to_owned())
            .spawn(move || looking.run());
        Self { shared }
    }

    /// Watches the steps of the matcher whose engine `engine` ends.
    pub fn watch(&self, engine: CancellationHandle) -> Arc<Watch> {
        self.shared.watch(engine)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn watch(self: &Arc<Self>, engine: CancellationHandle) -> Arc<Watch> {
        let watch = Arc::new(Watch {
            shared: self.clone(),
            began: AtomicU64::new(IDLE),
            engine,
        });
        let mut state = self.state();
        if state.watches.is_empty() {
            self.changed.notify_one();
        }
        state.watches.push(Arc::downgrade(&watch));
        watch
    }

    fn run(&self) {
        let mut state = self.state();
        while !state.closed {
            state = if state.watches.is_empty() {
                self.changed.wait(state)
            } else {
                let waited = self.changed.wait_timeout(state, self.limit / LOOKS);
                waited
                    .map(|(state, _)| state)
                    .map_err(|error| PoisonError::new(error.into_inner().0))
            }
            .unwrap_or_else(PoisonError::into_inner);
            let now = self.now();
            state.watches.retain(|watch| {
                let watch = watch.upgrade();
                watch.is_some_and(|watch| {
                    watch.look(now);
                    true
                })
            });
        }
    }

    fn now(&self) -> u64 {
        // 500 million years fit.
        self.start.elapsed().as_millis() as u64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Watches a copy of the matcher, whose engine `engine` ends.
    pub fn of_copy(&self, engine: CancellationHandle) -> Arc<Self> {
        self.shared.watch(engine)
    }

    /// Runs one step of the matcher. The limit, where the step was ended because it took longer: what it returned is
    /// worth nothing then.
    pub fn time<T>(&self, step: impl FnOnce() -> T) -> Result<T, Duration> {
        self.began.store(self.shared.now(), Ordering::Relaxed);
        let value = step();
        self.began.store(IDLE, Ordering::Relaxed);
        if self.engine.is_cancelled() {
            return Err(self.shared.limit);
        }
        Ok(value)
    }

    fn look(&self, now: u64) {
        let began = self.began.load(Ordering::Relaxed);
        if began != IDLE && u128::from(now.saturating_sub(began)) > self.shared.limit.as_millis() {
            self.engine.cancel();
        }
    }
}
