//! Threads that compile grammars.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::GrammarError;

/// The library goes down into nested schemas and rules by recursion. Memory is only taken where a stack is used.
const STACK: usize = 256 << 20;

type Job = Box<dyn FnOnce() + Send>;

/// They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Workers {
    jobs: SyncSender<Job>,
}

impl Workers {
    /// `queue` jobs may wait beside those that run.
    pub fn new(threads: NonZero<usize>, queue: usize) -> Self {
        let (jobs, receiver) = sync_channel::<Job>(queue);
        let receiver = Arc::new(Mutex::new(receiver));
        for index in 0..threads.get() {
            let receiver = receiver.clone();
            // Where no thread can be started at all the receiver is gone, and every job is refused.
            let _ = thread::Builder::new()
                .name(format!("grammar-{index}"))
                .stack_size(STACK)
                .spawn(move || work(&receiver));
        }
        Self { jobs }
    }

    /// Runs `job` as soon as a thread is free. A job that panics ends alone.
    pub fn submit(&self, job: Job) -> Result<(), GrammarError> {
        self.jobs
            .try_send(job)
            .map_err(|_| GrammarError::Overloaded)
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}
