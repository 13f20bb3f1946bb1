//! The connection loop: limits on what a peer may do, and an orderly end.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use crate::bounds::{
    HEADER_TIMEOUT, HTTP2_KEEP_ALIVE, HTTP2_MAX_PENDING_RESETS, HTTP2_MAX_STREAMS, MAX_HEAD_BYTES,
    MAX_HEADERS,
};
use crate::routes;
use crate::state::AppState;

/// Histograms keep single values until they are sorted into buckets, which happens here or when the page is read.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);
/// After a failed accept, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the loop allows.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Connections at once; the next is told to come back and closed.
    pub connections: usize,
    /// For the head of a request, and for a connection without one.
    pub header: Duration,
    /// For a peer to take in anything, while there is something to send. Then its connection ends, and with it its
    /// requests: what a reader that stalls is owed must not be kept for it. A peer that is gone without a word is
    /// found out in the same time, also when there is nothing to send.
    pub write: Duration,
    /// For running requests to finish after the order to stop.
    pub graceful: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            header: HEADER_TIMEOUT,
            write: Duration::from_secs(60),
            graceful: Duration::from_secs(90),
        }
    }
}

/// Serves until `stop` resolves and running requests have finished, or `limits.graceful` is over.
///
/// While requests finish, new connections are still accepted and new requests get 503, so that a load balancer sees
/// an answer and not a refused connection.
pub async fn serve(
    listener: TcpListener,
    state: Arc<AppState>,
    limits: ServerLimits,
    stop: impl Future<Output = ()>,
) {
    let router = routes::router(state.clone());
    let builder = Arc::new(connection_builder(limits.header));
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut drained = pin!(drain(stop, &state, limits.graceful));
    let mut upkeep = interval(METRICS_UPKEEP);
    upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let deadline = loop {
        tokio::select! {
            deadline = &mut drained => break deadline,
            _ = upkeep.tick() => state.metrics.run_upkeep(),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let Ok(place) = places.clone().try_acquire_owned() else {
                        turn_away(&stream);
                        continue;
                    };
                    let connection = Connection {
                        stream,
                        router: router.clone(),
                        builder: builder.clone(),
                        watcher: graceful.watcher(),
                        _place: place,
                    };
                    tokio::spawn(connection.run(limits));
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    };
    drop(listener);
    let open = graceful.count();
    if timeout_at(deadline, graceful.shutdown()).await.is_err() {
        tracing::warn!(
            "stopped with up to {open} connections still open: the graceful termination timeout is over"
        );
    }
}

/// Waits for the order to stop and then for the running requests. Returns when connections must be closed.
async fn drain(stop: impl Future<Output = ()>, state: &AppState, graceful: Duration) -> Instant {
    stop.await;
    let deadline = Instant::now() + graceful;
    tracing::info!(
        "stopping: running requests have {} s to finish",
        graceful.as_secs()
    );
    state.stop();
    // Requests that are still running at the deadline lose their connection.
    let _ = timeout_at(deadline, state.infer.drained()).await;
    deadline
}

fn connection_builder(header_timeout: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES as usize)
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
    builder: Arc<Builder<TokioExecutor>>,
    watcher: Watcher,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, limits: ServerLimits) {
        if let Err(error) = prepare(&self.stream, limits.write) {
            tracing::debug!("cannot set the options of a connection: {error}");
        }
        let requested = Arc::new(AtomicBool::new(false));
        let (router, seen) = (self.router, requested.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            seen.store(true, Ordering::Relaxed);
            router.clone().oneshot(request)
        });
        let mut stream = TimeoutStream::new(self.stream);
        stream.set_write_timeout(Some(limits.write));
        let connection = self
            .builder
            .serve_connection(TokioIo::new(Box::pin(stream)), service)
            .into_owned();
        let mut connection = pin!(self.watcher.watch(connection));
        // The builder's timers start once it knows the protocol; a silent peer never tells.
        let ended = match timeout(limits.header, &mut connection).await {
            Ok(ended) => ended,
            Err(_) if requested.load(Ordering::Relaxed) => connection.await,
            Err(_) => return,
        };
        if let Err(error) = ended {
            tracing::debug!("connection ended: {error}");
        }
    }
}
