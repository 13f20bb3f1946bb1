//! The report as Markdown tables, to paste.

use std::fmt::Write;

use super::{Point, Report};
use crate::stats::Distribution;

/// Names of latencies in the order in which they are shown; what is not listed follows.
const LATENCIES: [(&str, &str); 7] = [
    ("ttft", "TTFT"),
    ("tpot", "TPOT"),
    ("itl", "ITL"),
    ("e2e", "End to end"),
    ("prefill", "Prefill"),
    ("decode_token", "Decode (token)"),
    ("decode_total", "Decode (total)"),
];

/// The whole report as Markdown.
pub fn render(report: &Report) -> String {
    let mut text = format!("**{}**, {} mode\n\n", report.model, report.mode);
    let settings = report.settings.iter().map(|(name, value)| {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        [name.clone(), value]
    });
    table(&mut text, &["Parameter", "Value"], settings);
    text.push('\n');
    latency_table(&mut text, report);
    rate_table(&mut text, report);
    floor_table(&mut text, report);
    for point in &report.points {
        remarks(&mut text, point);
    }
    text
}

fn latency_table(text: &mut String, report: &Report) {
    let head = [
        "Point",
        "Latency (ms)",
        "Mean",
        "Lowest",
        "p50",
        "p90",
        "p95",
        "p99",
        "Highest",
    ];
    let rows = report.points.iter().flat_map(|point| {
        latencies(point).map(|(name, d)| {
            let [mean, min, p50, p90, p95, p99, max] =
                [d.mean, d.min, d.p50, d.p90, d.p95, d.p99, d.max].map(number);
            [
                point.label.clone(),
                name,
                mean,
                min,
                p50,
                p90,
                p95,
                p99,
                max,
            ]
        })
    });
    table(text, &head, rows);
    text.push('\n');
}

/// Latencies with the names a reader knows, in reading order.
pub fn latencies(point: &Point) -> impl Iterator<Item = (String, Distribution)> {
    let known = LATENCIES
        .iter()
        .filter_map(|(key, name)| Some(((*name).to_owned(), *point.latency_ms.get(*key)?)));
    let other = point
        .latency_ms
        .iter()
        .filter(|(key, _)| LATENCIES.iter().all(|(known, _)| known != key))
        .map(|(key, distribution)| (key.clone(), *distribution));
    known.chain(other)
}

fn rate_table(text: &mut String, report: &Report) {
    let mut names: Vec<&str> = Vec::new();
    for name in report.points.iter().flat_map(|point| point.rates.keys()) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let titles: Vec<String> = names
        .iter()
        .map(|name| name.replace('_', " ").replace(" per s", "/s"))
        .collect();
    let mut head = vec!["Point", "Done", "Failed", "Seconds"];
    head.extend(titles.iter().map(String::as_str));
    let rows = report.points.iter().map(|point| {
        let mut row = vec![
            point.label.clone(),
            point.completed.to_string(),
            point.failed.to_string(),
            number(point.duration_s),
        ];
        row.extend(names.iter().map(|name| {
            point
                .rates
                .get(*name)
                .map_or_else(|| "-".to_owned(), |rate| number(*rate))
        }));
        row
    });
    table(text, &head, rows);
    text.push('\n');
}

fn floor_table(text: &mut String, report: &Report) {
    let mut rows = report
        .points
        .iter()
        .flat_map(|point| {
            point.floor.iter().map(|(name, figure)| {
                let name = name.replace('_', " ");
                [
                    point.label.clone(),
                    name,
                    number(figure.measured),
                    number(figure.floor),
                    format!("{:.0} %", figure.fraction * 100.0),
                ]
            })
        })
        .peekable();
    if rows.peek().is_some() {
        let head = ["Point", "Figure", "Measured", "Floor", "Of the floor"];
        table(text, &head, rows);
        text.push('\n');
    }
}

fn remarks(text: &mut String, point: &Point) {
    let errors = point
        .errors
        .iter()
        .map(|(kind, error)| format!("{} x {kind}: {}", error.count, error.example));
    let client = point.client.iter().flat_map(|client| {
        let lag = client.loop_lag_ms.map_or(0.0, |lag| lag.p99);
        let used = format!(
            "The client used {:.2} cores of {} threads; its event loop was late by {lag:.2} ms (p99).",
            client.cores_used, client.threads
        );
        let limit = client
            .limit
            .iter()
            .map(|why| format!("**The client, not the server, was the limit: {why}.**"));
        std::iter::once(used).chain(limit)
    });
    for line in errors.chain(point.notes.iter().cloned()).chain(client) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- {}: {}", point.label, line.replace('\n', " "));
    }
}

/// A number with about four significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Appends a table; columns are aligned for reading as plain text.
pub fn table<R, C>(text: &mut String, head: &[&str], rows: R)
where
    R: Iterator<Item = C>,
    C: IntoIterator<Item = String>,
{
    let rows: Vec<Vec<String>> = rows
        .map(|row| {
            row.into_iter()
                .map(|cell| cell.replace('|', "\\|"))
                .collect()
        })
        .collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .chain([head[column].chars().count(), 3])
            .max()
    };
    let widths: Vec<usize> = (0..head.len()).filter_map(width).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        for (cell, width) in cells.zip(&widths) {
            let _ = write!(text, "| {cell:width$} ");
        }
        text.push_str("|\n");
    };
    let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    line(&mut head.iter().copied());
    line(&mut rules.iter().map(String::as_str));
    for row in &rows {
        line(&mut row.iter().map(String::as_str));
    }
}
