//! Errors of the benchmark: why it could not run or did not finish. Every message says what to do.

use std::path::{Path, PathBuf};

/// What ends the program with a non-zero exit code.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// A flag, or a combination of flags, that cannot work.
    #[error("{flag}: {message}")]
    Argument { flag: &'static str, message: String },
    /// A file that cannot be read, written or understood.
    #[error("{}: {message}", path.display())]
    File { path: PathBuf, message: String },
    /// The server cannot be reached before anything was measured.
    #[error("no server answers at {url}: {message}. Is it running, and is --url right?")]
    Unreachable { url: String, message: String },
    /// The server answers, but not as its API should.
    #[error("{0}")]
    Server(String),
    /// Some requests failed; the results that exist were saved.
    #[error("{failed} of {total} requests failed; the first said: {first}")]
    Failed {
        failed: usize,
        total: usize,
        first: String,
    },
    /// Ctrl-C; the results that exist were saved.
    #[error("stopped before the end; the results are those of the finished requests")]
    Interrupted,
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: std::io::Error,
    },
}

pub type Result<T> = std::result::Result<T, BenchmarkError>;

impl BenchmarkError {
    pub(crate) fn argument(flag: &'static str, message: impl Into<String>) -> Self {
        Self::Argument {
            flag,
            message: message.into(),
        }
    }

    pub(crate) fn file(path: &Path, message: impl ToString) -> Self {
        Self::File {
            path: path.to_owned(),
            message: message.to_string(),
        }
    }
}
