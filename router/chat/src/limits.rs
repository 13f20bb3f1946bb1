//! Limits of a rendering, so that no conversation takes the server from the others.
//!
//! The engine counts steps, the texts that operators make, and nested calls. Filters, methods and whatever a template
//! prints count here what they make, before they make it where that may be far more than they were given, and look at
//! the clock. So do the [`checks`](super::checks) of lists and objects.

use std::cell::Cell;
use std::time::{Duration, Instant};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Bytes that one entry of a list is counted as.
const ENTRY: usize = size_of::<Value>();
/// Values may be inside each other this deep: more than JSON can be, less than would overflow a thread's stack.
const MOST_DEPTH: usize = 200;
/// Entries that are walked through, also those of lists inside lists, before the value is taken for a bomb.
const MOST_ENTRIES: usize = 1_000_000;
/// Entries of one list. More than a conversation has messages, and its tools parameters.
const MOST_LENGTH: usize = 200_000;

/// Time and bytes for the answer to each question that a new template is asked.
const PROBE_TIME: Duration = Duration::from_millis(500);
const PROBE_OUTPUT: usize = 256 << 10;

/// The most that one rendering may use, and that a template may measure.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a template's source.
    pub source: usize,
    /// Instructions of the engine. 64 bytes of text that are made or read are one more.
    pub steps: u64,
    /// Calls inside calls, as the engine counts them: 4 for a macro.
    pub depth: usize,
    /// Bytes of all that filters, methods and expressions make, also what the template drops again.
    pub memory: usize,
    /// Bytes of the prompt.
    pub output: usize,
    /// Time until the prompt is there, looked at where memory is counted.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            source: 128 << 10,
            steps: 2_000_000,
            depth: 300,
            memory: 64 << 20,
            output: 16 << 20,
            time: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// For conversations of a few words, with which a template is asked what it can do.
    pub(super) fn of_probes(&self) -> Self {
        Self {
            output: PROBE_OUTPUT.min(self.output),
            time: PROBE_TIME.min(self.time),
            ..*self
        }
    }
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Limit {
    #[error("is larger than {max} bytes: {given}")]
    Source { max: usize, given: usize },
    #[error("needs more than {0} steps for this conversation, of which 64 bytes of text are one")]
    Steps(u64),
    #[error("nests calls or values too deeply")]
    Depth,
    #[error("makes a value of too many entries")]
    Entries,
    #[error("makes strings and lists of more than {0} bytes for this conversation")]
    Memory(usize),
    #[error("makes a prompt of more than {0} bytes")]
    Output(usize),
    #[error("takes longer than {} s", .0.as_secs_f32())]
    Time(Duration),
}

impl From<Limit> for Error {
    fn from(limit: Limit) -> Self {
        Error::new(ErrorKind::InvalidOperation, limit.to_string()).with_source(limit)
    }
}

/// What is left for the rendering on this thread.
struct Meter {
    limits: Limits,
    memory: usize,
    deadline: Instant,
}

thread_local! {
    // A rendering stays on its thread, and filters of the engine have no other state that is cheap to reach.
    static METER: Cell<Option<Meter>> = const { Cell::new(None) };
}

/// Runs `work` with limits on this thread.
pub(super) fn metered<T>(limits: Limits, work: impl FnOnce() -> T) -> T {
    METER.set(Some(Meter {
        memory: limits.memory,
        deadline: Instant::now() + limits.time,
        limits,
    }));
    let result = work();
    METER.set(None);
    result
}

/// Takes `bytes` of what the template may make.
pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    let Some(mut meter) = METER.take() else {
        return Ok(());
    };
    let left = meter.memory.checked_sub(bytes);
    let late = Instant::now() > meter.deadline;
    meter.memory = left.unwrap_or(0);
    let limits = meter.limits;
    METER.set(Some(meter));
    match left {
        None => Err(Limit::Memory(limits.memory).into()),
        Some(_) if late => Err(Limit::Time(limits.time).into()),
        Some(_) => Ok(()),
    }
}

/// Bytes of a value, without what is inside its entries.
pub(super) fn shallow(value: &Value) -> usize {
    if let Some(bytes) = value.as_bytes() {
        return bytes.len();
    }
    let entries = match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            value.len().unwrap_or_else(|| counted(value))
        }
        _ => 1,
    };
    entries.saturating_mul(ENTRY)
}

/// Like [`shallow`], for a value that was just made or will be walked through: with what is inside its entries.
///
/// # Errors
/// Values that are nested so deeply, or share so much, that walking through them would not end.
pub(super) fn nested(value: &Value) -> Result<usize, Error> {
    let mut left = MOST_ENTRIES;
    walk(value, MOST_DEPTH, &mut left, &mut 0)?;
    let entries = MOST_ENTRIES - left;
    Ok(shallow(value).max(entries.saturating_mul(ENTRY)))
}

/// Bytes of a value as text, about.
///
/// # Errors
/// As for [`nested`].
pub(super) fn written(value: &Value) -> Result<usize, Error> {
    let mut bytes = 0;
    walk(value, MOST_DEPTH, &mut MOST_ENTRIES.clone(), &mut bytes)?;
    Ok(bytes)
}

/// # Errors
/// A list that is longer than one may be.
pub(super) fn bounded_length(entries: usize) -> Result<(), Error> {
    if entries > MOST_LENGTH {
        return Err(Limit::Entries.into());
    }
    Ok(())
}

fn counted(value: &Value) -> usize {
    value
        .try_iter()
        .map_or(0, |items| items.take(MOST_ENTRIES).count())
}

/// A namespace is the one value that changes after it was made: inside another it could come to contain itself.
pub(super) fn is_namespace(value: &Value) -> bool {
    let object = value.as_object();
    object.is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

fn walk(value: &Value, depth: usize, entries: &mut usize, bytes: &mut usize) -> Result<(), Error> {
    let left = depth.checked_sub(1).ok_or(Limit::Depth)?;
    *entries = entries.checked_sub(1).ok_or(Limit::Entries)?;
    if depth < MOST_DEPTH && is_namespace(value) {
        return Err(Limit::Depth.into());
    }
    if let Some(text) = value.as_bytes() {
        *bytes = bytes.saturating_add(text.len());
        return Ok(());
    }
    *bytes = bytes.saturating_add(ENTRY);
    let map = value.kind() == ValueKind::Map;
    if !map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(());
    }
    for item in value.try_iter()? {
        if map {
            walk(&value.get_item(&item)?, left, entries, bytes)?;
        }
        walk(&item, left, entries, bytes)?;
    }
    Ok(())
}
