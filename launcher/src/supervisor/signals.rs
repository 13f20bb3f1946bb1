//! The signals that ask for a stop.

use text_generation_process::signals::{hangup_is_ignored, ignore_pointless};
use tokio::signal::unix::{self, SignalKind};

use crate::error::LauncherError;

/// SIGTERM and SIGINT, as they come, and the first SIGHUP.
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
    /// A terminal that goes away may say so several times, to a process that `nohup` has started too.
    hears_hangup: bool,
}

impl Signals {
    /// From now on the signals are received here, and those that ask for nothing do nothing.
    pub fn listen() -> Result<Self, LauncherError> {
        let hears_hangup = !hangup_is_ignored();
        ignore_pointless()?;
        Ok(Self {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            hangup: unix::signal(SignalKind::hangup())?,
            hears_hangup,
        })
    }

    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv(), if self.hears_hangup => {
                self.hears_hangup = false;
                "SIGHUP"
            }
        }
    }
}
