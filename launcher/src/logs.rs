//! Logging: the launcher's own, and the lines of its children, which become records of the same form.

use std::io::{self, IsTerminal};
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::error::LauncherError;
use crate::output::Output;

/// For a reader that still reads; the server has ended and has nothing else to wait for.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// How records are written to standard output, which never blocks and never fails; clones share it.
#[derive(Clone, Debug)]
pub struct Console {
    style: Style,
    output: Output,
}

#[derive(Clone, Copy, Debug)]
struct Style {
    json: bool,
    color: bool,
    level: LevelFilter,
}

/// Sets up logging as LOG_LEVEL, LOG_COLORIZE and NO_COLOR ask.
///
/// A bad LOG_LEVEL is reported, after logging was set up with the default level, so that the report can be seen.
///
/// # Errors
/// When the thread that writes cannot be started.
pub fn init(json: bool) -> io::Result<(Console, Result<(), LauncherError>)> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let color = use_color(
        variable("LOG_COLORIZE").as_deref(),
        variable("NO_COLOR").is_some(),
        !json,
    );
    let (filter, verdict) = match filter(variable("LOG_LEVEL").as_deref().unwrap_or("info")) {
        Ok(filter) => (filter, Ok(())),
        Err(error) => (EnvFilter::new("info"), Err(error)),
    };
    let report = if json {
        |lost| lost_lines(lost).to_json() + "\n"
    } else {
        |lost| PLAIN.render(&lost_lines(lost)) + "\n"
    };
    let console = Console {
        style: Style {
            json,
            color,
            level: filter.max_level_hint().unwrap_or(LevelFilter::TRACE),
        },
        output: Output::start(io::stdout(), report)?,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(color)
        .with_writer(console.output.clone());
    if json {
        subscriber
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .init();
    } else {
        subscriber.init();
    }
    Ok((console, verdict))
}

/// What stands where lines are missing.
fn lost_lines(lost: u64) -> Record {
    let origin = Origin {
        target: "text_generation_launcher".to_owned(),
        rank: None,
    };
    let text = format!("{lost} log lines were lost: standard output took no more");
    Record::from_text(&text, Level::WARN, &origin)
}

fn use_color(colorize: Option<&str>, no_color: bool, person_reads: bool) -> bool {
    match colorize.map(str::to_lowercase).as_deref() {
        Some("1" | "true" | "yes" | "on") => person_reads,
        Some(_) => false,
        None => person_reads && !no_color && io::stdout().is_terminal(),
    }
}

/// Crates of ours that log in this process.
const OURS: [&str; 2] = ["text_generation_launcher", "text_generation_traces"];

/// A bare level speaks about our own processes, not about the libraries inside them.
fn filter(text: &str) -> Result<EnvFilter, LauncherError> {
    let refusal = || {
        LauncherError::Argument(format!(
            "LOG_LEVEL `{text}` must be error, warn, info, debug, trace or off, or directives such as `info,tonic=debug`"
        ))
    };
    let single_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match text.parse::<LevelFilter>() {
        Ok(level) => Ok(EnvFilter::new(
            OURS.map(|target| format!("{target}={level}")).join(","),
        )),
        // As a directive, a misspelt level would be the name of a module and silence everything else.
        Err(_) if single_word => Err(refusal()),
        Err(_) => EnvFilter::try_new(text).map_err(|_| refusal()),
    }
}

/// One line of a child: a record of the log contract, or text of any other origin.
#[derive(Clone, Debug)]
pub struct Record {
    level: Level,
    fields: Map<String, Value>,
}

/// Where a line comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Module name of the program, the target of lines that are no records.
    pub target: String,
    pub rank: Option<usize>,
}

/// What a child has told of its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub phase: String,
    /// 0 to 100.
    pub percent: u64,
}

impl Record {
    /// Reads a record, or none where the line is not a JSON object with a known `level` and a `message`.
    pub fn parse(line: &str, origin: &Origin) -> Option<Self> {
        let fields: Map<String, Value> = serde_json::from_str(line).ok()?;
        let level = fields.get("level")?.as_str()?.parse().ok()?;
        fields.get("message")?.as_str()?;
        Some(Self { level, fields }.with_rank(origin))
    }

    /// Wraps a line that is no record.
    pub fn from_text(line: &str, level: Level, origin: &Origin) -> Self {
        let mut timestamp = String::new();
        // Fails only if the clock cannot be read; the line matters more than its time.
        let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
        let entries = [
            ("timestamp", timestamp),
            ("level", level.to_string()),
            ("message", line.to_owned()),
            ("target", origin.target.clone()),
        ];
        let fields = entries
            .into_iter()
            .map(|(key, value)| (key.to_owned(), Value::String(value)))
            .collect();
        Self { level, fields }.with_rank(origin)
    }

    fn with_rank(mut self, origin: &Origin) -> Self {
        self.fields
            .extend(origin.rank.map(|rank| ("rank".to_owned(), rank.into())));
        self
    }

