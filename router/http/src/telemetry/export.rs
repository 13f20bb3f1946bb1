//! Spans on their way to the collector: a bounded queue, and a thread that sends them in batches.
//!
//! A collector that is away or slow holds nobody up. What the queue cannot take, and what could not be sent, is dropped
//! and counted.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use metrics::{Counter, counter};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

use super::collector::Collector;
use super::environment;

/// Spans that no collector got.
pub const SPANS_DROPPED: &str = "tgi_trace_spans_dropped";

/// Spans that wait for the collector, spans that are sent at once, and the time after which fewer are sent, where the
/// environment says nothing else: the defaults of the specification.
const QUEUED_SPANS: usize = 2048;
const BATCH_SPANS: usize = 512;
const DELAY: Duration = Duration::from_secs(5);

/// The way of spans to the collector.
#[derive(Debug)]
pub(super) struct Export {
    queue: Arc<Queue>,
    /// Asks the thread to send what waits, and to end.
    stop: CancellationToken,
    /// The thread has ended.
    ended: CancellationToken,
}

impl Export {
    /// Starts the thread that sends spans of `server` to the collector at `address`. Needs the metrics recorder.
    ///
    /// # Errors
    /// When `address` is none, or there can be no such thread.
    pub(super) fn to(address: &str, server: Resource) -> anyhow::Result<Self> {
        let queue = Arc::new(Queue::from_environment());
        let delay = environment::millis("OTEL_BSP_SCHEDULE_DELAY").unwrap_or(DELAY);
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let endpoint = Endpoint::from_shared(address.to_owned())?;
        let (taken, stopped) = (queue.clone(), stop.clone());
        let at_end = ended.clone().drop_guard();
        let sending = async move {
            send_all(&taken, &Collector::at(&endpoint, server), delay, &stopped).await;
        };
        thread::Builder::new()
            .name("traces".to_owned())
            .spawn(move || {
                let _at_end = at_end;
                match Builder::new_current_thread().enable_all().build() {
                    Ok(runtime) => runtime.block_on(sending),
                    Err(error) => tracing::error!("traces cannot be sent: {error}"),
                }
            })?;
        Ok(Self { queue, stop, ended })
    }

    /// Takes spans from any thread; does not wait for the collector.
    pub(super) fn push(&self, spans: Vec<Span>) {
        self.queue.push(spans);
    }

    /// Sends what waits, for at most `limit`, and nothing that comes later.
    pub(super) async fn end(&self, limit: Duration) {
        self.stop.cancel();
        // Whoever misses a span sees in the log, or in the collector's, why.
        let _ = timeout(limit, self.ended.cancelled()).await;
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Both ends of the queue.
#[derive(Debug)]
struct Queue {
    waiting: Mutex<VecDeque<Span>>,
    capacity: usize,
    /// Spans that are sent at once.
    batch: usize,
    /// There are enough for a batch.
    full: Notify,
    dropped: Counter,
}

impl Queue {
    fn from_environment() -> Self {
        let batch = environment::parsed("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").unwrap_or(BATCH_SPANS);
        let capacity = environment::parsed("OTEL_BSP_MAX_QUEUE_SIZE").unwrap_or(QUEUED_SPANS);
        Self {
            waiting: Mutex::default(),
            capacity,
            batch: batch.clamp(1, capacity.max(1)),
            full: Notify::new(),
            dropped: counter!(SPANS_DROPPED),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Span>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, spans: Vec<Span>) {
        let mut waiting = self.waiting();
        let before = waiting.len();
        let taken = spans.len().min(self.capacity.saturating_sub(before));
        self.dropped.increment((spans.len() - taken) as u64);
        waiting.extend(spans.into_iter().take(taken));
        if before < self.batch && waiting.len() >= self.batch {
            self.full.notify_one();
        }
    }

    /// The oldest, if there are `least`.
    fn take(&self, least: usize) -> Option<Vec<Span>> {
        let mut waiting = self.waiting();
        let count = waiting.len().min(self.batch);
        (count >= least).then(|| waiting.drain(..count).collect())
    }
}

/// Sends full batches as they come, others after `delay`, and what is left when it is told to stop.
async fn send_all(queue: &Queue, collector: &Collector, delay: Duration, stop: &CancellationToken) {
    let mut is_failing = false;
    let mut ends = false;
    while !ends {
        let mut least = tokio::select! {
            () = queue.full.notified() => queue.batch,
            () = sleep(delay) => 1,
            () = stop.cancelled() => 1,
        };
        ends = stop.is_cancelled();
        while let Some(spans) = queue.take(least) {
            let count = spans.len() as u64;
            let sent = collector.send(spans).await;
            if sent.is_err() {
                queue.dropped.increment(count);
            }
            tell_changes(sent, &mut is_failing);
            // What comes meanwhile waits until it is a batch.
            least = if ends { 1 } else { queue.batch };
        }
    }
}

/// Says once that the collector cannot be reached, and once that it can again.
fn tell_changes(sent: Result<(), tonic::Status>, is_failing: &mut bool) {
    let failed_before = std::mem::replace(is_failing, sent.is_err());
    match sent {
        Err(status) if !failed_before => tracing::warn!(
            "traces are dropped: the collector of `--otlp-endpoint` takes none: {}",
            status.message()
        ),
        Ok(()) if failed_before => tracing::info!("the collector takes traces again"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_queue_cannot_take_is_dropped_and_batches_are_full_where_that_is_asked() {
        let queue = Queue {
            waiting: Mutex::default(),
            capacity: 5,
            batch: 2,
            full: Notify::new(),
            dropped: Counter::noop(),
        };
        for spans in [3, 4] {
            queue.push(vec![Span::default(); spans]);
        }
        let taken = [2, 2, 2, 1, 1].map(|least| queue.take(least).map(|spans| spans.len()));
        assert_eq!(taken, [Some(2), Some(2), None, Some(1), None]);
    }
}
