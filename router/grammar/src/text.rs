//! What the library says, as messages of ours repeat it.

/// The library adds its state, source lines and backtraces on further lines, and whole sources to some messages.
pub(crate) fn first_line(message: &str) -> String {
    const LONGEST: usize = 300;
    let line = message.lines().next().unwrap_or_default();
    line.chars().take(LONGEST).collect()
}
