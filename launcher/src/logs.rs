//! Logging: the launcher's own, and the lines of its children, which become records of the same form.

mod record;

use std::io::{self, IsTerminal};
use std::time::Duration;

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

pub use self::record::{Origin, Progress, Record};
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
    let color = use_color(
        variable("LOG_COLORIZE").as_deref(),
        variable("NO_COLOR").is_some(),
        !json,
    );
    let (filter, verdict) = match level() {
        Ok(filter) => (filter, Ok(())),
        Err(error) => (EnvFilter::new("info"), Err(error)),
    };
    let report = if json {
        |lost| lost_lines(lost).to_json() + "\n"
    } else {
        |lost| lost_lines(lost).to_text(false) + "\n"
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

/// What LOG_LEVEL asks for.
pub fn level() -> Result<EnvFilter, LauncherError> {
    filter(variable("LOG_LEVEL").as_deref().unwrap_or("info"))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What stands where lines are missing.
fn lost_lines(lost: u64) -> Record {
    let origin = Origin {
        target: "text_generation_launcher".to_owned(),
        rank: None,
    };
    let text = format!("{lost} log lines were lost, because standard output was blocked");
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
            "LOG_LEVEL `{text}` (set in the environment) must be error, warn, info, debug, trace or off, or directives such as `info,tonic=debug`"
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
        if record.level() > self.style.level {
            return;
        }
        self.print(if self.style.json {
            record.to_json()
        } else {
            record.to_text(self.style.color)
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

#[cfg(test)]
mod tests {
    use super::*;

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
                .contains("LOG_LEVEL `verbose` (set in the environment) must be")
        );
        assert!(filter("a=b=c").is_err());
    }
}
