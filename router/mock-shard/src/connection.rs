//! Connections of a mock group, which end or fall silent when the group is told to.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// What becomes of one start of a group.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fate {
    /// Its connections break.
    pub(crate) dead: CancellationToken,
    /// Nothing is read or written any more, as by a process that was stopped.
    pub(crate) hung: CancellationToken,
}

/// One connection to one rank.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    stream: S,
    hung: CancellationToken,
    dead: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S: Unpin> Connection<S> {
    /// It breaks with its start of the group, or when `cut` is cancelled.
    pub(crate) fn new(stream: S, fate: &Fate, cut: CancellationToken) -> Self {
        Self {
            stream,
            hung: fate.hung.clone(),
            dead: Box::pin(cut.cancelled_owned()),
        }
    }

    /// Goes on with `action` unless the group is dead or hangs.
    fn unless_lost<T>(
        &mut self,
        context: &mut Context<'_>,
        action: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.dead.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if self.hung.is_cancelled() {
            return Poll::Pending;
        }
        action(Pin::new(&mut self.stream), context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        connection.unless_lost(context, |stream, context| stream.poll_read(context, buffer))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let connection = self.get_mut();
        connection.unless_lost(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().unless_lost(context, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut()
            .unless_lost(context, AsyncWrite::poll_shutdown)
    }
}

impl<S> Connected for Connection<S> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
