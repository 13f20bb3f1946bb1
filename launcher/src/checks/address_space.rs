//! The limit of virtual memory, `ulimit -v`: a library that cannot be mapped says nothing that one could act on.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::error::LauncherError;

/// What a shard needs at least. Its libraries alone are mapped to some 3 GiB, without any for GPUs.
const LEAST: u64 = 4 << 30;

/// Bytes of virtual memory that a process may have, where there is a limit.
fn limit() -> Option<u64> {
    let (now, _) = getrlimit(Resource::RLIMIT_AS).ok()?;
    (now != RLIM_INFINITY).then_some(now)
}

/// Whether no shard could be loaded.
pub fn check_address_space() -> Result<(), LauncherError> {
    judge(limit())
}

fn judge(limit: Option<u64>) -> Result<(), LauncherError> {
    match limit.filter(|limit| *limit < LEAST) {
        Some(limit) => Err(LauncherError::Argument(format!(
            "virtual memory is limited to {} MiB (`ulimit -v`), and a shard needs more than {} MiB for its libraries \
             alone: raise the limit, best with `ulimit -v unlimited`",
            limit >> 20,
            LEAST >> 20,
        ))),
        None => Ok(()),
    }
}

/// Why a process has ended, with the limit where there is one.
pub fn perhaps_by_its_limit(reason: String) -> String {
    match limit() {
        Some(limit) => format!(
            "{reason} (virtual memory is limited to {} MiB, which may be the cause: try `ulimit -v unlimited`)",
            limit >> 20
        ),
        None => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_in_which_no_shard_loads_is_refused_with_both_numbers() {
        assert!(judge(None).is_ok());
        assert!(judge(Some(64 << 30)).is_ok());
        let message = judge(Some(500 << 20)).unwrap_err().to_string();
        assert!(
            message.contains("500 MiB") && message.contains("ulimit -v unlimited"),
            "{message}"
        );
    }
}
