//! The signals that ask for a stop.

use tokio::signal::unix::{self, SignalKind};

use crate::error::LauncherError;

/// SIGTERM and SIGINT, as they come.
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    pub fn listen() -> Result<Self, LauncherError> {
        let terminate = unix::signal(SignalKind::terminate())?;
        Ok(Self {
            terminate,
            interrupt: unix::signal(SignalKind::interrupt())?,
        })
    }

    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
