//! The management port, for probes and metrics from the first second on: what the server is doing while it starts.
//!
//! The router inherits the listening socket and answers there once it serves. No connection is refused in between, and
//! the launcher answers those that it has accepted.

mod handover;

use std::future::IntoFuture;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::handover::UntilHandover;
use crate::error::LauncherError;
use crate::logs::Progress;
use crate::plan::ProcessSpec;
use crate::process::Process;

/// What a server does before it can answer, or where it is stopped before it could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Downloading,
    Loading,
    WarmingUp,
    /// The shards of this node serve a router on another one.
    ServingNode0,
    /// What was started ends.
    Stopping,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::Loading => "loading",
            Self::WarmingUp => "warming up",
            Self::ServingNode0 => "serving node 0",
            Self::Stopping => "stopping",
        }
    }
}

/// What the server does, and who says how far it has come.
#[derive(Debug)]
struct Start {
    phase: Phase,
    began: Instant,
    progress: Vec<watch::Receiver<Option<Progress>>>,
}

impl Start {
    /// How much of the phase is done, as the slowest process says, where one has said something.
    fn percent(&self) -> Option<u64> {
        let told = self.progress.iter().filter_map(|told| {
            let told = told.borrow();
            let progress = told.as_ref()?;
            (progress.phase == self.phase.name()).then_some(progress.percent)
        });
        told.min()
    }
}

/// The open port. Dropping it hands it over to the router, where there is one: this process accepts no more connections,
/// and answers those that it has accepted.
#[derive(Debug)]
pub struct ManagementPort {
    listener: TcpListener,
    start: watch::Sender<Start>,
    handover: CancellationToken,
}

impl ManagementPort {
    /// Listens on `address` and answers there, on the current runtime.
    pub fn open(address: SocketAddr) -> Result<Self, LauncherError> {
        let opened = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let accepting = tokio::net::TcpListener::from_std(listener.try_clone()?)?;
            io::Result::Ok((listener, accepting))
        };
        let (listener, accepting) =
            opened().map_err(|source| LauncherError::ManagementAddress { address, source })?;
        let (start, current) = watch::channel(Start {
            phase: Phase::Downloading,
            began: Instant::now(),
            progress: Vec::new(),
        });
        let handover = CancellationToken::new();
        let accepting = UntilHandover::new(accepting, handover.clone());
        let serving = axum::serve(accepting, routes(current)).into_future();
        let over = handover::over(handover.clone());
        tokio::spawn(async move {
            tokio::select! {
                served = serving => if let Err(error) = served {
                    tracing::warn!("the port for probes and metrics failed: {error}");
                },
                () = over => {}
            }
        });
        Ok(Self {
            listener,
            start,
            handover,
        })
    }

    /// From now on this is what the server does.
    pub fn enter(&self, phase: Phase) {
        self.start.send_modify(|start| {
            start.phase = phase;
            start.began = Instant::now();
        });
    }

    /// From now on these processes say how far it has come.
    pub fn follow<'a>(&self, processes: impl IntoIterator<Item = &'a Process>) {
        let progress = processes.into_iter().map(Process::progress).collect();
        self.start.send_modify(|start| start.progress = progress);
    }

    /// Lets a process that is to be started listen too. It learns of the socket as systemd would tell it.
    pub fn share(&self, spec: &mut ProcessSpec) -> io::Result<()> {
        let socket = self.listener.try_clone()?;
        spec.env.extend([
            ("LISTEN_FDS", "1".to_owned()),
            ("LISTEN_FDS_FIRST_FD", socket.as_raw_fd().to_string()),
        ]);
        // Names the process that sockets of the launcher's own parent are for.
        spec.env_remove.push("LISTEN_PID");
        spec.inherited = Some(Arc::new(socket.into()));
        Ok(())
    }
}

impl Drop for ManagementPort {
    fn drop(&mut self) {
        self.handover.cancel();
    }
}

fn routes(start: watch::Receiver<Start>) -> Router {
    Router::new()
        .route("/live", get(|| async {}))
        .route("/ready", get(starting))
        .route("/health", get(starting))
        .route("/metrics", get(starting))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(map_response(last_of_connection))
        .with_state(start)
}

/// Closes the connection, so that the next request finds the process that listens then.
async fn last_of_connection(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// What probes and Prometheus get before the router answers them.
async fn starting(State(start): State<watch::Receiver<Start>>) -> Response {
    let start = start.borrow();
    if start.phase == Phase::ServingNode0 {
        return StatusCode::OK.into_response();
    }
    let (name, percent) = (start.phase.name(), start.percent());
    let error = match (start.phase, percent) {
        (Phase::Stopping, _) => "the server is stopping".to_owned(),
        (_, Some(percent)) => format!("the server is starting: {name}, {percent} %"),
        (_, None) => format!("the server is starting: {name}"),
    };
    let headers = [(header::RETRY_AFTER, "1")];
    let body = json!({
        "error": error,
        "error_type": "healthcheck",
        "phase": name,
        "percent": percent,
        "seconds": start.began.elapsed().as_secs(),
    });
    (StatusCode::SERVICE_UNAVAILABLE, headers, Json(body)).into_response()
}
