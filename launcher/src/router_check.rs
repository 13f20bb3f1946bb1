//! Asks the router whether it could start, while there is still something to save by it: a download, or minutes of loading.

use tracing::warn;

use crate::error::LauncherError;
use crate::plan::ProcessSpec;
use crate::process::{self, REASON};

/// How it begins where a command line cannot be read. Hints on how to use it follow after an empty line.
const USAGE: &str = "error: ";

/// Does `work`, unless `check` says meanwhile that the router could not start.
///
/// No start waits for a check: where the work is done first, the check ends too. What it would have found is found by
/// the next one, which has more to look at, or by the router.
pub async fn beside<T>(
    check: Option<ProcessSpec>,
    work: impl Future<Output = Result<T, LauncherError>>,
) -> Result<T, LauncherError> {
    let refused = async {
        if let Some(check) = check
            && let Some(reason) = refusal(&check).await
        {
            return reason;
        }
        std::future::pending().await
    };
    tokio::select! {
        biased;
        done = work => done,
        reason = refused => Err(reason),
    }
}

/// Runs the check and returns why the router could not start. Dropping the future ends the check.
pub async fn refusal(check: &ProcessSpec) -> Option<LauncherError> {
    let output = match process::output(check).await {
        Ok(output) => output,
        Err(source) => {
            let program = check.program;
            return Some(LauncherError::CannotRun { program, source });
        }
    };
    if output.status.success() {
        return None;
    }
    if output.status.code().is_none() {
        // The router may yet start: it was not the router who said no.
        warn!("the {} ended early: {}", check.name, output.status);
        return None;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Some(LauncherError::Refused(reason(&errors)))
}

/// What is wrong, as one line.
fn reason(errors: &str) -> String {
    let mut lines = errors.lines().rev().filter(|line| !line.trim().is_empty());
    let own = lines.clone().find_map(|line| line.strip_prefix(REASON));
    let usage = || {
        errors
            .split("\n\n")
            .find_map(|part| part.strip_prefix(USAGE))
    };
    let words = own
        .or_else(usage)
        .or_else(|| lines.next())
        .unwrap_or("it reported no error");
    let words: Vec<&str> = words.split_whitespace().collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_without_hints() {
        let said = |errors| reason(errors);
        assert_eq!(said("a UserWarning\nError: no such file\n"), "no such file");
        let usage = "error: the following required arguments were not provided:\n  --cluster-key <FILE>\n\n\
                     Usage: text-generation-router\n\nFor more information, try '--help'.\n";
        assert_eq!(
            said(usage),
            "the following required arguments were not provided: --cluster-key <FILE>"
        );
        let traceback =
            "Traceback (most recent call last):\n  File \"x\"\nImportError: no module\n\n";
        assert_eq!(said(traceback), "ImportError: no module");
        assert_eq!(said(""), "it reported no error");
    }
}
