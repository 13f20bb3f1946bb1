//! The span of one request of a client, from its headers to the last byte of its answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::Request;
use axum::http::header;
use axum::response::Response;
use opentelemetry::trace::{SpanContext, SpanId};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, SpanFlags, Status};
use text_generation_client::types::TraceLink;
use text_generation_core::observer::{GenerationRecord, Observed, Observer, Outcome};
use text_generation_core::types::GenerateParameters;
use tokio::time::Instant;
use tower_http::request_id::RequestId;

use super::attributes::{attribute, text};
use super::{Tracer, attributes};
use crate::error::ApiError;
use crate::timings::request_id;

/// About as many as a span has.
const ATTRIBUTES: usize = 32;

/// Everybody who works on the request holds it: its handler, and the streams of its generations. When the last lets go, the
/// request has ended and its spans are written.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    tracer: Arc<Tracer>,
    name: String,
    place: Place,
    /// The same moment on both clocks, the second since 1970.
    began: (Instant, Duration),
    told: Mutex<Told>,
}

/// Where a span is among all traces.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) own: SpanContext,
    /// Invalid where the client traces nothing.
    pub(super) parent: SpanContext,
}

/// What was told of the request so far.
#[derive(Debug, Default)]
struct Told {
    attributes: Vec<KeyValue>,
    generations: Vec<GenerationRecord>,
    /// The handler has answered.
    answered: bool,
    failure: Option<Failure>,
}

/// Why there is no good answer.
#[derive(Debug, Clone, Copy)]
struct Failure {
    error_type: &'static str,
    /// Not the client's doing.
    is_ours: bool,
}

