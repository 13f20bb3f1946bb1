//! Requests that are answered before their bodies were read.
//!
//! hyper closes a connection of HTTP/1 after such an answer, because what comes next on it may be the rest of the body. A
//! client that is not told sends its next request there and gets no answer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::Request;
use axum::http::Version;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::headers;

/// Adds `Connection: close` to an answer that came before the end of its request's body was read.
pub async fn announce_close(request: Request, next: Next) -> Response {
    if request.version() > Version::HTTP_11 || hyper::body::Body::is_end_stream(request.body()) {
        return next.run(request).await;
    }
    let was_read = Arc::new(AtomicBool::new(false));
    let request = request.map(|body| {
        Body::new(WatchedBody {
            body,
            was_read: was_read.clone(),
        })
    });
    let mut response = next.run(request).await;
    if !was_read.load(Ordering::Relaxed) {
        headers::close_after(&mut response);
    }
    response
}

/// Notes when its end was read.
struct WatchedBody {
    body: Body,
    was_read: Arc<AtomicBool>,
}

impl hyper::body::Body for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.is_end_stream() {
            self.was_read.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
