//! Spans on their way to an OpenTelemetry collector, as OTLP over gRPC: what the launcher and the router share of it.
//!
//! What is traced follows `OTEL_TRACES_SAMPLER`. A collector that is away or slow holds nobody up.

mod queue;

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

use self::queue::BoundedQueue;

/// How long the end of a process waits for spans that the collector has not taken.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Where spans go, and who sends them.
#[derive(Debug, Clone, Copy)]
pub struct Collector<'a> {
    /// What `--otlp-endpoint` says, such as `http://localhost:4317`.
    pub endpoint: &'a str,
    /// None: that of `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES`, else `default_name`.
    pub service_name: Option<&'a str>,
    pub default_name: &'static str,
}

/// A collector that cannot be used. The text goes on after the name of the flag.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    #[error("must be an address such as http://localhost:4317; TLS is not supported. Given: {0}")]
    Address(String),
    #[error("{endpoint} cannot be used: {source}")]
    Exporter {
        endpoint: String,
        source: ExporterBuildError,
    },
}

/// Says whether `endpoint` can be the address of a collector, without asking it. Needs a tokio runtime.
///
/// # Errors
/// When it is none, or one that needs TLS.
pub fn check(endpoint: &str) -> Result<(), CollectorError> {
    exporter(endpoint).map(drop)
}

fn exporter(endpoint: &str) -> Result<SpanExporter, CollectorError> {
    if !endpoint.starts_with("http://") {
        return Err(CollectorError::Address(endpoint.to_owned()));
    }
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build();
    exporter.map_err(|source| CollectorError::Exporter {
        endpoint: endpoint.to_owned(),
        source,
    })
}

/// The spans of this process. Clones share the way to the collector.
#[derive(Debug, Clone)]
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Spans go to `collector`. Does not wait for it. Needs a tokio runtime, which keeps the connection.
    ///
    /// `lost` is called, on any thread, with the number of spans that the collector will not get.
    ///
    /// # Errors
    /// When the address of the collector cannot be used.
    pub fn to(
        collector: Collector<'_>,
        lost: impl Fn(usize) + Send + Sync + 'static,
    ) -> Result<Self, CollectorError> {
        let exporter = exporter(collector.endpoint)?;
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BoundedQueue::before(exporter, lost))
            .with_resource(resource(collector))
            .build();
        Ok(Self(provider))
    }

    /// No span is recorded.
    pub fn off() -> Self {
        let provider = SdkTracerProvider::builder().with_sampler(Sampler::AlwaysOff);
        Self(provider.build())
    }

    /// Makes spans of `scope`, the part of the program that they tell of.
    pub fn tracer(&self, scope: &'static str) -> SdkTracer {
        self.0.tracer(scope)
    }

    /// Sends what waits, for at most two seconds. Nothing is sent after that.
    pub async fn shutdown(&self) {
        let provider = self.0.clone();
        let flushed = tokio::task::spawn_blocking(move || {
            // Whoever misses a span sees in the log, or in the collector's, why.
            let _ = provider.shutdown_with_timeout(FLUSH_LIMIT);
        });
        let _ = flushed.await;
    }
}

/// Who this process is.
fn resource(collector: Collector<'_>) -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = || Resource::builder().with_attribute(version.clone());
    let found = builder().build();
    let unnamed = found
        .get(&Key::from_static_str("service.name"))
        .is_none_or(|name| name.as_str().starts_with("unknown_service"));
    let default = unnamed.then_some(collector.default_name);
    match collector.service_name.or(default) {
        Some(name) => builder().with_service_name(name.to_owned()).build(),
        None => found,
    }
}
