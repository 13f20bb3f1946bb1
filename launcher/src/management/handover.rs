//! The listening socket of the launcher until the router has it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// For so long connections that were accepted before the handover may still send their request.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// Accepts connections until the handover and none after it: those that are in the queue of the socket by then are the
/// router's.
pub struct UntilHandover {
    listener: Option<TcpListener>,
    handover: CancellationToken,
}

impl UntilHandover {
    pub fn new(listener: TcpListener, handover: CancellationToken) -> Self {
        Self {
            listener: Some(listener),
            handover,
        }
    }
}

impl Listener for UntilHandover {
    type Io = TcpStream;
    type Addr = SocketAddr;

    /// After the handover this waits for ever rather than ending, for with its end axum would close every connection
    /// on which nothing has come yet.
    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        if let Some(listener) = &mut self.listener {
            tokio::select! {
                biased;
                () = self.handover.cancelled() => {}
                accepted = Listener::accept(listener) => return accepted,
            }
        }
        self.listener = None;
        std::future::pending().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        let listener = self.listener.as_ref();
        listener.ok_or(io::ErrorKind::NotConnected)?.local_addr()
    }
}

/// Resolves when the connections from before the handover have had their time.
pub async fn over(handover: CancellationToken) {
    handover.cancelled().await;
    sleep(LAST_REQUESTS).await;
}
