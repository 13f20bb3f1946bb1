//! What the connection loop allows, and for how long.

use std::time::Duration;

use crate::bounds::{HEADER_TIMEOUT, IDLE_GRACE, PROBE_CONNECTIONS};

/// What the loop allows.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Connections at once. For the next one, that which has done nothing for longest is closed; when all are at work,
    /// it is told to come back.
    pub connections: usize,
    /// Further connections, for the probes of load balancers alone.
    pub probes: usize,
    /// For the head of a request, and for a connection without one.
    pub header: Duration,
    /// How long a connection without a request is let be when its place is needed, or when the server stops.
    pub idle: Duration,
    /// For a peer to take in anything, while there is something to send. Then its connection ends, and with it its
    /// requests: what a reader that stalls is owed must not be kept for it. Of a connection with several streams only
    /// the one ends that is not taken. A peer that is gone without a word is found out in the same time, also when there
    /// is nothing to send.
    pub write: Duration,
    /// How long requests are still taken after the order to stop, while the readiness probe tells load balancers to
    /// send no more.
    pub drain_delay: Duration,
    /// For running requests to finish after that.
    pub graceful: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            probes: PROBE_CONNECTIONS,
            header: HEADER_TIMEOUT,
            idle: IDLE_GRACE,
            write: Duration::from_secs(60),
            drain_delay: Duration::ZERO,
            graceful: Duration::from_secs(90),
        }
    }
}

impl ServerLimits {
    /// How often it is looked for what is over time.
    pub fn tick(&self) -> Duration {
        let shortest = self.header.min(self.write).min(self.idle);
        (shortest / 4).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }
}
