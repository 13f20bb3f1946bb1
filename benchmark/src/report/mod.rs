//! The report of a benchmark, the same for both modes: the settings, and the measurements of each point.

pub mod compare;
pub mod csv;
pub mod markdown;
pub mod plot;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{BenchmarkError, Result};
use crate::overhead::ClientLoad;
use crate::stats::Distribution;

/// A whole benchmark, as it is saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `server` or `shard`.
    pub mode: String,
    pub version: String,
    /// Unix seconds.
    pub started: u64,
    pub model: String,
    /// The command line; a token in it is left out.
    pub command: Vec<String>,
    /// What the points have in common.
    pub settings: BTreeMap<String, Value>,
    pub points: Vec<Point>,
}

/// One point: one load, or one place of the grid.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// What makes this point differ from the others; points of two reports are compared by it.
    pub label: String,
    pub duration_s: f64,
    pub completed: usize,
    pub failed: usize,
    /// By kind.
    pub errors: BTreeMap<String, ErrorCount>,
    pub latency_ms: BTreeMap<String, Distribution>,
    /// Per second, and other single figures.
    pub rates: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub floor: BTreeMap<String, FloorFigure>,
    pub client: Option<ClientLoad>,
    /// What a reader has to know to read the figures rightly.
    pub notes: Vec<String>,
}

/// Failures of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorCount {
    pub count: usize,
    pub example: String,
}

/// A figure beside what the machine could do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FloorFigure {
    pub measured: f64,
    /// In the unit of `measured`.
    pub floor: f64,
    /// 1 is the floor itself; smaller is further away.
    pub fraction: f64,
}

impl Report {
    pub fn new(mode: &str, model: String) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            mode: mode.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: started.map_or(0, |time| time.as_secs()),
            model,
            command: without_tokens(std::env::args()),
            settings: BTreeMap::new(),
            points: Vec::new(),
        }
    }

    pub fn load(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).map_err(|error| BenchmarkError::file(path, error))?;
        serde_json::from_str(&text).map_err(|error| {
            BenchmarkError::file(path, format!("not a report of this program: {error}"))
        })
    }

    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| BenchmarkError::file(path, error))?;
        write(path, &(text + "\n"))
    }

    /// Failed and all requests, and what the first failure said.
    pub fn failures(&self) -> Option<BenchmarkError> {
        let failed = self.points.iter().map(|point| point.failed).sum();
        let total = self
            .points
            .iter()
            .map(|point| point.completed + point.failed)
            .sum();
        let first = self.points.iter().find_map(|point| {
            let (kind, error) = point.errors.iter().max_by_key(|(_, error)| error.count)?;
            Some(format!("{kind}: {}", error.example))
        })?;
        Some(BenchmarkError::Failed {
            failed,
            total,
            first,
        })
    }
}

/// Writes a result file.
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| BenchmarkError::file(path, error))
}

fn without_tokens(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut hidden = false;
    arguments
        .map(|argument| {
            let secret = hidden;
            hidden = argument == "--api-key";
            if secret {
                "***".to_owned()
            } else if argument.starts_with("--api-key=") {
                "--api-key=***".to_owned()
            } else {
                argument
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_keys_stay_out_of_reports() {
        let arguments = ["x", "--api-key", "secret", "--api-key=secret", "--url", "u"];
        let kept = without_tokens(arguments.map(str::to_owned).into_iter());
        assert_eq!(
            kept,
            ["x", "--api-key", "***", "--api-key=***", "--url", "u"]
        );
    }

    #[test]
    fn a_saved_report_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let mut report = Report::new("server", "m".to_owned());
        report.points.push(Point {
            label: "concurrency 1".to_owned(),
            latency_ms: [("ttft".to_owned(), Distribution::of(vec![1.5]).unwrap())].into(),
            ..Point::default()
        });
        report.save(&path).unwrap();
        assert_eq!(Report::load(&path).unwrap(), report);
    }

    #[test]
    fn a_file_that_is_no_report_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write(&path, "{}").unwrap();
        let message = Report::load(&path).unwrap_err().to_string();
        assert!(message.contains("a.json") && message.contains("not a report"));
    }
}
