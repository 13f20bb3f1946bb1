//! Traces of requests for an OpenTelemetry collector: one server span a request, with its queue, prefill and decode below
//! it, all written at the end of the request, so that a token costs nothing.
//!
//! The trace of the client is gone on with (W3C Trace Context), and which requests are traced follows
//! `OTEL_TRACES_SAMPLER`. No text of a request or answer and no key is in a span.

mod attributes;
mod export;
mod request;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::Response;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanKind, TraceContextExt, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, Key, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::task_local;

use self::export::BoundedQueue;
pub use self::export::SPANS_DROPPED;
use self::request::RequestSpan;

/// TGI's.
const DEFAULT_SERVICE_NAME: &str = "text-generation-inference.router";

/// How long the end of the process waits for spans that the collector has not taken.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    /// The collector, which takes OTLP over gRPC.
    pub endpoint: &'a str,
    /// None: that of `OTEL_SERVICE_NAME`, or TGI's.
    pub service_name: Option<&'a str>,
    /// The name of the model in spans.
    pub model: &'a str,
    /// The shards trace their steps, and are told which requests a step computes.
    pub trace_steps: bool,
}

/// Makes the spans of requests.
#[derive(Debug)]
pub struct Tracer {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    model: Arc<str>,
    trace_steps: bool,
}

impl Tracer {
    /// Does not wait for the collector. Needs a tokio runtime, which keeps the connection, and the metrics recorder.
    ///
    /// # Errors
    /// When the address of the collector cannot be used.
    pub fn start(settings: Settings<'_>) -> anyhow::Result<Self> {
        let endpoint = settings.endpoint;
        anyhow::ensure!(
            endpoint.starts_with("http://"),
            "`--otlp-endpoint` must be an address such as http://localhost:4317; TLS is not supported. Given: {endpoint}"
        );
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .build()
            .with_context(|| format!("`--otlp-endpoint {endpoint}` cannot be used"))?;
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BoundedQueue::before(exporter))
            .with_resource(resource(settings.service_name))
            .build();
        Ok(Self {
            tracer: provider.tracer("text-generation-router"),
            provider,
            propagator: TraceContextPropagator::new(),
            model: settings.model.into(),
            trace_steps: settings.trace_steps,
        })
    }

    /// The span of a request; none of one that is not sampled, nor of probes and pages.
    fn begin(self: &Arc<Self>, request: &Request) -> Option<Arc<RequestSpan>> {
        if request.method() != Method::POST {
            return None;
        }
        let route = request.extensions().get::<MatchedPath>()?;
        let headers = Headers(request.headers());
        let parent = self
            .propagator
            .extract_with_context(&Context::new(), &headers);
        let span = self
            .tracer
            .span_builder(format!("POST {}", route.as_str()))
            .with_kind(SpanKind::Server)
            .start_with_context(&self.tracer, &parent);
        let context = Context::new().with_span(span);
        let sampled = context.span().span_context().is_sampled();
        sampled.then(|| Arc::new(RequestSpan::new(self.clone(), context, request, route)))
    }

    /// Sends what waits, for at most [`FLUSH_LIMIT`]. Nothing is sent after that.
    pub async fn shutdown(&self) {
        let provider = self.provider.clone();
        let flushed = tokio::task::spawn_blocking(move || {
            // Whoever misses a span sees in the log, or in the collector's, why.
            let _ = provider.shutdown_with_timeout(FLUSH_LIMIT);
        });
        let _ = flushed.await;
    }
}

/// Who this server is. The environment names it by `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`.
fn resource(name: Option<&str>) -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = || Resource::builder().with_attribute(version.clone());
    let found = builder().build();
    let unnamed = found
        .get(&Key::from_static_str("service.name"))
        .is_none_or(|name| name.as_str().starts_with("unknown_service"));
    match name.or(unnamed.then_some(DEFAULT_SERVICE_NAME)) {
        Some(name) => builder().with_service_name(name.to_owned()).build(),
        None => found,
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}

task_local! {
    /// The span of the request that is being handled.
    static CURRENT: Arc<RequestSpan>;
}

/// The span of the request that is being handled, if it is traced.
pub(crate) fn current() -> Option<Arc<RequestSpan>> {
    CURRENT.try_with(Clone::clone).ok()
}

/// The layer that traces requests.
pub async fn trace(
    State(tracer): State<Option<Arc<Tracer>>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(span) = tracer.and_then(|tracer| tracer.begin(&request)) else {
        return next.run(request).await;
    };
    let response = CURRENT.scope(span.clone(), next.run(request)).await;
    span.answered(&response);
    response
}
