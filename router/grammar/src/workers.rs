//! Threads that compile grammars.

mod replace;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::GrammarError;

/// The library goes down into nested schemas and rules by recursion. Memory is only taken where a stack is used.
const STACK: usize = 256 << 20;

pub(crate) type Job = Box<dyn FnOnce() + Send>;
/// Is told how many threads are stuck whenever that changes, while nothing else about them can.
pub type StuckThreads = Box<dyn Fn(usize) + Send + Sync>;

/// How many threads there are and what they may do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkerLimits {
    pub threads: NonZero<usize>,
    /// Jobs that may wait beside those that run.
    pub queue: usize,
    /// How long a job may take. A thread whose job takes longer is stuck: nothing can end it, so another one takes its
    /// place.
    pub time: Duration,
    /// Stuck threads that are replaced. After so many, each further one leaves a thread less.
    pub replaced: usize,
}

/// They end when this is dropped, those that are stuck when their job ends.
pub(crate) struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    limits: WorkerLimits,
    on_stuck: StuckThreads,
    state: Mutex<State>,
    /// A job waits, or all is over.
    waiting: Condvar,
    /// A job has begun, or all is over.
    begun: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// When each thread at work began; those that are stuck are not among them.
    running: HashMap<u64, Instant>,
    threads_started: u64,
    /// Threads that are not stuck.
    able: usize,
    stuck: usize,
    closed: bool,
}

impl Workers {
    pub fn new(limits: WorkerLimits, on_stuck: StuckThreads) -> Self {
        let shared = Arc::new(Shared {
            limits,
            on_stuck,
            state: Mutex::default(),
            waiting: Condvar::new(),
            begun: Condvar::new(),
        });
        for _ in 0..limits.threads.get() {
            shared.start(&mut shared.state());
        }
        shared.watch();
        Self { shared }
    }

    /// Runs `job` as soon as a thread is free. A job that panics ends alone.
    ///
    /// # Errors
    /// `Overloaded` where the queue is full, `Stuck` where no thread is left.
    pub fn submit(&self, job: Job) -> Result<(), GrammarError> {
        let mut state = self.shared.state();
        if state.able == 0 {
            return Err(GrammarError::Stuck);
        }
        if state.jobs.len() >= self.shared.limits.queue {
            return Err(GrammarError::Overloaded);
        }
        state.jobs.push_back(job);
        self.shared.waiting.notify_one();
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        state.jobs.clear();
        self.shared.waiting.notify_all();
        self.shared.begun.notify_all();
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Workers")
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Starts a thread. Where the machine has none left there is one less.
    fn start(self: &Arc<Self>, state: &mut State) {
        let id = state.threads_started;
        let shared = self.clone();
        let started = thread::Builder::new()
            .name(format!("grammar-{id}"))
            .stack_size(STACK)
            .spawn(move || shared.work(id));
        state.threads_started += 1;
        state.able += usize::from(started.is_ok());
    }

    fn work(&self, id: u64) {
        while let Some(job) = self.next(id) {
            let _ = catch_unwind(AssertUnwindSafe(job));
            if !self.goes_on(id) {
                return;
            }
        }
    }

    /// Waits for a job; nothing once all is over.
    fn next(&self, id: u64) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                state.running.insert(id, Instant::now());
                self.begun.notify_one();
                return Some(job);
            }
            let woken = self.waiting.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
