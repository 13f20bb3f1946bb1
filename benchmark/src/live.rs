//! Counters that a load writes and a screen or a progress bar reads.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::CancellationToken;

/// What a point of the benchmark has done so far. Written by many tasks, read about ten times a second.
#[derive(Debug, Default)]
pub struct Live {
    /// Events with tokens, or tokens of a shard.
    pub tokens: AtomicU64,
    pub running: AtomicU64,
    pub done: AtomicU64,
    pub failed: AtomicU64,
    /// No new request starts; those that run are dropped.
    stop: CancellationToken,
    point: Mutex<Point>,
}

/// The point that runs now and those that ran before.
#[derive(Debug, Default, Clone)]
pub struct Point {
    pub label: String,
    pub index: usize,
    pub points: usize,
    /// Steps (requests, or runs of a shard) of this point.
    pub total: u64,
    pub started: Option<Instant>,
    /// Named samples in ms of this point, in the order in which they came.
    pub samples: Vec<(&'static str, Vec<f64>)>,
    /// (output tokens per second, median latency in ms) of the points before.
    pub finished: Vec<(f64, f64)>,
}

impl Live {
    /// Starts the next point: counters go to zero.
    pub fn begin(&self, label: &str, index: usize, points: usize, total: u64) {
        for counter in [&self.tokens, &self.running, &self.done, &self.failed] {
            counter.store(0, Relaxed);
        }
        let mut point = self.point();
        let finished = std::mem::take(&mut point.finished);
        *point = Point {
            label: label.to_owned(),
            index,
            points,
            total,
            started: Some(Instant::now()),
            samples: Vec::new(),
            finished,
        };
    }

    /// Adds a sample in ms to the series `name`.
    pub fn sample(&self, name: &'static str, milliseconds: f64) {
        let mut point = self.point();
        match point.samples.iter_mut().find(|series| series.0 == name) {
            Some(series) => series.1.push(milliseconds),
            None => point.samples.push((name, vec![milliseconds])),
        }
    }

    /// Ends a point: its place in the plot of latency against throughput.
    pub fn end(&self, tokens_per_second: f64, latency_ms: f64) {
        self.point().finished.push((tokens_per_second, latency_ms));
    }

    /// Locked for reading or writing; hold it shortly.
    pub fn point(&self) -> MutexGuard<'_, Point> {
        self.point.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks every load to end now.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    pub fn stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Returns when the load has to end.
    pub async fn until_stopped(&self) {
        self.stop.cancelled().await;
    }
}
