//! The signals that ask for a stop.

use std::time::{Duration, Instant};

use text_generation_process::signals::{hangup_is_ignored, ignore_pointless};
use tokio::signal::unix::{self, SignalKind};

use crate::error::LauncherError;

/// For so long after a signal further ones are the same: who signals a group of processes may signal its first process
/// again, as `timeout` does.
const ONE_STOP: Duration = Duration::from_millis(100);

/// SIGTERM and SIGINT, as they come, and the first SIGHUP.
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
    /// A terminal that goes away may say so several times, to a process that `nohup` has started too.
    hears_hangup: bool,
    stops: Stops,
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
            stops: Stops::default(),
        })
    }

    /// The next signal that asks for more than the one before.
    pub async fn next(&mut self) -> &'static str {
        loop {
            let name = self.any().await;
            if self.stops.counts(Instant::now()) {
                return name;
            }
        }
    }

    async fn any(&mut self) -> &'static str {
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

/// Which signals count as one that has come before.
#[derive(Debug, Default)]
struct Stops {
    first: Option<Instant>,
}

impl Stops {
    fn counts(&mut self, now: Instant) -> bool {
        match self.first {
            Some(first) => now.duration_since(first) >= ONE_STOP,
            None => {
                self.first = Some(now);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_and_its_first_process_are_signalled_once() {
        let mut stops = Stops::default();
        let start = Instant::now();
        let counted =
            [0, 0, 99, 100, 150].map(|ms| stops.counts(start + Duration::from_millis(ms)));
        assert_eq!(counted, [true, false, false, true, true]);
    }
}
