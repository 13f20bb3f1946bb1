//! Log records on standard output: one JSON object a line for the launcher, or text for people.
//!
//! Requests only put their records in a bounded queue, and a thread writes them. When nobody reads the log, or its disk
//! is full, the queue fills up and further records are dropped and counted; the server goes on as before.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use anyhow::Context;
use metrics::counter;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use crate::bounds::QUEUED_LOG_RECORDS;

/// Log records that were dropped because those before them could not be written.
pub const LOG_DROPPED: &str = "tgi_log_dropped";

/// Counts the records that the log of this process has dropped.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Crates of ours, which a bare level word in `LOG_LEVEL` is about.
const OURS: [&str; 5] = [
    "text_generation_client",
    "text_generation_core",
    "text_generation_http",
    "text_generation_router",
    "text_generation_traces",
];

/// Starts logging. A second call in one process changes nothing. When the guard is dropped, the records that wait are
/// written, for at most a second.
///
/// # Errors
/// When `level`, the value of `LOG_LEVEL`, is neither a level nor a filter.
pub fn init(json: bool, level: &str) -> anyhow::Result<WorkerGuard> {
    let filter = EnvFilter::try_new(directives(level))
        .with_context(|| format!("`LOG_LEVEL` is neither a level nor a filter: {level}"))?;
    let (writer, guard) = queued(io::stdout(), QUEUED_LOG_RECORDS);
    let dropped = writer.error_counter();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(!json && io::stdout().is_terminal());
    let installed = if json {
        builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init()
    } else {
        builder.compact().try_init()
    };
    if installed.is_err() || DROPPED.set(dropped).is_err() {
        tracing::debug!("logging was already set up");
    }
    Ok(guard)
}

/// Brings the metric of dropped records up to date.
pub fn count_dropped() {
    let dropped = DROPPED.get().map_or(0, ErrorCounter::dropped_lines);
    counter!(LOG_DROPPED).absolute(dropped as u64);
}

/// A writer that never waits, before a thread that writes to `output`.
fn queued(output: impl Write + Send + 'static, records: usize) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(records)
        .thread_name("log")
        .finish(output)
}

/// A level word is for our crates; the others only warn, as their details are rarely what one looks for.
fn directives(level: &str) -> String {
    let word = level.trim().to_ascii_lowercase();
    match word.as_str() {
        "" => directives("info"),
        "error" | "off" => word,
        "trace" | "debug" | "info" | "warn" => {
            OURS.iter().fold("warn".to_owned(), |filter, target| {
                format!("{filter},{target}={word}")
            })
        }
        _ => level.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A reader that reads nothing until it is told to.
    struct Stuck(mpsc::Receiver<()>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // Ends when the test drops the sender.
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_nobody_reads_holds_nobody_up_and_counts_what_it_drops() {
        let (read, stuck) = mpsc::channel();
        let (mut writer, guard) = queued(Stuck(stuck), 10);
        for _ in 0..1000 {
            writer.write_all(b"a record\n").expect("never fails");
        }
        // One is being written, and ten wait.
        let dropped = writer.error_counter().dropped_lines();
        assert!((989..=990).contains(&dropped), "{dropped}");
        drop(read);
        drop(guard);
    }

    #[test]
    fn a_level_is_for_our_crates() {
        let debug = directives("DEBUG");
        assert!(debug.starts_with("warn,text_generation_client=debug,"));
        // It says when a collector takes traces again.
        assert!(debug.contains(",text_generation_traces=debug"), "{debug}");
        assert_eq!(directives(""), directives("info"));
        assert_eq!(directives("error"), "error");
        assert_eq!(directives("hyper=trace,info"), "hyper=trace,info");
    }
}
