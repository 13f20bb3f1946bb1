//! Lines of the log of this thread, on which everything of a test runs.

use std::cell::RefCell;
use std::io::{self, Write};

thread_local! {
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.extend(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps what is logged from now on. Once in a process, and of all threads: what another test reaches first would be
/// switched off for good by a thread without a subscriber.
pub fn keep() {
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(|| Lines)
        .init();
}

/// What was logged since the last call.
pub fn take() -> String {
    String::from_utf8(LINES.take()).expect("text")
}
