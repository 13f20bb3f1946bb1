//! Messages between nodes: one JSON object a line.

use std::io;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::codec::{Framed, LinesCodec, LinesCodecError};

use super::agreement::Agreement;

/// Bytes of a line; more is nobody of ours.
const LONGEST_LINE: usize = 64 * 1024;
/// How long the last words may take.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(1);

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

    /// The other side reads everything that was said, then the end. What it says meanwhile is read until its own end:
    /// TCP resets a connection that is closed before that, and the last words would be lost.
    pub async fn close(&mut self) {
        let last_words = async {
            // It may be gone already.
            let _ = SinkExt::<String>::close(&mut self.0).await;
            while let Some(Ok(_)) = self.0.next().await {}
        };
        let _ = timeout(CLOSE_LIMIT, last_words).await;
    }
}

fn io_error(error: LinesCodecError) -> io::Error {
    match error {
        LinesCodecError::Io(error) => error,
        LinesCodecError::MaxLineLengthExceeded => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn last_words_arrive_though_the_other_side_speaks_too() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut ours = Link::over(Box::new(TcpStream::connect(address).await.unwrap()));
        let mut theirs = Link::over(Box::new(listener.accept().await.unwrap().0));
        theirs.say(&Message::Beat).await.unwrap();
        let closing = tokio::spawn(async move {
            let reason = "enough".to_owned();
            ours.say(&Message::Stop { reason }).await.unwrap();
            ours.close().await;
        });
        tokio::task::yield_now().await;
        theirs.say(&Message::Beat).await.unwrap();
        let last = theirs.next().await.unwrap();
        assert!(matches!(last, Some(Message::Stop { .. })), "{last:?}");
        assert!(theirs.next().await.unwrap().is_none());
        drop(theirs);
        closing.await.unwrap();
    }
}