impl RequestSpan {
    /// Begins now. `name` and `route` are those of `request`.
    pub(super) fn new(
        tracer: Arc<Tracer>,
        name: String,
        place: Place,
        request: &Request,
        route: &str,
    ) -> Self {
        let mut attributes = Vec::with_capacity(ATTRIBUTES);
        attributes.extend(attributes::of_request(route, &tracer.model));
        if let Some(id) = request.extensions().get::<RequestId>() {
            attributes.push(attribute("gen_ai.request.id", text(request_id(id))));
        }
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            tracer,
            name,
            place,
            began: (Instant::now(), wall.unwrap_or_default()),
            told: Mutex::new(Told {
                attributes,
                ..Told::default()
            }),
        }
    }

    fn tell(&self, what: impl FnOnce(&mut Told)) {
        what(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The request asks for this; whoever generates tells the span.
    pub(crate) fn follow(self: Arc<Self>, parameters: &mut GenerateParameters) {
        let asked = attributes::of_parameters(parameters);
        self.tell(|told| told.attributes.extend(asked));
        parameters.observed = Observed::by(self);
    }

    /// The answer is an error.
    pub(crate) fn failed(&self, error: &ApiError) {
        let failure = Failure {
            error_type: error.body.error_type,
            is_ours: !error.is_refusal(),
        };
        self.tell(|told| told.failure = Some(failure));
    }

    /// The answer, of which the body may still have to come.
    pub(super) fn answered(&self, response: &Response) {
        let status = i64::from(response.status().as_u16());
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let streams = content_type.is_some_and(|kind| kind == "text/event-stream");
        self.tell(|told| {
            told.answered = true;
            let status = Value::IntValue(status);
            told.attributes
                .push(attribute("http.response.status_code", status));
            if streams {
                let streams = Value::BoolValue(true);
                told.attributes
                    .push(attribute("gen_ai.request.stream", streams));
            }
        });
    }

    /// Nanoseconds since 1970.
    fn on_wall_clock(&self, instant: Instant) -> u64 {
        let (began, wall) = self.began;
        let since = wall + instant.saturating_duration_since(began);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// A span of this trace, below `parent`.
    fn span(&self, name: &str, id: SpanId, parent: &SpanContext, times: [Instant; 2]) -> Span {
        let own = &self.place.own;
        let [from, to] = times.map(|instant| self.on_wall_clock(instant));
        let mut flags =
            u32::from(own.trace_flags().to_u8()) | SpanFlags::ContextHasIsRemoteMask as u32;
        if parent.is_remote() {
            flags |= SpanFlags::ContextIsRemoteMask as u32;
        }
        Span {
            trace_id: own.trace_id().to_bytes().to_vec(),
            span_id: id.to_bytes().to_vec(),
            parent_span_id: match parent.is_valid() {
                true => parent.span_id().to_bytes().to_vec(),
                false => Vec::new(),
            },
            trace_state: own.trace_state().header(),
            flags,
            name: name.to_owned(),
            kind: SpanKind::Internal as i32,
            start_time_unix_nano: from,
            end_time_unix_nano: to,
            ..Span::default()
        }
    }

    /// Where the time of a generation went.
    fn phases(&self, generation: &GenerationRecord, of_many: bool) -> impl Iterator<Item = Span> {
        let index = Value::IntValue(generation.index.into());
        let attributes = of_many.then(|| attribute("tgi.generation.index", index));
        phases(generation).map(move |(name, from, to)| Span {
            attributes: attributes.iter().cloned().collect(),
            ..self.span(name, self.tracer.new_span_id(), &self.place.own, [from, to])
        })
    }

    /// The span of the whole request, which ends now.
    fn root(&self, told: Told) -> Span {
        let failure = told.failure();
        let mut attributes = told.attributes;
        attributes.extend(attributes::of_generations(&told.generations));
        let error_type = failure.map(|failure| attribute("error.type", text(failure.error_type)));
        attributes.extend(error_type);
        let ours = failure.filter(|failure| failure.is_ours);
        let own = &self.place.own;
        let times = [self.began.0, Instant::now()];
        Span {
            kind: SpanKind::Server as i32,
            attributes,
            status: ours.map(|failure| Status {
                code: StatusCode::Error as i32,
                message: failure.error_type.to_owned(),
            }),
            ..self.span(&self.name, own.span_id(), &self.place.parent, times)
        }
    }
}

/// Names and instants of what a generation came through.
fn phases(generation: &GenerationRecord) -> impl Iterator<Item = (&'static str, Instant, Instant)> {
    let (queued, started) = (generation.instants.queued, generation.instants.started);
    let ended = generation.ended;
    let has_started = generation.first_token.is_some() || started > queued;
    let left_queue = if has_started { started } else { ended };
    let first = generation.first_token;
    [
        Some(("queue", queued, left_queue)),
        has_started.then(|| ("prefill", started, first.unwrap_or(ended))),
        first.map(|first| ("decode", first, ended)),
    ]
    .into_iter()
    .flatten()
}

impl Observer for RequestSpan {
    fn ended(&self, generation: GenerationRecord) {
        self.tell(|told| told.generations.push(generation));
    }

    fn trace_link(&self) -> Option<TraceLink> {
        let own = &self.place.own;
        self.tracer.trace_steps.then(|| TraceLink {
            trace_id: own.trace_id().to_bytes(),
            span_id: own.span_id().to_bytes(),
        })
    }
}

impl Told {
    /// The first reason why the client has no whole answer.
    fn failure(&self) -> Option<Failure> {
        let outcomes = || self.generations.iter().map(|generation| generation.outcome);
        let failed = outcomes().find_map(|outcome| match outcome {
            Outcome::Failed(error_type) => Some(Failure {
                error_type,
                is_ours: true,
            }),
            _ => None,
        });
        let gone = !self.answered || outcomes().any(|outcome| outcome == Outcome::Dropped);
        let gone = gone.then_some(Failure {
            error_type: "dropped",
            is_ours: false,
        });
        self.failure.or(failed).or(gone)
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        let told = self.told.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut told = std::mem::take(told);
        told.generations.sort_by_key(|generation| generation.index);
        let of_many = told.generations.len() > 1;
        let mut spans = Vec::with_capacity(1 + 3 * told.generations.len());
        for generation in &told.generations {
            spans.extend(self.phases(generation, of_many));
        }
        spans.push(self.root(told));
        self.tracer.export.push(spans);
    }
}
