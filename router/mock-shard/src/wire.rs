//! The way to a rank in the same process, without a socket: so a test can pause the clock of its runtime.

use std::io;
use std::sync::{Arc, Mutex};

use hyper_util::rt::TokioIo;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::lock::lock;

/// Bytes on their way in each direction.
const BUFFER: usize = 1 << 16;

/// Connections as a rank accepts them.
pub(crate) type Incoming = UnboundedReceiverStream<io::Result<DuplexStream>>;

/// Leads to one rank, whichever start of the group it is.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) channel: Channel,
    /// Takes connections to the present start; closed where it has ended.
    listener: Arc<Mutex<UnboundedSender<io::Result<DuplexStream>>>>,
}

impl Wire {
    /// Its channel connects when it is used, and again where it lost its connection.
    pub(crate) fn new() -> Self {
        let listener = Arc::new(Mutex::new(mpsc::unbounded_channel().0));
        let listening = listener.clone();
        let connector = service_fn(move |_: Uri| {
            let (client, server) = duplex(BUFFER);
            let accepted = lock(&listening).send(Ok(server));
            async move {
                let refused = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
                accepted.map(|()| TokioIo::new(client)).map_err(refused)
            }
        });
        let endpoint = Endpoint::from_static("http://mock");
        Self {
            channel: endpoint.connect_with_connector_lazy(connector),
            listener,
        }
    }

    /// From now on connections lead to who takes them from here.
    pub(crate) fn listen(&self) -> Incoming {
        let (listener, incoming) = mpsc::unbounded_channel();
        *lock(&self.listener) = listener;
        UnboundedReceiverStream::new(incoming)
    }
}
