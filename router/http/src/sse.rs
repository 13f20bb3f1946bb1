//! Server-sent events: `data: <one line of JSON>`, an empty line, nothing else. Empty lines keep idle connections open.
//!
//! The body polls the generation directly: no task and no channel stand between a token and the socket. Events that
//! are ready together leave in one chunk. hyper asks for the next chunk only while its write buffer has room, so text
//! that a slow reader does not take is never written; its tokens wait as ids, at most `max_new_tokens` of them, and the
//! connection ends when it stalls (`server`).

use std::convert::Infallible;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use hyper::body::Frame;
use serde::Serialize;
use text_generation_core::error::InferError;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::bounds::EVENT_CHUNK_BYTES;
use crate::error::ApiError;
use crate::state::AnswerOptions;

/// What keeps an idle connection open: an empty line, which ends an event that has nothing in it, so that nobody is told
/// of it. A comment (`:`) would do as well for readers that follow the standard, but there are clients that strip each
/// read of its white space before they look for the empty line after an event: to them a comment is the beginning of
/// the event that follows, and hides it.
pub const KEEP_ALIVE: &[u8] = b"\n\n";

/// Framed events that wait to be sent.
#[derive(Debug, Default)]
pub struct EventBuffer(BytesMut);

impl EventBuffer {
    /// Appends one event with `value` as JSON.
    pub fn push(&mut self, value: &impl Serialize) {
        let start = self.0.len();
        self.0.put_slice(b"data: ");
        if serde_json::to_writer((&mut self.0).writer(), value).is_err() {
            // Our own types always serialise; half an event must not leave in any case.
            self.0.truncate(start);
            self.0.put_slice(
                br#"data: {"error":"Stream event serialization error","error_type":"stream_serialization_error"}"#,
            );
        }
        self.0.put_slice(b"\n\n");
    }

    /// Appends one event with a name, for the APIs whose clients read it.
    pub fn named(&mut self, name: &str, value: &impl Serialize) {
        self.0.put_slice(b"event: ");
        self.0.put_slice(name.as_bytes());
        self.0.put_slice(b"\n");
        self.push(value);
    }

    /// Appends bytes that the caller has framed, for encoders that write the constant parts of their events once.
    pub fn put(&mut self, framed: &[u8]) {
        self.0.put_slice(framed);
    }

    /// Appends `value` as JSON without a frame.
    pub fn put_json(&mut self, value: &impl Serialize) {
        let start = self.0.len();
        if serde_json::to_writer((&mut self.0).writer(), value).is_err() {
            // Our own types always serialise.
            self.0.truncate(start);
            self.0.put_slice(b"null");
        }
    }

    /// Takes what was written.
    pub fn take(&mut self) -> Bytes {
        self.0.split().freeze()
    }
}

