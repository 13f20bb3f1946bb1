//! Reasons why one request failed.

/// Why one request failed. `kind` is what failures are counted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: String,
    pub message: String,
}

impl Failure {
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind: kind.into(),
            message: message.into(),
        }
    }

    /// The server was not there, as opposed to: it refused.
    pub fn is_lost_connection(&self) -> bool {
        ["connect", "connection_lost", "stream_cut"].contains(&self.kind.as_str())
    }
}
