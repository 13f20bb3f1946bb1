//! One line of a child, as a record of the log contract, and how it is written.

use serde_json::{Map, Value};
use tracing::Level;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

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

    /// For programs: one line of JSON.
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string(&self.fields).unwrap_or_default()
    }

    /// For people: time, level, target and message, then the other fields.
    pub(super) fn to_text(&self, color: bool) -> String {
        let paint = |code: &str, text: &str| match color {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        };
        let code = match self.level {
            Level::ERROR => "31",
            Level::WARN => "33",
            Level::INFO => "32",
            Level::DEBUG => "34",
            Level::TRACE => "35",
        };
        let mut line = format!(
            "{} {} {} {}",
            paint("2", self.text("timestamp")),
            paint(code, &format!("{:>5}", self.level.as_str())),
            paint("2", &format!("{}:", self.text("target"))),
            self.text("message"),
        );
        let head = ["timestamp", "level", "target", "message"];
        for (key, value) in self
            .fields
            .iter()
            .filter(|(key, _)| !head.contains(&key.as_str()))
        {
            line.push_str(&format!(" {}={value}", paint("3", key)));
        }
        line
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
            record(line).to_text(false),
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
            wrapped
                .to_text(false)
                .ends_with("  INFO text_generation_server: loading rank=1")
        );
        assert!(wrapped.text("timestamp").starts_with("20"));
    }
}
