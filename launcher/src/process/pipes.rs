//! Standard output and error of a child: its lines go to the console, and what a report of its end needs is kept.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Child;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::Level;

use super::{Exit, REASON, signal_group};
use crate::logs::{Console, Origin, Progress, Record};

/// How long a pipe may stay silent after the process ended, in case something else still holds it open.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// Forwards both pipes of `child`, the leader of `group`, until it has ended and they are read.
pub(super) async fn forward_until_exit(
    mut child: Child,
    group: Pid,
    mut forwarder: Forwarder,
) -> Exit {
    let mut stdout = Lines::new(child.stdout.take());
    let mut stderr = Lines::new(child.stderr.take());
    let status = loop {
        tokio::select! {
            Some(line) = next_line(&mut stdout, &mut stderr) => forwarder.forward(line),
            status = child.wait() => break status,
        }
    };
    // Helpers of the child end with it.
    signal_group(group, Signal::SIGKILL);
    while let Ok(Some(line)) = timeout(DRAIN_LIMIT, next_line(&mut stdout, &mut stderr)).await {
        forwarder.forward(line);
    }
    let rest = [
        stdout.take_rest().map(Line::Out),
        stderr.take_rest().map(Line::Err),
    ];
    rest.into_iter()
        .flatten()
        .for_each(|line| forwarder.forward(line));
    Exit {
        status: status.unwrap_or_else(|_| ExitStatus::from_raw(-1)),
        unsaid: forwarder.last_word.is_some(),
        last_error: forwarder.last_error.or(forwarder.last_text),
        last_record: forwarder.last_record,
    }
}

enum Line {
    Out(String),
    Err(String),
}

/// The next line of either pipe, or none when both are closed. Losing the race in `select!` loses no bytes.
async fn next_line<O, E>(stdout: &mut Lines<O>, stderr: &mut Lines<E>) -> Option<Line>
where
    O: AsyncRead + Unpin,
    E: AsyncRead + Unpin,
{
    loop {
        tokio::select! {
            line = stdout.next(), if stdout.reader.is_some() => if let Some(line) = line { return Some(Line::Out(line)) },
            line = stderr.next(), if stderr.reader.is_some() => if let Some(line) = line { return Some(Line::Err(line)) },
            else => return None,
        }
    }
}

/// Lines of any length from a pipe. Bytes that are not UTF-8 are replaced.
struct Lines<R> {
    /// None once the pipe was read to its end.
    reader: Option<BufReader<R>>,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(pipe: Option<R>) -> Self {
        Self {
            reader: pipe.map(BufReader::new),
            buffer: Vec::new(),
        }
    }

    async fn next(&mut self) -> Option<String> {
        let reader = self.reader.as_mut()?;
        // What was read before a cancellation is still in the buffer.
        if !matches!(reader.read_until(b'\n', &mut self.buffer).await, Ok(count) if count > 0) {
            self.reader = None;
        }
        self.take_rest()
    }

    fn take_rest(&mut self) -> Option<String> {
        let bytes = std::mem::take(&mut self.buffer);
        (!bytes.is_empty()).then(|| {
            String::from_utf8_lossy(&bytes)
                .trim_end_matches(['\r', '\n'])
                .to_owned()
        })
    }
}

/// Writes lines to the console and remembers what a report needs.
pub(super) struct Forwarder {
    console: Console,
    origin: Origin,
    /// A reason after which nothing came yet. It is held back, because the report of the exit repeats it.
    last_word: Option<Record>,
    last_error: Option<String>,
    /// The last line on standard error that is no warning, for want of one that names an error.
    last_text: Option<String>,
    last_record: Option<Record>,
    progress: watch::Sender<Option<Progress>>,
}

impl Forwarder {
    pub(super) fn new(
        console: Console,
        origin: Origin,
        progress: watch::Sender<Option<Progress>>,
    ) -> Self {
        Self {
            console,
            origin,
            last_word: None,
            last_error: None,
            last_text: None,
            last_record: None,
            progress,
        }
    }

    fn forward(&mut self, line: Line) {
        let (text, level, is_stdout) = match line {
            Line::Out(text) => (text, Level::INFO, true),
            Line::Err(text) => (text, Level::WARN, false),
        };
        if text.trim().is_empty() {
            return;
        }
        if let Some(word) = self.last_word.take() {
            self.console.write(&word);
        }
        match Record::parse(&text, &self.origin) {
            Some(record) => {
                if record.level() == Level::ERROR {
                    self.last_error = record.text("message").lines().next().map(str::to_owned);
                }
                if let Some(progress) = record.progress() {
                    self.progress.send_replace(Some(progress));
                }
                self.console.write(&record);
                if is_stdout {
                    self.last_record = Some(record);
                }
            }
            None => {
                let record = Record::from_text(&text, level, &self.origin);
                if !is_stdout && text.starts_with(REASON) {
                    self.last_word = Some(record);
                } else {
                    self.console.write(&record);
                }
                if !is_stdout {
                    self.remember(text);
                }
            }
        }
    }

    /// A traceback names its error in a line that is not indented; a warning is no reason to stop.
    fn remember(&mut self, line: String) {
        if line.starts_with(char::is_whitespace) || line.contains("Warning:") {
            return;
        }
        let names_error = ["rror", "xception", "panicked"]
            .iter()
            .any(|word| line.contains(word));
        let place = if names_error {
            &mut self.last_error
        } else {
            &mut self.last_text
        };
        *place = Some(line.strip_prefix(REASON).unwrap_or(&line).to_owned());
    }
}
