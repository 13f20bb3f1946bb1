//! The span of one request of a client, from its headers to the last byte of its answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use axum::extract::{MatchedPath, Request};
use axum::http::header;
use axum::response::Response;
use opentelemetry::trace::{Span as _, Status, TraceContextExt, Tracer as _};
use opentelemetry::{Context, KeyValue};
use text_generation_client::types::TraceLink;
use text_generation_core::types::GenerateParameters;
use text_generation_core::types::observer::{GenerationRecord, Observed, Observer, Outcome};
use tokio::time::Instant;
use tower_http::request_id::RequestId;

use super::{Tracer, attributes};
use crate::error::ApiError;
use crate::timings::request_id;

/// Everybody who works on the request holds it: its handler, and the streams of its generations. When the last lets go, the
/// request has ended and its spans are written.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    tracer: Arc<Tracer>,
    /// Holds the server span.
    context: Context,
    /// The same moment on both clocks.
    began: (Instant, SystemTime),
    told: Mutex<Told>,
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
    /// `context` holds the span that was begun for it.
    pub(super) fn new(
        tracer: Arc<Tracer>,
        context: Context,
        request: &Request,
        route: &MatchedPath,
    ) -> Self {
        let mut attributes =
            attributes::of_request(request.method(), route.as_str(), &tracer.model);
        if let Some(id) = request.extensions().get::<RequestId>() {
            attributes.push(KeyValue::new(
                "gen_ai.request.id",
                request_id(id).to_owned(),
            ));
        }
        Self {
            tracer,
            context,
            began: (Instant::now(), SystemTime::now()),
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
            let status = KeyValue::new("http.response.status_code", status);
            told.attributes.push(status);
            if streams {
                told.attributes
                    .push(KeyValue::new("gen_ai.request.stream", true));
            }
        });
    }

    fn on_wall_clock(&self, instant: Instant) -> SystemTime {
        let (began, wall) = self.began;
        wall + instant.saturating_duration_since(began)
    }

    /// Where the time of a generation went.
    fn write_phases(&self, generation: &GenerationRecord, of_many: bool) {
        for (name, from, to) in phases(generation) {
            let mut span = self
                .tracer
                .tracer
                .span_builder(name)
                .with_start_time(self.on_wall_clock(from))
                .start_with_context(&self.tracer.tracer, &self.context);
            if of_many {
                let index = i64::from(generation.index);
                span.set_attribute(KeyValue::new("tgi.generation.index", index));
            }
            span.end_with_timestamp(self.on_wall_clock(to));
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
        let span = self.context.span();
        let context = span.span_context();
        context.is_sampled().then(|| TraceLink {
            trace_id: context.trace_id().to_bytes(),
            span_id: context.span_id().to_bytes(),
            every_step: self.tracer.every_step,
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
        for generation in &told.generations {
            self.write_phases(generation, of_many);
        }
        let failure = told.failure();
        let span = self.context.span();
        span.set_attributes(told.attributes);
        span.set_attributes(attributes::of_generations(&told.generations));
        if let Some(Failure {
            error_type,
            is_ours,
        }) = failure
        {
            span.set_attribute(KeyValue::new("error.type", error_type));
            if is_ours {
                span.set_status(Status::error(error_type));
            }
        }
        span.end_with_timestamp(self.on_wall_clock(Instant::now()));
    }
}
