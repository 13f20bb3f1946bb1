//! Requests to stop this process: signals, and the end of standard input when the launcher asks for it.

use std::future::Future;
use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use text_generation_process::signals::{hangup_is_ignored, ignore_pointless};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// SIGINT and SIGTERM, and the first SIGHUP.
#[derive(Debug)]
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    hears_hangup: bool,
}

impl StopSignals {
    /// From now on the signals do not end the process but are received here, and those that ask for nothing do nothing.
    /// Needs a running tokio runtime. `led`: a launcher decides what the end of a terminal means.
    pub fn install(led: bool) -> io::Result<Self> {
        let hears_hangup = !led && !hangup_is_ignored();
        ignore_pointless()?;
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            hears_hangup,
        })
    }

    /// Waits for the next signal and returns its name.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv(), if self.hears_hangup => {
                self.hears_hangup = false;
                "SIGHUP"
            }
        }
    }
}

/// Time for an orderly end once standard input has ended.
const END_TIME: Duration = Duration::from_secs(2);

/// Ends the process with `code` after `time`, should it still be there then: a thread that is busy with a file of the
/// model may hold Python's lock, and keeps the main thread from ending.
pub fn end_within(time: Duration, code: i32) {
    let end = move || {
        thread::sleep(time);
        std::process::exit(code);
    };
    // Without threads nothing is left to be busy.
    let _ = thread::Builder::new().name("end".to_owned()).spawn(end);
}

/// Resolves at the end of standard input if `enabled`, else never. The process ends soon after, also where it is too busy
/// to do so by itself.
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
        end_within(END_TIME, 1);
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
