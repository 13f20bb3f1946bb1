//! Traces of requests for an OpenTelemetry collector: one server span a request, with its queue, prefill and decode below
//! it, all written at the end of the request, so that a token costs nothing.
//!
//! The trace of the client is gone on with (W3C Trace Context), and which requests are traced follows
//! `OTEL_TRACES_SAMPLER`. No text of a request or answer and no key is in a span.

mod attributes;
mod request;

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::Response;
use metrics::counter;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanKind, TraceContextExt, Tracer as _};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;
use text_generation_traces::{Collector, CollectorError, Traces};
use tokio::task_local;

use self::request::RequestSpan;

/// TGI's.
const DEFAULT_SERVICE_NAME: &str = "text-generation-inference.router";

/// Spans that no collector got.
pub const SPANS_DROPPED: &str = "tgi_trace_spans_dropped";

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    /// The collector, which takes OTLP over gRPC.
    pub endpoint: &'a str,
    /// None: that of `OTEL_SERVICE_NAME`, or TGI's.
    pub service_name: Option<&'a str>,
    /// The name of the model in spans.
    pub model: &'a str,
    /// The shards trace every step of a request, and not some of its decodes.
    pub every_step: bool,
}

/// Says whether `endpoint` can be that of a collector. Needs a tokio runtime.
///
/// # Errors
/// As [`Tracer::start`].
pub fn check(endpoint: &str) -> anyhow::Result<()> {
    text_generation_traces::check(endpoint).map_err(refused)
}

fn refused(error: CollectorError) -> anyhow::Error {
    anyhow::anyhow!("`--otlp-endpoint` {error}")
}

/// Makes the spans of requests.
#[derive(Debug)]
pub struct Tracer {
    traces: Traces,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    model: Arc<str>,
    every_step: bool,
}

impl Tracer {
    /// Does not wait for the collector. Needs a tokio runtime, which keeps the connection, and the metrics recorder.
    ///
    /// # Errors
    /// When the address of the collector cannot be used.
    pub fn start(settings: Settings<'_>) -> anyhow::Result<Self> {
        let collector = Collector {
            endpoint: settings.endpoint,
            service_name: settings.service_name,
            default_name: DEFAULT_SERVICE_NAME,
        };
        let dropped = counter!(SPANS_DROPPED);
        let traces =
            Traces::to(collector, move |spans| dropped.increment(spans as u64)).map_err(refused)?;
        Ok(Self {
            tracer: traces.tracer("text-generation-router"),
            traces,
            propagator: TraceContextPropagator::new(),
            model: settings.model.into(),
            every_step: settings.every_step,
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

    /// Sends what waits, for at most two seconds. Nothing is sent after that.
    pub async fn shutdown(&self) {
        self.traces.shutdown().await;
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
