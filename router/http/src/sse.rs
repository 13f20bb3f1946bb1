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
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use hyper::body::Frame;
use serde::Serialize;
use text_generation_core::error::InferError;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::bounds::EVENT_CHUNK_BYTES;
use crate::headers;
use crate::state::AnswerOptions;

/// What keeps an idle connection open: an empty line, which ends an event that has nothing in it, so that nobody is told
/// of it. A comment (`:`) would do as well for readers that follow the standard, but there are clients that strip each
/// read of its white space before they look for the empty line after an event: to them a comment is the beginning of
/// the event that follows, and hides it.
const KEEP_ALIVE: &[u8] = b"\n\n";

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

/// How one API writes what is generated as events.
pub trait Encoder: Send + Unpin + 'static {
    /// What it writes: the events of one generation, or of several with their numbers.
    type Event;
    /// Writes what the API sends for `event`, maybe nothing. Breaks with the last one.
    fn event(&mut self, event: Self::Event, out: &mut EventBuffer) -> ControlFlow<()>;
    /// Writes the failure that ends the stream.
    fn failure(&mut self, error: &InferError, out: &mut EventBuffer);
}

/// The answer that streams `generation`, whose prompts have so many characters. A generation that could not start is a stream of one failure.
pub fn response<S, E>(
    options: &AnswerOptions,
    characters: usize,
    generation: Result<S, InferError>,
    encoder: E,
) -> Response
where
    S: Stream<Item = Result<E::Event, InferError>> + Send + Unpin + 'static,
    E: Encoder,
{
    let headers = headers::streaming(&options.compute_type, characters);
    let body = EventBody::new(generation, encoder, options.sse_keep_alive);
    (headers, Body::new(body)).into_response()
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
mod tests {
    use futures::channel::mpsc;
    use hyper::body::Body as _;
    use text_generation_core::types::{StreamEvent, Token};

    use super::*;

    struct Plain;

    impl Encoder for Plain {
        type Event = StreamEvent;

        fn event(&mut self, event: StreamEvent, out: &mut EventBuffer) -> ControlFlow<()> {
            if let StreamEvent::Token { token, .. } = event {
                out.push(&token.text);
            }
            ControlFlow::Continue(())
        }

        fn failure(&mut self, error: &InferError, out: &mut EventBuffer) {
            out.push(&error.error_type());
        }
    }

    fn token(text: &str) -> Result<StreamEvent, InferError> {
        let token = Token {
            id: 0,
            text: text.to_owned(),
            logprob: None,
            special: false,
        };
        Ok(StreamEvent::Token {
            token,
            top_tokens: Vec::new(),
        })
    }

    async fn next<S>(body: &mut EventBody<S, Plain>) -> Option<Bytes>
    where
        S: Stream<Item = Result<StreamEvent, InferError>> + Unpin,
    {
        let frame = futures::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        frame.await.map(|frame| match frame {
            Ok(frame) => frame.into_data().unwrap_or_default(),
            Err(never) => match never {},
        })
    }

    #[tokio::test]
    async fn ready_events_share_a_chunk_and_a_lost_end_is_told() {
        let events = futures::stream::iter([token("a"), token("b\n")]);
        let mut body = EventBody::new(Ok(events), Plain, Duration::from_secs(15));
        let expected =
            "data: \"a\"\n\ndata: \"b\\n\"\n\ndata: \"incomplete_generation_stream\"\n\n";
        assert_eq!(next(&mut body).await, Some(Bytes::from(expected)));
        assert!(body.is_end_stream());
        assert_eq!(next(&mut body).await, None);
    }

    #[tokio::test]
    async fn chunks_are_bounded() {
        let long = "x".repeat(EVENT_CHUNK_BYTES / 2);
        let events = futures::stream::iter((0..10).map(move |_| token(&long)));
        let mut body = EventBody::new(Ok(events), Plain, Duration::from_secs(15));
        let chunk = next(&mut body).await.expect("a chunk");
        assert!(chunk.len() < 2 * EVENT_CHUNK_BYTES);
    }

    /// What a client makes of a stream that strips each read of its white space, passes over what is then empty, and
    /// takes a message to end at an empty line or where its JSON is whole. So does the one of vLLM's benchmark.
    fn as_stripped(reads: &[Bytes]) -> Vec<String> {
        let (mut buffer, mut messages) = (String::new(), Vec::new());
        for read in reads {
            buffer += String::from_utf8_lossy(read).trim();
            while let Some((message, rest)) = buffer.clone().split_once("\n\n") {
                messages.push(message.trim().to_owned());
                buffer = rest.to_owned();
            }
            let json = buffer.strip_prefix("data: ").unwrap_or_default();
            if serde_json::from_str::<serde_json::Value>(json).is_ok() {
                messages.push(std::mem::take(&mut buffer));
            }
        }
        messages
    }

    #[tokio::test]
    async fn clients_that_strip_each_read_lose_no_event_to_the_keep_alive() {
        let (events, generation) = mpsc::unbounded();
        let mut body = EventBody::new(Ok(generation), Plain, Duration::from_millis(2));
        let mut reads = Vec::new();
        for text in ["a", "b"] {
            for _ in 0..2 {
                reads.push(next(&mut body).await.expect("a sign of life"));
            }
            events.unbounded_send(token(text)).expect("an open stream");
            reads.push(next(&mut body).await.expect("an event"));
        }
        assert_eq!(as_stripped(&reads), [r#"data: "a""#, r#"data: "b""#]);
    }

    #[tokio::test]
    async fn idle_streams_are_kept_alive_and_go_on() {
        let (events, generation) = mpsc::unbounded();
        let mut body = EventBody::new(Ok(generation), Plain, Duration::from_millis(2));
        for _ in 0..2 {
            assert_eq!(next(&mut body).await, Some(Bytes::from("\n\n")));
        }
        events.unbounded_send(token("a")).expect("an open stream");
        assert_eq!(next(&mut body).await, Some(Bytes::from("data: \"a\"\n\n")));
    }
}
