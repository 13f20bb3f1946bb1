//! Signals that must not end a server.

use std::fs;
use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Those for timers and for programs' own purposes, which end a process that does not expect them, by number: none of
/// them asks for an end, and none says that the process is broken.
const POINTLESS: [i32; 8] = [
    10, // SIGUSR1
    12, // SIGUSR2
    14, // SIGALRM
    16, // SIGSTKFLT
    26, // SIGVTALRM
    27, // SIGPROF
    29, // SIGIO
    30, // SIGPWR
];
/// The real-time signals that programs may use; two lower ones are the C library's own.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;
const HANGUP: u32 = 1;

/// From now on these signals do nothing. Needs a running tokio runtime.
///
/// Programs that are started do not inherit that.
///
/// # Errors
/// When the kernel refuses a handler.
pub fn ignore_pointless() -> io::Result<()> {
    // Nobody waits for them: a handler that stays is enough.
    POINTLESS
        .into_iter()
        .chain(REAL_TIME)
        .try_for_each(|number| signal(SignalKind::from_raw(number)).map(drop))
}

/// Whether whoever has started this process wants it to outlive its terminal, as `nohup` does.
pub fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores(&status, HANGUP)
}

/// Whether `/proc/<pid>/status` says that a signal is ignored.
fn ignores(status: &str, number: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_is_ignored() {
        let status = |mask: &str| format!("Name:\tx\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n");
        assert!(ignores(&status("0000000000001001"), HANGUP));
        assert!(!ignores(&status("0000000000001000"), HANGUP));
        assert!(!ignores("", HANGUP));
    }
}