    fn to_json(&self) -> String {
        serde_json::to_string(&self.fields).unwrap_or_default()
    }

    pub fn level(&self) -> Level {
        self.level
    }

    /// How far a start has come: the field `percent` of a record that names a phase.
    pub fn progress(&self) -> Option<Progress> {
        let percent = self.fields.get("percent")?.as_u64()?.min(100);
        let phase = self.fields.get("phase")?.as_str()?.to_owned();
        Some(Progress { phase, percent })
    }

    /// A field that holds a string, or the empty string.
    pub fn text(&self, key: &str) -> &str {
        self.fields
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }
}

impl Console {
    /// The level in the words that `--logger-level` of the Python commands takes.
    pub fn level_name(&self) -> String {
        let level = self.style.level.into_level();
        level.unwrap_or(Level::ERROR).to_string()
    }

    pub fn is_json(&self) -> bool {
        self.style.json
    }

    /// Writes a record of a child.
    pub fn write(&self, record: &Record) {
        if record.level > self.style.level {
            return;
        }
        self.print(if self.style.json {
            record.to_json()
        } else {
            self.style.render(record)
        });
    }

    /// Prints a line as it is.
    pub fn print(&self, mut line: String) {
        line.push('\n');
        self.output.push(line.into_bytes());
    }

    /// Waits a moment for what is still on its way to standard output.
    pub fn flush(&self) {
        self.output.flush(FLUSH_LIMIT);
    }
}

const PLAIN: Style = Style {
    json: false,
    color: false,
    level: LevelFilter::TRACE,
};

impl Style {
    fn render(&self, record: &Record) -> String {
        let paint = |code: &str, text: &str| match self.color {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        };
        let color = match record.level {
            Level::ERROR => "31",
            Level::WARN => "33",
            Level::INFO => "32",
            Level::DEBUG => "34",
            Level::TRACE => "35",
        };
        let mut line = format!(
            "{} {} {} {}",
            paint("2", record.text("timestamp")),
            paint(color, &format!("{:>5}", record.level.as_str())),
            paint("2", &format!("{}:", record.text("target"))),
            record.text("message"),
        );
        let head = ["timestamp", "level", "target", "message"];
        for (key, value) in record
            .fields
            .iter()
            .filter(|(key, _)| !head.contains(&key.as_str()))
        {
            line.push_str(&format!(" {}={value}", paint("3", key)));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard() -> Origin {
        Origin {
            target: "text_generation_server".to_owned(),
            rank: Some(1),
        }
    }

    fn record(line: &str) -> Record {
        Record::parse(line, &shard()).unwrap()
    }

    #[test]
    fn records_keep_every_field() {
        let line = r#"{"timestamp":"T","level":"WARN","message":"slow","target":"t.m","queue":3,"span":{"id":"x"}}"#;
        assert_eq!(
            PLAIN.render(&record(line)),
            r#"T  WARN t.m: slow queue=3 span={"id":"x"} rank=1"#
        );
        let json = r#"{"timestamp":"T","level":"WARN","message":"slow","target":"t.m","queue":3,"span":{"id":"x"},"rank":1}"#;
        assert_eq!(record(line).to_json(), json);
        assert_eq!(record(line).level(), Level::WARN);
    }

    #[test]
    fn other_lines_are_no_records() {
        for line in [
            "",
            "loading",
            "3",
            "[1]",
            "{}",
            r#"{"level":"INFO"}"#,
            r#"{"level":"LOUD","message":"m"}"#,
        ] {
            assert!(Record::parse(line, &shard()).is_none(), "{line}");
        }
    }

    #[test]
    fn text_gets_time_level_and_origin() {
        let wrapped = Record::from_text("loading", Level::INFO, &shard());
        assert!(
            PLAIN
                .render(&wrapped)
                .ends_with("  INFO text_generation_server: loading rank=1")
        );
        assert!(wrapped.text("timestamp").starts_with("20"));
    }

    #[test]
    fn colors_follow_the_environment() {
        assert!(use_color(Some("1"), false, true));
        assert!(
            use_color(Some("true"), true, true),
            "the variable of ours outweighs NO_COLOR"
        );
        assert!(!use_color(Some("0"), false, true));
        assert!(!use_color(None, true, true));
        assert!(
            !use_color(Some("1"), false, false),
            "JSON is never coloured"
        );
    }

    #[test]
    fn log_level_is_a_level_or_directives() {
        let hint = |text| filter(text).unwrap().max_level_hint();
        assert_eq!(hint("info"), Some(LevelFilter::INFO));
        assert_eq!(hint("WARN"), Some(LevelFilter::WARN));
        assert_eq!(hint("off"), Some(LevelFilter::OFF));
        assert_eq!(hint("info,tonic=debug"), Some(LevelFilter::DEBUG));
        assert!(
            filter("verbose")
                .unwrap_err()
                .to_string()
                .contains("LOG_LEVEL `verbose` must be")
        );
        assert!(filter("a=b=c").is_err());
    }
}
