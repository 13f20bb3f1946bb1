//! The management port: probes and metrics on an address of their own, without a key.

use std::convert::Infallible;
use std::io;
use std::net::{self, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use listenfd::ListenFd;
use nix::libc::{AF_INET6, SOCK_STREAM};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use crate::args::Config;
use crate::bounds::{BACKLOG, MANAGEMENT_CONNECTIONS};
use crate::connection::{Acceptor, ServerLimits};
use crate::routes;
use crate::startup::bind;
use crate::state::AppState;

/// The socket of the port while the server starts.
#[derive(Debug)]
pub enum ManagementPort {
    /// The launcher listens on it and has answered so far; what it has not accepted is ours.
    Inherited(net::TcpListener),
    /// Refuses connections until the server can answer.
    Bound(TcpSocket),
}

/// The listening socket that the parent has left open, named as systemd does (`LISTEN_FDS`, `LISTEN_FDS_FIRST_FD`).
///
/// Takes the names out of the environment, so it must be called while the process has one thread.
///
/// # Errors
/// When the environment names something else.
pub fn inherited() -> io::Result<Option<net::TcpListener>> {
    let mut sockets = ListenFd::from_env();
    match sockets.take_tcp_listener(0) {
        // This library knows sockets of IPv4 alone by name.
        Err(_) => sockets.take_custom(0, AF_INET6, SOCK_STREAM, "TCP socket"),
        taken => taken,
    }
}

impl ManagementPort {
    /// The port that `--prometheus-port` asks for, if it does: a port in use should not be found out after warm-up.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub fn claim(
        config: &Config,
        inherited: Option<net::TcpListener>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(address) = config.management_address() else {
            return Ok(None);
        };
        if let Some(listener) = inherited {
            return Ok(Some(Self::Inherited(listener)));
        }
        let socket = bind(address).with_context(|| cannot_listen(address))?;
        Ok(Some(Self::Bound(socket)))
    }

    /// From now on connections wait to be accepted. Needs a running tokio runtime.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen(self) -> anyhow::Result<TcpListener> {
        match self {
            Self::Inherited(listener) => {
                listener.set_nonblocking(true)?;
                Ok(TcpListener::from_std(listener)?)
            }
            Self::Bound(socket) => Ok(socket.listen(BACKLOG)?),
        }
    }
}

fn cannot_listen(address: SocketAddr) -> String {
    format!(
        "cannot listen on {address}; choose another address with `--prometheus-hostname` and `--prometheus-port`"
    )
}

/// Answers until it is dropped, also while the server drains.
pub async fn serve(listener: TcpListener, state: Arc<AppState>) -> Infallible {
    let limits = ServerLimits {
        connections: MANAGEMENT_CONNECTIONS,
        probes: 0,
        ..ServerLimits::default()
    };
    let never = CancellationToken::new();
    let acceptor = Acceptor::new(routes::management(state), limits, never);
    acceptor.run(&listener).await
}
