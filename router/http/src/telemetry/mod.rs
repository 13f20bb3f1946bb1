//! Traces of requests for an OpenTelemetry collector: one server span a request, with its queue, prefill and decode below
//! it, all written at the end of the request, so that a token costs nothing.
//!
//! The trace of the client is gone on with (W3C Trace Context), and which requests are traced follows
//! `OTEL_TRACES_SAMPLER`. No text of a request or answer and no key is in a span.

mod attributes;
mod collector;
mod environment;
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
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags};
use opentelemetry::{Context, Key, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource as Server;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Config, SamplingDecision};
use tokio::task_local;

use self::export::Export;
pub use self::export::SPANS_DROPPED;
use self::request::{Place, RequestSpan};

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

/// Makes the spans of requests. The library decides which requests are traced and makes the ids; spans are written in the
/// collector's own types, because those of the library are copied several times before they are sent.
#[derive(Debug)]
pub struct Tracer {
    /// The sampler and the ids, as the environment wants them.
    config: Config,
    propagator: TraceContextPropagator,
    export: Export,
    model: Arc<str>,
    trace_steps: bool,
}

impl Tracer {
    /// Does not wait for the collector. Needs the metrics recorder.
    ///
    /// # Errors
    /// When the address of the collector cannot be used.
    pub fn start(settings: Settings<'_>) -> anyhow::Result<Self> {
        let endpoint = settings.endpoint;
        anyhow::ensure!(
            endpoint.starts_with("http://"),
            "`--otlp-endpoint` must be an address such as http://localhost:4317; TLS is not supported. Given: {endpoint}"
        );
        let attributes = ResourceAttributesWithSchema::from(&resource(settings.service_name));
        let server = Server {
            attributes: attributes.attributes.0,
            ..Server::default()
        };
        Ok(Self {
            config: Config::default(),
            propagator: TraceContextPropagator::new(),
            export: Export::to(endpoint, server)
                .with_context(|| format!("`--otlp-endpoint {endpoint}` cannot be used"))?,
            model: settings.model.into(),
            trace_steps: settings.trace_steps,
        })
    }

    /// The span of a request; none of one that is not sampled, nor of probes and pages.
    fn begin(self: &Arc<Self>, request: &Request) -> Option<Arc<RequestSpan>> {
        if request.method() != Method::POST {
            return None;
        }
        let route = request.extensions().get::<MatchedPath>()?.as_str();
        let name = format!("POST {route}");
        let headers = Headers(request.headers());
        let context = Context::new();
        let context = self.propagator.extract_with_context(&context, &headers);
        let place = self.place(&context, &name)?;
        let span = RequestSpan::new(self.clone(), name, place, request, route);
        Some(Arc::new(span))
    }

    /// The place of a server span below the client's, which `context` holds if there is one; none where the sampler wants
    /// none.
    fn place(&self, context: &Context, name: &str) -> Option<Place> {
        let parent = context.span().span_context().clone();
        let trace_id = match parent.is_valid() {
            true => parent.trace_id(),
            false => self.config.id_generator.new_trace_id(),
        };
        let sampled = self.config.sampler.should_sample(
            Some(context),
            trace_id,
            name,
            &SpanKind::Server,
            &[],
            &[],
        );
        (sampled.decision == SamplingDecision::RecordAndSample).then(|| Place {
            own: SpanContext::new(
                trace_id,
                self.new_span_id(),
                TraceFlags::SAMPLED,
                false,
                sampled.trace_state,
            ),
            parent,
        })
    }

    fn new_span_id(&self) -> SpanId {
        self.config.id_generator.new_span_id()
    }

    /// Sends what waits, for at most [`FLUSH_LIMIT`]. Nothing is sent after that.
    pub async fn shutdown(&self) {
        self.export.end(FLUSH_LIMIT).await;
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
