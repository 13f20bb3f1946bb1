#![allow(clippy::unwrap_used, reason = "a helper of tests may panic as they do")]

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

/// Workers that are stuck at once, with what they tell.
fn workers(threads: usize, replaced: usize) -> (Workers, Receiver<usize>) {
    let (told, stuck) = channel();
    let limits = WorkerLimits {
        threads: NonZero::new(threads).unwrap(),
        queue: 8,
        time: Duration::ZERO,
        replaced,
    };
    let on_stuck = Box::new(move |count| {
        let _ = told.send(count);
    });
    (Workers::new(limits, on_stuck), stuck)
}

/// A job that goes on until what it returns is dropped.
fn endless() -> (Job, Sender<()>) {
    let (release, held) = channel::<()>();
    let job = move || {
        let _ = held.recv();
    };
    (Box::new(job), release)
}

/// A job that tells that it has run.
fn telling() -> (Job, Receiver<()>) {
    let (told, ran) = channel();
    let job = move || {
        let _ = told.send(());
    };
    (Box::new(job), ran)
}

#[test]
fn a_job_that_never_ends_stops_no_other() {
    let (workers, stuck) = workers(1, usize::MAX);
    let mut held = Vec::new();
    for count in 1..=3 {
        let (job, release) = endless();
        workers.submit(job).unwrap();
        held.push(release);
        assert!(stuck.iter().any(|told| told >= count));
        let (job, ran) = telling();
        workers.submit(job).unwrap();
        assert_eq!(ran.recv(), Ok(()));
    }
}

#[test]
fn stuck_threads_are_few_and_work_again_when_their_jobs_end() {
    let (workers, stuck) = workers(2, 1);
    let mut held = Vec::new();
    for count in 1..=3 {
        let (job, release) = endless();
        workers.submit(job).unwrap();
        held.push(release);
        assert_eq!(stuck.recv(), Ok(count));
    }
    let (job, _) = telling();
    assert_eq!(workers.submit(job), Err(GrammarError::Stuck));
    drop(held);
    assert!(stuck.iter().any(|told| told == 0));
    let (job, ran) = telling();
    workers.submit(job).unwrap();
    assert_eq!(ran.recv(), Ok(()));
}

#[test]
fn jobs_wait_in_a_queue_that_is_bounded() {
    let limits = WorkerLimits {
        threads: NonZero::<usize>::MIN,
        queue: 1,
        time: Duration::MAX,
        replaced: 0,
    };
    let workers = Workers::new(limits, Box::new(|_| {}));
    let (begun, begins) = channel();
    let (release, held) = channel::<()>();
    let job = move || {
        let _ = begun.send(());
        let _ = held.recv();
    };
    workers.submit(Box::new(job)).unwrap();
    assert_eq!(begins.recv(), Ok(()));
    let (job, ran) = telling();
    workers.submit(job).unwrap();
    let (job, _) = telling();
    assert_eq!(workers.submit(job), Err(GrammarError::Overloaded));
    drop(release);
    assert_eq!(ran.recv(), Ok(()));
}
