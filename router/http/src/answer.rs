//! The body of an answer as its connection sends it, and its end when the peer takes nothing of it or has gone.
//!
//! HTTP/2 lets a peer keep its connection alive and yet take nothing of one stream: the connection asks the body for
//! nothing then, so the body cannot find out by itself. The connection loop looks after all of them (`server`).

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

use crate::connections::Request;
use crate::peer_io::Line;
use crate::sse::KEEP_ALIVE;

/// What a connection sends. Dropping it ends the request.
#[derive(Debug)]
pub struct AnswerBody(Arc<Sending>);

/// An answer on its way, shared with the connection loop.
#[derive(Debug)]
pub struct Sending(Mutex<State>);

#[derive(Debug)]
enum State {
    Open {
        body: Body,
        /// Since when the peer has not taken what there is; nothing while it waits for us.
        owed_since: Option<Instant>,
        /// Set for a stream of events until its peer sends no more.
        line: Option<Arc<Line>>,
        _request: Request,
    },
    Ended,
    Stalled,
}

impl AnswerBody {
    /// `line` for a stream of events on a connection of its own.
    pub fn new(body: Body, request: Request, line: Option<Arc<Line>>) -> Self {
        let open = |request| State::Open {
            body,
            owed_since: Some(Instant::now()),
            line,
            _request: request,
        };
        Self(request.answer(|request| Sending(Mutex::new(open(request)))))
    }
}

impl Sending {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what the peer has not taken for `limit`, and with it the generation behind it.
    pub fn end_if_stalled(&self, limit: Duration) {
        let mut state = self.lock();
        if let State::Open {
            owed_since: Some(since),
            ..
        } = &*state
            && since.elapsed() >= limit
        {
            tracing::debug!("a client takes nothing of its answer: its request is ended");
            *state = State::Stalled;
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
            State::Open {
                body,
                owed_since,
                line,
                ..
            } => {
                let mut polled = Pin::new(body).poll_frame(context);
                if polled.is_pending() && line.take_if(|line| line.has_ended()).is_some() {
                    let empty = Frame::data(Bytes::from_static(KEEP_ALIVE));
                    polled = Poll::Ready(Some(Ok(empty)));
                }
                *owed_since = polled.is_ready().then(Instant::now);
                polled
            }
            State::Ended => return Poll::Ready(None),
            State::Stalled => return Poll::Ready(Some(Err("the client took nothing".into()))),
        };
        if matches!(polled, Poll::Ready(None)) {
            *state = State::Ended;
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match &*self.0.lock() {
            State::Open { body, .. } => body.is_end_stream(),
            State::Ended => true,
            State::Stalled => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &*self.0.lock() {
            State::Open { body, .. } => body.size_hint(),
            State::Ended | State::Stalled => SizeHint::default(),
        }
    }
}
