//! The body of an answer as its connection sends it, and its end when the peer takes nothing of it or has gone.
//!
//! HTTP/2 lets a peer keep its connection alive and yet take nothing of one stream: the connection asks the body for
//! nothing then, so the body cannot find out by itself. The connection loop looks after all of them (`server.rs`).
//!
//! A connection keeps what it was given until the peer has room for it. So it gets no more than a chunk at a time, and a
//! body of HTTP/2 ends only when the peer has taken all of it: until then it can be reset, and its memory is counted.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use futures::future::{AbortHandle, Abortable};
use futures::task::AtomicWaker;
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

use super::peer_io::Line;
use super::peers::{PendingAnswer, Request};
use crate::bounds::{ANSWER_MEMORY, EVENT_CHUNK_BYTES};
use crate::memory::{MemoryBudget, MemoryShare};
use crate::sse::KEEP_ALIVE;

tokio::task_local! {
    /// Ends the stream of HTTP/2 that this task sends, with a reset.
    static STREAM: AbortHandle;
}

/// Runs the streams of HTTP/2 connections, each of which can be ended from outside.
#[derive(Debug, Clone, Copy)]
pub struct StreamExecutor;

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (handle, registration) = AbortHandle::new_pair();
        tokio::spawn(STREAM.scope(handle, async move {
            // A stream that is dropped before its end is reset, and what waits for room is forgotten.
            drop(Abortable::new(stream, registration).await);
        }));
    }
}

/// What a connection sends. Dropping it ends the request.
#[derive(Debug)]
pub struct AnswerBody(Arc<Sending>);

/// An answer on its way, shared with the connection loop.
#[derive(Debug)]
pub struct Sending {
    state: Mutex<State>,
    /// None for HTTP/1, where a peer that takes nothing loses its connection.
    stream: Option<AbortHandle>,
}

#[derive(Debug)]
enum State {
    Open(Open),
    Ended,
    Stalled,
}

#[derive(Debug)]
struct Open {
    body: Body,
    /// What is left of the last frame of `body`.
    rest: Bytes,
    /// Chunks that the connection has; not counted for HTTP/1.
    given: Option<Arc<Given>>,
    /// Since when the peer has not taken what there is; nothing while it waits for us.
    owed_since: Option<Instant>,
    /// Set for a stream of events until its peer sends no more.
    line: Option<Arc<Line>>,
    _memory: Option<MemoryShare>,
    _request: Request,
}

impl AnswerBody {
    /// Counts the answer in `memory` until the peer has taken it. Of one that grows while it is sent, a chunk is counted:
    /// whoever makes the others counts them. `line` for a stream of events on a connection of its own.
    pub fn new(
        body: Body,
        request: Request,
        line: Option<Arc<Line>>,
        memory: Option<MemoryBudget>,
    ) -> Self {
        let stream = STREAM.try_with(AbortHandle::clone).ok();
        let size = body.size_hint().exact();
        let size = size.and_then(|size| usize::try_from(size).ok());
        let memory = memory.map(|memory| {
            let share = memory.share();
            share.hold_answer(size.unwrap_or(EVENT_CHUNK_BYTES) + ANSWER_MEMORY);
            share
        });
        let open = |request| {
            State::Open(Open {
                body,
                rest: Bytes::new(),
                given: stream.is_some().then(Arc::default),
                owed_since: Some(Instant::now()),
                line,
                _memory: memory,
                _request: request,
            })
        };
        Self(request.answer(|request| Sending {
            state: Mutex::new(open(request)),
            stream: stream.clone(),
        }))
    }
}

impl Sending {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingAnswer for Sending {
    fn end_if_stalled(&self, limit: Duration) {
        let mut state = self.lock();
        let State::Open(open) = &*state else {
            return;
        };
        if open
            .owed_since
            .is_some_and(|since| since.elapsed() >= limit)
        {
            tracing::debug!("a client takes nothing of its answer: its request is ended");
            *state = State::Stalled;
            self.stream.iter().for_each(AbortHandle::abort);
        }
    }
}

impl Open {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        while self.rest.is_empty() {
            let mut polled = Pin::new(&mut self.body).poll_frame(context);
            if polled.is_pending() && self.line.take_if(|line| line.has_ended()).is_some() {
                let empty = Frame::data(Bytes::from_static(KEEP_ALIVE));
                polled = Poll::Ready(Some(Ok(empty)));
            }
            self.owed_since = polled.is_ready().then(Instant::now);
            match ready!(polled) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => {
                    if let Some(given) = &self.given {
                        ready!(given.poll_taken(context));
                    }
                    return Poll::Ready(None);
                }
            }
        }
        self.owed_since = Some(Instant::now());
        let chunk = self.rest.split_to(self.rest.len().min(EVENT_CHUNK_BYTES));
        let chunk = match &self.given {
            Some(given) => given.count(chunk),
            None => chunk,
        };
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end(&self) -> bool {
        let taken = self.given.as_ref().is_none_or(|given| given.is_taken());
        taken && self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let of_body = self.body.size_hint();
        let mut hint = SizeHint::new();
        if let Some(most) = of_body.upper() {
            hint.set_upper(most.saturating_add(rest));
        }
        hint.set_lower(of_body.lower().saturating_add(rest));
        hint
    }
}

/// How many chunks of a body a connection has that the peer has not taken.
#[derive(Debug, Default)]
struct Given {
    chunks: AtomicUsize,
    taken: AtomicWaker,
}

/// A chunk, which the connection drops when it has sent it.
struct Chunk {
    bytes: Bytes,
    given: Arc<Given>,
}

impl Given {
    fn count(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.chunks.fetch_add(1, Ordering::AcqRel);
        let given = self.clone();
        Bytes::from_owner(Chunk { bytes, given })
    }

    fn is_taken(&self) -> bool {
        self.chunks.load(Ordering::Acquire) == 0
    }

    fn poll_taken(&self, context: &mut Context<'_>) -> Poll<()> {
        self.taken.register(context.waker());
        match self.is_taken() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if self.given.chunks.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.given.taken.wake();
        }
    }
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut state = self.0.lock();
        let polled = match &mut *state {
            State::Open(open) => open.poll_frame(context),
            State::Ended => return Poll::Ready(None),
            State::Stalled => return Poll::Ready(Some(Err("the client took nothing".into()))),
        };
        if matches!(polled, Poll::Ready(None)) {
            *state = State::Ended;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &*self.0.lock() {
            State::Open(open) => open.is_end(),
            State::Ended => true,
            State::Stalled => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &*self.0.lock() {
            State::Open(open) => open.size_hint(),
            State::Ended | State::Stalled => SizeHint::default(),
        }
    }
}
