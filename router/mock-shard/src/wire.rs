//! The way to a rank in the same process, without a socket: so a test can pause the clock of its runtime.

use std::io;
use std::sync::{Arc, Mutex};

use hyper_util::rt::TokioIo;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::service::lock;

/// Bytes on their way in each direction of each half.
const BUFFER: usize = 1 << 16;

/// Connections of one client to one rank.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) channel: Channel,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
}

impl Wire {
    /// A channel that connects when it is used, again after each cut, and the connections as the rank accepts them.
    pub(crate) fn new() -> (Self, UnboundedReceiverStream<io::Result<DuplexStream>>) {
        let (accepted, incoming) = mpsc::unbounded_channel();
        let connections: Arc<Mutex<Vec<AbortHandle>>> = Arc::default();
        let pumps = connections.clone();
        let connector = service_fn(move |_: Uri| {
            let (client, mut near) = duplex(BUFFER);
            let (mut far, server) = duplex(BUFFER);
            let pump = tokio::spawn(async move { copy_bidirectional(&mut near, &mut far).await });
            lock(&pumps).push(pump.abort_handle());
            let accepted = accepted.send(Ok(server));
            async move {
                let refused = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
                accepted.map(|()| TokioIo::new(client)).map_err(refused)
            }
        });
        let endpoint = Endpoint::from_static("http://mock");
        let wire = Self {
            channel: endpoint.connect_with_connector_lazy(connector),
            connections,
        };
        (wire, UnboundedReceiverStream::new(incoming))
    }

    /// Ends every connection; both sides read the end of their stream.
    pub(crate) fn cut(&self) {
        for connection in lock(&self.connections).drain(..) {
            connection.abort();
        }
    }
}
