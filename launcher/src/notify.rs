//! Notifications to systemd, where it has started the launcher with `Type=notify`: that the server is ready, that it
//! stops, and, with `WatchdogSec`, that it serves. Elsewhere all of this does nothing.

use std::convert::Infallible;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::sleep;

/// How systemd says where and how often it listens. They are for the launcher alone.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Requests are served from now on.
pub fn ready() {
    tell(NotifyState::Ready);
}

/// The server stops, because somebody has asked it to.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

/// Tells the watchdog, three times in its period, that the server is `healthy`, and nothing where it is not. Waits for
/// ever where there is no watchdog.
pub async fn keep_alive(healthy: impl AsyncFn() -> bool) -> Infallible {
    let Some(period) = sd_notify::watchdog_enabled().filter(|period| *period > Duration::ZERO)
    else {
        return std::future::pending().await;
    };
    loop {
        sleep(period / 3).await;
        if healthy().await {
            tell(NotifyState::Watchdog);
        }
    }
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("cannot tell the service manager the state of the server: {error}");
    }
}
