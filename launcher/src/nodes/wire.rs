//! Messages between nodes: one JSON object a line.

use std::io;

use futures::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::codec::{Framed, LinesCodec, LinesCodecError};

use super::agreement::Agreement;

/// Bytes of a line; more is nobody of ours.
const LONGEST_LINE: usize = 64 * 1024;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Message {
    /// First of a node that comes.
    Hello {
        node_rank: usize,
        agreement: Agreement,
    },
    /// Node 0 takes it in.
    Welcome,
    /// The node has the model.
    Prepared { fingerprint: String },
    /// From node 0, once all have it: the shards start, under this name.
    Start { group: String },
    /// The shards of the node are ready.
    Ready,
    /// The sender lives.
    Beat,
    /// To node 0: stop everything in order. From node 0: stop now, what was running has finished.
    Stop { reason: String },
    /// The sender ends because of this, or refuses the one it talks to.
    Failed { reason: String },
}

/// A connection of any kind.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection with another node.
pub struct Link(Framed<Box<dyn Stream>, LinesCodec>);

impl Link {
    pub fn over(stream: Box<dyn Stream>) -> Self {
        let codec = LinesCodec::new_with_max_length(LONGEST_LINE);
        Self(Framed::new(stream, codec))
    }

    /// The next message, or none at the end. Losing the race in `select!` loses nothing.
    pub async fn next(&mut self) -> io::Result<Option<Message>> {
        match self.0.next().await {
            None => Ok(None),
            Some(Ok(line)) => Ok(Some(serde_json::from_str(&line)?)),
            Some(Err(error)) => Err(io_error(error)),
        }
    }

    pub async fn say(&mut self, message: &Message) -> io::Result<()> {
        let line = serde_json::to_string(message)?;
        self.0.send(line).await.map_err(io_error)
    }

    /// The other side reads everything that was said, then the end.
    pub async fn close(&mut self) {
        // It may be gone already.
        let _ = SinkExt::<String>::close(&mut self.0).await;
    }
}

fn io_error(error: LinesCodecError) -> io::Error {
    match error {
        LinesCodecError::Io(error) => error,
        LinesCodecError::MaxLineLengthExceeded => io::Error::other(error),
    }
}
