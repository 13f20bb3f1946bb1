//! What tells this process to stop: signals, and the end of standard input when the launcher asks for it.

use std::future::Future;
use std::io::{self, Read};
use std::thread;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// SIGINT and SIGTERM.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// From now on the signals do not end the process but are received here. Needs a running tokio runtime.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal and returns its name.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// Resolves at the end of standard input if `enabled`, else never.
///
/// The thread is detached and blocks in `read` until then: tokio's own standard input would hold up its shutdown.
pub fn stdin_eof(enabled: bool) -> io::Result<impl Future<Output = ()>> {
    let (closed, receiver) = oneshot::channel();
    let watch = move || {
        let mut buffer = [0; 512];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An unreadable standard input can tell nothing any more, the same as a closed one.
                Ok(0) | Err(_) => break,
            }
        }
        // Nobody listens when the server has stopped on its own.
        let _ = closed.send(());
    };
    if enabled {
        thread::Builder::new()
            .name("stdin-watch".to_owned())
            .spawn(watch)?;
        Ok(futures::future::Either::Left(async {
            let _ = receiver.await;
        }))
    } else {
        Ok(futures::future::Either::Right(std::future::pending()))
    }
}