/// Where what builds a whole answer out of events puts them. An answer that is not streamed needs none: `()` drops them.
pub trait Events {
    /// One event of the type `kind`.
    fn push(&mut self, kind: &'static str, event: &impl Serialize);
}

impl Events for EventBuffer {
    fn push(&mut self, kind: &'static str, event: &impl Serialize) {
        self.named(kind, event);
    }
}

impl Events for () {
    fn push(&mut self, _: &'static str, _: &impl Serialize) {}
}

/// How one API writes what is generated as events.
pub trait Encoder: Send + Unpin + 'static {
    /// What it writes: the events of one generation, or of several with their numbers.
    type Event;
    /// Writes what comes before everything else, as soon as the stream is there.
    fn begin(&mut self, _: &mut EventBuffer) {}
    /// Writes what the API sends for `event`, maybe nothing. Breaks with the last one.
    fn event(&mut self, event: Self::Event, out: &mut EventBuffer) -> ControlFlow<()>;
    /// Writes the failure that ends the stream.
    fn failure(&mut self, error: &InferError, out: &mut EventBuffer);
}

/// The answer that streams `generation`. One that could not start is a stream of one failure. `headers` are those of
/// [`headers::streaming`](crate::headers::streaming), and others that the API has.
pub fn response<S, E>(
    options: &AnswerOptions,
    headers: HeaderMap,
    generation: Result<S, InferError>,
    encoder: E,
) -> Response
where
    S: Stream<Item = Result<E::Event, InferError>> + Send + Unpin + 'static,
    E: Encoder,
{
    let body = EventBody::new(generation, encoder, options.sse_keep_alive);
    (headers, Body::new(body)).into_response()
}

/// As [`response`], once `generation` has an event: what fails before is an answer of its own, with its status. A client
/// that would hear nothing for longer than a stream may be silent gets its headers then, and a failure as an event.
///
/// # Errors
/// What ends the generation before its first event.
pub async fn begun<S, E>(
    options: &AnswerOptions,
    headers: HeaderMap,
    generation: S,
    encoder: E,
) -> Result<Response, ApiError>
where
    S: Stream<Item = Result<E::Event, InferError>> + Send + Unpin + 'static,
    E: Encoder<Event: Send>,
{
    let mut generation = generation.peekable();
    match timeout(options.sse_keep_alive, Pin::new(&mut generation).peek()).await {
        Ok(Some(Err(error))) => Err(error.clone().into()),
        Ok(None) => Err(InferError::IncompleteGenerationStream.into()),
        Ok(Some(Ok(_))) | Err(_) => Ok(response(options, headers, Ok(generation), encoder)),
    }
}

/// Dropping it, which hyper does when the client goes, drops and so cancels the generation.
#[derive(Debug)]
struct EventBody<S, E> {
    /// `None` once the last event is in `buffer`.
    generation: Option<S>,
    encoder: E,
    buffer: EventBuffer,
    /// [`KEEP_ALIVE`] is sent after this long without an event.
    idle: Duration,
    last_sent: Instant,
    keep_alive: Pin<Box<Sleep>>,
}

impl<S, E> EventBody<S, E>
where
    S: Stream<Item = Result<E::Event, InferError>> + Unpin,
    E: Encoder,
{
    fn new(generation: Result<S, InferError>, mut encoder: E, idle: Duration) -> Self {
        let mut buffer = EventBuffer::default();
        encoder.begin(&mut buffer);
        let generation = generation
            .inspect_err(|error| encoder.failure(error, &mut buffer))
            .ok();
        let now = Instant::now();
        Self {
            generation,
            encoder,
            buffer,
            idle,
            last_sent: now,
            keep_alive: Box::pin(sleep_until(now + idle)),
        }
    }

    /// Moves events that are ready into the buffer.
    fn fill(&mut self, context: &mut Context<'_>) {
        while self.buffer.0.len() < EVENT_CHUNK_BYTES {
            let Some(generation) = &mut self.generation else {
                return;
            };
            let Poll::Ready(event) = generation.poll_next_unpin(context) else {
                return;
            };
            let flow = match event.unwrap_or(Err(InferError::IncompleteGenerationStream)) {
                Ok(event) => self.encoder.event(event, &mut self.buffer),
                Err(error) => {
                    self.encoder.failure(&error, &mut self.buffer);
                    ControlFlow::Break(())
                }
            };
            if flow.is_break() {
                self.generation = None;
            }
        }
    }

    /// Whether a sign of life is due. The timer is moved only when it fires, not with every token.
    fn idle_too_long(&mut self, context: &mut Context<'_>) -> bool {
        while self.keep_alive.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let due = self.last_sent + self.idle;
            if due <= now {
                self.keep_alive.as_mut().reset(now + self.idle);
                return true;
            }
            self.keep_alive.as_mut().reset(due);
        }
        false
    }
}

impl<S, E> hyper::body::Body for EventBody<S, E>
where
    S: Stream<Item = Result<E::Event, InferError>> + Unpin,
    E: Encoder,
{
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        this.fill(context);
        if this.buffer.0.is_empty() {
            if this.generation.is_none() {
                return Poll::Ready(None);
            }
            if !this.idle_too_long(context) {
                return Poll::Pending;
            }
            this.buffer.0.put_slice(KEEP_ALIVE);
        }
        this.last_sent = Instant::now();
        Poll::Ready(Some(Ok(Frame::data(this.buffer.take()))))
    }

    fn is_end_stream(&self) -> bool {
        self.generation.is_none() && self.buffer.0.is_empty()
    }
}

#[cfg(test)]
mod tests;
