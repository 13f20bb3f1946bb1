//! Takes connections in and answers their requests, within limits on what a peer may do.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Version;
use axum::response::{IntoResponse, Response};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::answer::{AnswerBody, StreamExecutor};
use super::limits::ServerLimits;
use super::peer_io::{Line, PeerIo};
use super::peers::{Connections, Order, Peer, Place};
use crate::access::is_probe;
use crate::bounds::{
    HTTP2_KEEP_ALIVE, HTTP2_MAX_PENDING_RESETS, HTTP2_MAX_STREAMS, MAX_HEAD_BYTES, MAX_HEADERS,
};
use crate::error::ApiError;
use crate::headers;
use crate::memory::MemoryBudget;
use crate::metrics::http_error;

/// After a failed accept, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The same, for a connection to close.
const EVICT_PAUSE: Duration = Duration::from_millis(1);
/// Failed accepts in between are not logged.
const ACCEPT_WARNING: Duration = Duration::from_secs(10);

/// Takes connections in for one set of routes.
pub struct Acceptor {
    router: Router,
    builder: Arc<Builder<StreamExecutor>>,
    pub connections: Arc<Connections>,
    limits: ServerLimits,
    leaving: CancellationToken,
}

impl Acceptor {
    /// Once `leaving` is cancelled, every answer says that the next request should go elsewhere.
    pub fn new(router: Router, limits: ServerLimits, leaving: CancellationToken) -> Self {
        Self {
            router,
            builder: Arc::new(connection_builder(limits.header)),
            connections: Connections::new(limits.connections, limits.probes),
            limits,
            leaving,
        }
    }

    /// Serves connections of `listener`, and ends those that are over time, until it is dropped.
    pub async fn run(&self, listener: &TcpListener) -> Infallible {
        tokio::select! {
            never = self.accept_all(listener) => never,
            never = watch(&self.connections, self.limits) => never,
        }
    }

    async fn accept_all(&self, listener: &TcpListener) -> Infallible {
        let mut warned: Option<Instant> = None;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.accept(stream),
                Err(error) => {
                    if warned.is_none_or(|at| at.elapsed() >= ACCEPT_WARNING) {
                        warned = Some(Instant::now());
                        tracing::warn!("cannot accept a connection: {error}");
                    }
                    // Its file is what the next connection needs.
                    let evicted = self.connections.evict(self.limits.idle);
                    sleep(if evicted { EVICT_PAUSE } else { ACCEPT_PAUSE }).await;
                }
            }
        }
    }

    /// Closes the port. Takes in what has connected before: a peer that the kernel has greeted may have sent its request,
    /// and would be reset.
    ///
    /// # Errors
    /// When the system refuses; then those peers are reset.
    pub fn close(&self, listener: TcpListener) -> io::Result<()> {
        let listener = listener.into_std()?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    self.accept(TcpStream::from_std(stream)?);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn accept(&self, stream: TcpStream) {
        let Some(place) = self.connections.admit(self.limits.idle) else {
            return turn_away(&stream);
        };
        let connection = Connection {
            stream,
            router: self.router.clone(),
            builder: self.builder.clone(),
            leaving: self.leaving.clone(),
            place,
        };
        tokio::spawn(connection.run(self.limits));
    }
}

/// Ends connections without a request, and answers that nobody takes, when their time is over.
pub async fn watch(connections: &Connections, limits: ServerLimits) -> Infallible {
    let mut ticks = interval(limits.tick());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        connections.order(Order::Finish, Some(limits.header));
        connections.order(Order::Close, Some(limits.header + limits.idle));
        connections.end_stalled(limits.write);
    }
}

fn connection_builder(header_timeout: Duration) -> Builder<StreamExecutor> {
    let mut builder = Builder::new(StreamExecutor);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES as usize)
        // `Line` finds out which peers have gone.
        .half_close(true)
        // A frame of a stream is small: copying it costs no more than a vectored write of its three parts, and on few
        // cores clearly less (benchmark/results/router-streaming.json).
        .writev(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_MAX_STREAMS)
        .max_pending_accept_reset_streams(HTTP2_MAX_PENDING_RESETS)
        .max_header_list_size(MAX_HEAD_BYTES)
        .keep_alive_interval(HTTP2_KEEP_ALIVE)
        .keep_alive_timeout(HTTP2_KEEP_ALIVE);
    builder
}

