//! A bounded queue of spans, and a thread of the OpenTelemetry library that sends batches to the collector.
//!
//! What the queue cannot take, and what could not be sent, is dropped and counted.

use std::env;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor,
};

/// Spans that wait for the collector, where `OTEL_BSP_MAX_QUEUE_SIZE` says nothing else.
const QUEUED_SPANS: usize = 2048;

/// How many spans wait, and who is told how many were lost: shared by both ends of the queue.
struct Fill {
    waiting: AtomicUsize,
    lost: Box<dyn Fn(usize) + Send + Sync>,
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fill")
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

/// The queue's way in. It takes finished spans from any thread and never waits.
#[derive(Debug)]
pub(super) struct BoundedQueue {
    batches: BatchSpanProcessor,
    capacity: usize,
    fill: Arc<Fill>,
}

impl BoundedQueue {
    /// A queue before `exporter`, and the thread that empties it. `lost` is told how many spans were lost. Further limits
    /// are those of the library: `OTEL_BSP_SCHEDULE_DELAY` and `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`.
    pub(super) fn before(
        exporter: impl SpanExporter + 'static,
        lost: impl Fn(usize) + Send + Sync + 'static,
    ) -> Self {
        let given = env::var("OTEL_BSP_MAX_QUEUE_SIZE").ok();
        let capacity = given
            .and_then(|size| size.parse().ok())
            .unwrap_or(QUEUED_SPANS);
        let fill = Arc::new(Fill {
            waiting: AtomicUsize::new(0),
            lost: Box::new(lost),
        });
        let exporter = CountingExporter {
            inner: exporter,
            fill: fill.clone(),
            is_failing: AtomicBool::new(false),
        };
        let limits = BatchConfigBuilder::default().with_max_queue_size(capacity);
        Self {
            batches: BatchSpanProcessor::builder(exporter)
                .with_batch_config(limits.build())
                .build(),
            capacity,
            fill,
        }
    }
}

impl SpanProcessor for BoundedQueue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let waiting = self.fill.waiting.fetch_add(1, Ordering::AcqRel);
        if waiting < self.capacity {
            self.batches.on_end(span);
        } else {
            self.fill.waiting.fetch_sub(1, Ordering::AcqRel);
            (self.fill.lost)(1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// The queue's way out: says once that the collector cannot be reached, and once that it can again.
#[derive(Debug)]
struct CountingExporter<E> {
    inner: E,
    fill: Arc<Fill>,
    is_failing: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for CountingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.fill.waiting.fetch_sub(spans, Ordering::AcqRel);
        let sent = self.inner.export(batch).await;
        let failed_before = self.is_failing.swap(sent.is_err(), Ordering::AcqRel);
        match &sent {
            Err(error) => {
                (self.fill.lost)(spans);
                if !failed_before {
                    tracing::warn!(
                        "traces are dropped: the collector of `--otlp-endpoint` takes none: {error}"
                    );
                }
            }
            Ok(()) if failed_before => tracing::info!("the collector takes traces again"),
            Ok(()) => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
