//! The socket of a connection, which tells when bytes wait for the peer to take them, and when the peer has gone.
//!
//! Most peers that send no more have gone; some only say that they have sent all, and wait for their answer. The two look
//! the same until something is sent: a host resets what nobody reads any more. So when a peer ends its side while an
//! answer of HTTP/1 is made, the answer is begun with its first letter, which is the same in every answer, and a stream
//! of events gets an empty line.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::peers::Peer;

/// How every answer of HTTP/1 begins.
const FIRST_LETTER: u8 = b'H';
/// How often it is looked for the end behind bytes that are not read yet.
const UNREAD_PAUSE: Duration = Duration::from_millis(100);

/// The socket of a connection, shared by those who read and write it and those who look after its peer. All of them run
/// in the task of the connection.
#[derive(Debug)]
pub struct Line {
    stream: TcpStream,
    /// The peer sends no more.
    ended: AtomicBool,
    /// An answer of HTTP/1 is made of which nothing was written.
    answering: AtomicBool,
    /// Bytes wait for the peer to take them.
    waits: AtomicBool,
    /// The first letter of the answer has gone ahead of it.
    begun: AtomicBool,
}

/// That an answer is made, until it is dropped.
#[derive(Debug)]
pub struct Answering<'a>(&'a Line);

impl Line {
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            ended: AtomicBool::new(false),
            answering: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            begun: AtomicBool::new(false),
        }
    }

    /// Resolves when the peer has gone.
    pub async fn gone(&self) {
        self.end().await;
        self.ended.store(true, Ordering::Relaxed);
        if self.answering.load(Ordering::Relaxed) {
            self.begin();
        }
        // For the body of an answer to see it.
        yield_now().await;
        // What is wrong with the socket is its end too.
        _ = self.stream.ready(Interest::ERROR).await;
    }

    /// Whether the peer has said that it sends no more.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// From now on an answer of HTTP/1 is made.
    pub fn answering(&self) -> Answering<'_> {
        self.answering.store(true, Ordering::Relaxed);
        if self.has_ended() {
            self.begin();
        }
        Answering(self)
    }

    /// Waits for the end of what the peer sends, or for an error.
    async fn end(&self) {
        let mut byte = [0];
        while let Ok(1..) = self.stream.peek(&mut byte).await {
            sleep(UNREAD_PAUSE).await;
        }
    }

    /// Begins the answer, where all before it has been written. What fails here fails again when the rest is written.
    fn begin(&self) {
        if !self.waits.load(Ordering::Relaxed)
            && !self.begun.load(Ordering::Relaxed)
            && matches!(self.stream.try_write(&[FIRST_LETTER]), Ok(1))
        {
            self.begun.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.answering.store(false, Ordering::Relaxed);
    }
}

/// Reads and writes as the socket does.
#[derive(Debug)]
pub struct PeerIo {
    line: Arc<Line>,
    peer: Arc<Peer>,
}

impl PeerIo {
    pub fn new(line: Arc<Line>, peer: Arc<Peer>) -> Self {
        Self { line, peer }
    }

    /// Passes on how a write went.
    fn note<T>(&self, written: Poll<T>) -> Poll<T> {
        let waits = written.is_pending();
        if self.line.waits.swap(waits, Ordering::Relaxed) != waits {
            self.peer.set_writes(waits);
        }
        written
    }

    fn poll_write_all_kinds(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.line.stream.poll_write_ready(context))?;
            match write(&self.line.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncRead for PeerIo {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.line.stream.poll_read_ready(context))?;
            match self.line.stream.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl AsyncWrite for PeerIo {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let begun = self.line.begun.load(Ordering::Relaxed);
        let rest = match bytes.split_first() {
            Some((_, rest)) if begun => rest,
            _ => bytes,
        };
        if begun && rest.is_empty() {
            self.line.begun.store(bytes.is_empty(), Ordering::Relaxed);
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = self.poll_write_all_kinds(context, |stream| stream.try_write(rest));
        let written = written.map_ok(|written| {
            self.line.begun.store(false, Ordering::Relaxed);
            written + (bytes.len() - rest.len())
        });
        self.note(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.line.begun.load(Ordering::Relaxed) {
            let first = parts.iter().find(|part| !part.is_empty());
            return self.poll_write(context, first.map_or(&[], |part| part));
        }
        let written = self.poll_write_all_kinds(context, |stream| stream.try_write_vectored(parts));
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = socket2::SockRef::from(&self.line.stream);
        Poll::Ready(socket.shutdown(std::net::Shutdown::Write))
    }
}