/// Answers a connection that has no place, if the answer can leave at once.
fn turn_away(stream: &TcpStream) {
    const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
        connection: close\r\ncontent-length: 93\r\n\r\n\
        {\"error\":\"too many connections: see `--max-connections`\",\"error_type\":\"too_many_connections\"}";
    let error = ApiError::too_many_connections();
    http_error(error.status, error.body.error_type);
    if stream.try_write(ANSWER).is_err() {
        tracing::debug!("a connection over the limit was closed without an answer");
    }
}

/// Sets what the kernel does for a connection. Tokens are small and must not wait for each other.
///
/// A peer whose host is gone closes nothing. It also acknowledges nothing, neither data nor the probes that are sent
/// while there is no data: when nothing was heard for `silence`, the connection ends, and with it its requests.
fn prepare(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    // The kernel takes whole seconds.
    let seconds = |time: Duration| time.clamp(Duration::from_secs(1), Duration::from_secs(30));
    let probes = TcpKeepalive::new()
        .with_time(seconds(silence / 2))
        .with_interval(seconds(silence / 6));
    socket.set_tcp_keepalive(&probes)?;
    // It also bounds the probes, in place of their number.
    socket.set_tcp_user_timeout(Some(silence))
}

struct Connection {
    stream: TcpStream,
    router: Router,
    builder: Arc<Builder<StreamExecutor>>,
    leaving: CancellationToken,
    place: Place,
}

impl Connection {
    async fn run(self, limits: ServerLimits) {
        if let Err(error) = prepare(&self.stream, limits.write) {
            tracing::debug!("cannot set the options of a connection: {error}");
        }
        let mut place = self.place;
        let peer = place.peer.clone();
        let line = Arc::new(Line::new(self.stream));
        let mut stream = TimeoutStream::new(PeerIo::new(line.clone(), peer.clone()));
        stream.set_write_timeout(Some(limits.write));
        let (router, leaving) = (self.router, self.leaving);
        let asked = line.clone();
        let service = service_fn(move |request| {
            let (router, peer) = (router.clone(), peer.clone());
            answer(router, peer, asked.clone(), leaving.clone(), request)
        });
        let connection = self
            .builder
            .serve_connection(TokioIo::new(Box::pin(stream)), service)
            .into_owned();
        let mut connection = pin!(connection);
        let mut gone = pin!(line.gone());
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut connection => break ended,
                order = place.next_order() => match order {
                    Order::Serve => {}
                    Order::Finish => connection.as_mut().graceful_shutdown(),
                    Order::Close => return,
                },
                () = &mut gone => return,
            }
        };
        if let Err(error) = ended {
            tracing::debug!("connection ended: {error}");
        }
    }
}

/// Answers one request of `peer`, which is at work until it has taken the whole answer.
async fn answer(
    router: Router,
    peer: Arc<Peer>,
    line: Arc<Line>,
    leaving: CancellationToken,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible> {
    let running = peer.request();
    let version = request.version();
    let line = (version < Version::HTTP_2).then_some(line);
    let making = line.as_ref().map(|line| line.answering());
    let mut response = if peer.probes_only && !is_probe(request.method(), request.uri().path()) {
        refusal()
    } else {
        router.oneshot(request.map(Body::new)).await?
    };
    drop(making);
    if leaving.is_cancelled() {
        // Closed without a word, the connection could be in the middle of getting its next request.
        match version {
            // GOAWAY: streams that the peer has opened are served.
            Version::HTTP_2 => peer.order(Order::Finish),
            _ => headers::close_after(&mut response),
        }
    }
    let line = line.filter(|_| headers::is_stream(&response));
    let memory = response.extensions_mut().remove::<MemoryBudget>();
    Ok(response.map(|body| AnswerBody::new(body, running, line, memory)))
}

/// For a connection that came when every place was taken.
fn refusal() -> Response {
    let error = ApiError::too_many_connections();
    http_error(error.status, error.body.error_type);
    let mut response = error.into_response();
    headers::close_after(&mut response);
    response
}
