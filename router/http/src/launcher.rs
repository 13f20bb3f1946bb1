//! End of this process with the launcher that has started it, however that one ends.
//!
//! It reads the end of standard input then, and ends by itself. For the time when it cannot, the kernel does it.

use std::{env, fs};

use nix::sys::signal::Signal;
use nix::unistd::getppid;

/// Of the launcher, which sets it for its children.
const PROCESS_ID: &str = "LAUNCHER_PID";

/// From now on the kernel kills this process when its launcher ends; to be called on the main thread, before anything
/// else. True where the launcher has ended already.
#[must_use]
pub fn die_with_launcher() -> bool {
    let Ok(launcher) = env::var(PROCESS_ID) else {
        return false;
    };
    at_its_end(Signal::SIGKILL);
    // A parent of another number may be a program between the two.
    let is_parent = getppid().to_string() == launcher;
    cfg!(target_os = "linux") && !is_parent && !runs(&launcher)
}

/// From now on this process reads the end of standard input, and the kernel only wakes it, if something has stopped it;
/// to be called on the main thread.
pub fn end_with_launcher() {
    if env::var_os(PROCESS_ID).is_some() {
        at_its_end(Signal::SIGCONT);
    }
}

/// Also false for a process that has ended, and whose parent has not asked for its status yet.
fn runs(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, state)| !state.starts_with(['X', 'Z']))
    })
}

/// Other kernels leave it at standard input.
#[cfg(not(target_os = "linux"))]
fn at_its_end(_: Signal) {}

/// A kernel that cannot do it leaves it at standard input.
#[cfg(target_os = "linux")]
fn at_its_end(signal: Signal) {
    if let Err(error) = nix::sys::prctl::set_pdeathsig(signal) {
        tracing::debug!("the kernel does not tell of the launcher's end: {error}");
    }
}
