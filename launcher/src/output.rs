//! Standard output as a bounded queue in front of a thread that writes.
//!
//! A reader that stops reading, or a disk that is full, must not change what the server does: nobody ever waits for a
//! write. Lines that find the queue full, or that cannot be written, are lost and counted, and the first line that
//! gets through again says how many.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Bytes that may wait. Children write some 200 bytes a request, so a reader may pause for long.
const CAPACITY: usize = 8 << 20;

/// A handle of the queue; clones share it. May be used from any thread.
#[derive(Clone, Debug)]
pub struct Output(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    /// Bytes of `lines` and of the line that is being written.
    bytes: usize,
    /// Lines lost since the last report.
    lost: u64,
}

/// Makes the line, with its line break, that reports so many lost lines.
pub type Report = fn(u64) -> String;

impl Output {
    /// Starts the thread that writes to `writer`. It lives as long as the process.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(writer: impl Write + Send + 'static, report: Report) -> io::Result<Self> {
        Self::with_capacity(CAPACITY, writer, report)
    }

    fn with_capacity(
        capacity: usize,
        writer: impl Write + Send + 'static,
        report: Report,
    ) -> io::Result<Self> {
        let output = Self(Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::new(),
            capacity,
        }));
        let shared = Arc::clone(&output.0);
        thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || shared.write_lines(writer, report))?;
        Ok(output)
    }

    /// Queues a line, which brings its line break with it. A line that does not fit is lost.
    pub fn push(&self, line: Vec<u8>) {
        let mut queue = self.0.lock();
        if queue.bytes + line.len() > self.0.capacity {
            queue.lost += 1;
        } else {
            queue.bytes += line.len();
            queue.lines.push_back(line);
            self.0.changed.notify_all();
        }
    }

    /// Waits until everything is written, for at most `limit`.
    pub fn flush(&self, limit: Duration) {
        let queue = self.0.lock();
        // What is not out by then stays unwritten: the reader does not read.
        let _ = self
            .0
            .changed
            .wait_timeout_while(queue, limit, |queue| queue.bytes > 0);
    }
}

impl Shared {
    /// The queue is whole whenever its lock is free, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_lines(&self, mut writer: impl Write, report: Report) -> ! {
        loop {
            let (line, lost) = self.next_line();
            let reported = lost == 0 || writer.write_all(report(lost).as_bytes()).is_ok();
            let written = reported
                && writer
                    .write_all(&line)
                    .and_then(|()| writer.flush())
                    .is_ok();
            let mut queue = self.lock();
            queue.bytes -= line.len();
            queue.lost += u64::from(!written) + if reported { 0 } else { lost };
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Waits for a line. Takes with it the number of lines lost so far.
    fn next_line(&self) -> (Vec<u8>, u64) {
        let mut queue = self.lock();
        loop {
            if let Some(line) = queue.lines.pop_front() {
                return (line, std::mem::take(&mut queue.lost));
            }
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One record of `tracing`. The formatter passes each record whole, in one call.
#[derive(Debug)]
pub struct Line<'a>(&'a Output);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Each write waits until the test takes it, or fails once the test has gone.
    struct Reader(SyncSender<String>);

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.0.send(text).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn output(capacity: usize) -> (Output, Receiver<String>) {
        let (sender, receiver) = sync_channel(0);
        let report = |lost| format!("lost {lost}\n");
        let output = Output::with_capacity(capacity, Reader(sender), report).unwrap();
        (output, receiver)
    }

    #[test]
    fn lines_come_out_in_order() {
        let (output, lines) = output(100);
        for number in 0..5 {
            output.push(format!("{number}\n").into_bytes());
        }
        let read: Vec<String> = (0..5).map(|_| lines.recv_timeout(LIMIT).unwrap()).collect();
        assert_eq!(read.concat(), "0\n1\n2\n3\n4\n");
        output.flush(LIMIT);
        assert_eq!(output.0.lock().bytes, 0);
    }

    #[test]
    fn what_does_not_fit_is_lost_and_counted() {
        let (output, lines) = output(4);
        for line in ["a\n", "b\n", "c\n", "d\n"] {
            output.push(line.into());
        }
        // Nobody reads, and nobody waits for it.
        output.flush(Duration::ZERO);
        let read: Vec<String> = (0..3).map(|_| lines.recv_timeout(LIMIT).unwrap()).collect();
        let text = read.concat();
        assert!(
            text == "a\nlost 2\nb\n" || text == "lost 2\na\nb\n",
            "{text}"
        );
    }

    #[test]
    fn failed_writes_are_lost_and_harm_nothing() {
        let (output, lines) = output(100);
        drop(lines);
        output.push(b"a\n".to_vec());
        output.push(b"b\n".to_vec());
        output.flush(LIMIT);
        let queue = output.0.lock();
        assert_eq!((queue.bytes, queue.lost), (0, 2));
    }
}
