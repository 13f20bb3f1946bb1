//! The port for those who watch the server, from the first second on: what it is doing while it starts.
//!
//! The router inherits the listening socket and answers there once it serves, so no connection is refused in between.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::error::LauncherError;
use crate::plan::ProcessSpec;

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

/// A phase, and when it began.
type Since = (Phase, Instant);

/// The open port. Dropping it ends the answers of this process, not those of the router.
#[derive(Debug)]
pub struct ManagementPort {
    listener: TcpListener,
    phase: watch::Sender<Since>,
    answering: JoinHandle<()>,
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
        let (phase, current) = watch::channel((Phase::Downloading, Instant::now()));
        let answering = tokio::spawn(async move {
            if let Err(error) = axum::serve(accepting, routes(current)).await {
                tracing::warn!("the port for probes and metrics has failed: {error}");
            }
        });
        Ok(Self {
            listener,
            phase,
            answering,
        })
    }

    /// From now on this is what the server does.
    pub fn enter(&self, phase: Phase) {
        self.phase.send_replace((phase, Instant::now()));
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
        self.answering.abort();
    }
}

fn routes(phase: watch::Receiver<Since>) -> Router {
    Router::new()
        .route("/live", get(|| async {}))
        .route("/ready", get(starting))
        .route("/health", get(starting))
        .route("/metrics", get(starting))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .with_state(phase)
}

/// The next question must find the process that listens then, so no connection is kept.
async fn starting(State(phase): State<watch::Receiver<Since>>) -> Response {
    let (phase, began) = *phase.borrow();
    if phase == Phase::ServingNode0 {
        return ([(header::CONNECTION, "close")], StatusCode::OK).into_response();
    }
    let error = match phase {
        Phase::Stopping => "the server is stopping".to_owned(),
        _ => format!("the server is starting: {}", phase.name()),
    };
    let headers = [(header::CONNECTION, "close"), (header::RETRY_AFTER, "1")];
    let body = json!({
        "error": error,
        "error_type": "healthcheck",
        "phase": phase.name(),
        "seconds": began.elapsed().as_secs(),
    });
    (StatusCode::SERVICE_UNAVAILABLE, headers, Json(body)).into_response()
}
