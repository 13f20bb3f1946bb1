//! Destination of results, the same for both modes.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::error::{BenchmarkError, Result};
use crate::live::Live;
use crate::report::{self, Report, csv, markdown, plot};

/// Flags about results.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Save the report, for `compare` and for other programs.
    #[arg(long, value_name = "FILE")]
    pub output_json: Option<PathBuf>,
    /// Save one row a figure.
    #[arg(long, value_name = "FILE")]
    pub output_csv: Option<PathBuf>,
    /// Save the tables that are printed at the end.
    #[arg(long, value_name = "FILE")]
    pub output_markdown: Option<PathBuf>,
    /// Save a plot of latency against throughput as SVG.
    #[arg(long, value_name = "FILE")]
    pub output_plot: Option<PathBuf>,
    /// A progress bar instead of the full screen; chosen by itself when standard output is no terminal.
    #[arg(long)]
    pub no_tui: bool,
}

impl OutputArgs {
    /// Refuses, before anything is measured, files that could not be written at the end.
    pub fn check(&self) -> Result<()> {
        let files = [
            &self.output_json,
            &self.output_csv,
            &self.output_markdown,
            &self.output_plot,
        ];
        for path in files.into_iter().flatten() {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            if path.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(BenchmarkError::file(
                    path,
                    "cannot be written: it is a folder, or its folder does not exist",
                ));
            }
        }
        Ok(())
    }

    /// Prints the tables and saves what was asked for. Every file is tried, whatever happens to the others.
    pub fn write(&self, report: &Report) -> Result<()> {
        let tables = markdown::render(report);
        print(&format!("{tables}\n"));
        let json = self.output_json.as_ref().map(|path| report.save(path));
        let csv = self
            .output_csv
            .as_ref()
            .map(|path| report::write(path, &csv::render(report)));
        let markdown = self
            .output_markdown
            .as_ref()
            .map(|path| report::write(path, &tables));
        let plot = self
            .output_plot
            .as_ref()
            .map(|path| plot::save(report, path));
        [json, csv, markdown, plot].into_iter().flatten().collect()
    }

    /// The end of a benchmark: results first, then what went wrong.
    pub fn finish(&self, report: &Report, live: &Live, outcome: Result<()>) -> Result<()> {
        if !report.points.is_empty() {
            self.write(report)?;
        }
        outcome?;
        match report.failures() {
            Some(failures) => Err(failures),
            None if live.stopped() => Err(BenchmarkError::Interrupted),
            None => Ok(()),
        }
    }
}

/// Prints `text`. A reader that wants no more of it, as `head` does, must not cost the results that go to files.
pub fn print(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}
