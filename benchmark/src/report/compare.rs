//! Comparison of two reports, beside each other.

use super::csv::FRACTION;
use super::markdown::{number, table};
use super::{Point, Report, csv};
use crate::error::{BenchmarkError, Result};

/// Statistics that are compared: tails of few samples say nothing.
const STATISTICS: [&str; 4] = ["value", "mean", "p50", "p99"];

/// A figure that both reports have.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    pub point: String,
    pub figure: String,
    pub before: f64,
    pub after: f64,
}

impl Change {
    /// Relative change in percent; `None` from zero.
    pub fn percent(&self) -> Option<f64> {
        (self.before != 0.0).then(|| (self.after / self.before - 1.0) * 100.0)
    }

    /// Whether more is better; `None` for figures that only describe the load.
    fn more_is_better(&self) -> Option<bool> {
        let (quantity, statistic) = self.figure.split_once(' ').unwrap_or((&self.figure, ""));
        let ends_with = |endings: &[&str]| endings.iter().any(|ending| quantity.ends_with(ending));
        if statistic == FRACTION || ends_with(&["_per_s", "slo_attainment"]) {
            Some(true)
        } else if ends_with(&["_ms", "_us_per_step", "failed"]) {
            Some(false)
        } else {
            None
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.more_is_better(), self.after.total_cmp(&self.before)) {
            (None, _) | (_, std::cmp::Ordering::Equal) => "",
            (Some(more), order) if more == order.is_gt() => "better",
            _ => "worse",
        }
    }
}

/// Every figure of points with the same label.
///
/// # Errors
/// When the reports have no point in common.
pub fn changes(before: &Report, after: &Report) -> Result<Vec<Change>> {
    let pairs = before.points.iter().filter_map(|a| {
        let b = after.points.iter().find(|b| b.label == a.label)?;
        Some((a, b))
    });
    let changes: Vec<Change> = pairs.flat_map(|(a, b)| point_changes(a, b)).collect();
    if changes.is_empty() {
        let labels = |report: &Report| {
            let labels = report.points.iter().map(|point| point.label.as_str());
            labels.collect::<Vec<_>>().join(", ")
        };
        return Err(BenchmarkError::argument(
            "compare",
            format!(
                "the reports have no point in common: {} and {}",
                labels(before),
                labels(after)
            ),
        ));
    }
    Ok(changes)
}

fn point_changes(before: &Point, after: &Point) -> Vec<Change> {
    let new = csv::figures(after);
    csv::figures(before)
        .into_iter()
        .filter(|(_, statistic, _)| STATISTICS.contains(statistic) || *statistic == FRACTION)
        .filter_map(|(quantity, statistic, value)| {
            let same =
                |figure: &&(String, &str, f64)| figure.0 == quantity && figure.1 == statistic;
            let (_, _, other) = new.iter().find(same)?;
            let figure = match statistic {
                "value" => quantity,
                statistic => format!("{quantity} {statistic}"),
            };
            Some(Change {
                point: before.label.clone(),
                figure,
                before: value,
                after: *other,
            })
        })
        .collect()
}

/// The comparison as Markdown, with the settings that differ.
pub fn render(before: &Report, after: &Report) -> Result<String> {
    let rows = changes(before, after)?.into_iter().map(|change| {
        let percent = change
            .percent()
            .map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1} %"));
        let (a, b) = (number(change.before), number(change.after));
        let verdict = change.verdict().to_owned();
        [change.point, change.figure, a, b, percent, verdict]
    });
    let mut text = String::new();
    for name in before.settings.keys().chain(after.settings.keys()) {
        let (a, b) = (before.settings.get(name), after.settings.get(name));
        let line = format!(
            "- {name} differs: {} and {}\n",
            a.map_or_else(|| "unset".to_owned(), ToString::to_string),
            b.map_or_else(|| "unset".to_owned(), ToString::to_string)
        );
        if a != b && !text.contains(&line) {
            text.push_str(&line);
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    table(
        &mut text,
        &["Point", "Figure", "A", "B", "Change", ""],
        rows,
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Distribution;

    fn report(label: &str, ttft: f64, tokens: f64) -> Report {
        let mut report = Report::new("server", "m".to_owned());
        report.points.push(Point {
            label: label.to_owned(),
            latency_ms: [("ttft".to_owned(), Distribution::of(vec![ttft]).unwrap())].into(),
            rates: [("output_tokens_per_s".to_owned(), tokens)].into(),
            ..Point::default()
        });
        report
    }

    #[test]
    fn a_change_says_how_much_and_whether_it_is_better() {
        let (before, after) = (report("c 1", 20.0, 100.0), report("c 1", 10.0, 80.0));
        let changes = changes(&before, &after).unwrap();
        let find = |figure: &str| {
            changes
                .iter()
                .find(|change| change.figure == figure)
                .unwrap()
        };
        let ttft = find("ttft_ms p50");
        assert_eq!((ttft.percent(), ttft.verdict()), (Some(-50.0), "better"));
        let tokens = find("output_tokens_per_s");
        assert!((tokens.percent().unwrap() + 20.0).abs() < 1e-9);
        assert_eq!(tokens.verdict(), "worse");
        assert_eq!(find("failed").verdict(), "");
    }

    #[test]
    fn idle_time_is_worse_and_a_fraction_of_the_floor_better_for_being_more() {
        let verdict = |figure: &str| {
            let change = Change {
                point: "c 1".to_owned(),
                figure: figure.to_owned(),
                before: 0.5,
                after: 0.9,
            };
            change.verdict()
        };
        assert_eq!(verdict("device_idle_us_per_step"), "worse");
        assert_eq!(verdict("decode_token_ms fraction_of_floor"), "better");
        assert_eq!(verdict("output_tokens_per_s fraction_of_floor"), "better");
        assert_eq!(verdict("prompt_tokens_per_request"), "");
    }

    #[test]
    fn reports_without_a_common_point_cannot_be_compared() {
        let error = render(&report("c 1", 1.0, 1.0), &report("c 2", 1.0, 1.0)).unwrap_err();
        assert!(error.to_string().contains("c 1 and c 2"));
    }

    #[test]
    fn settings_that_differ_are_told_once() {
        let (mut before, after) = (report("c 1", 1.0, 1.0), report("c 1", 1.0, 1.0));
        before
            .settings
            .insert("input_length".to_owned(), "512".into());
        let text = render(&before, &after).unwrap();
        assert_eq!(text.matches("input_length differs").count(), 1);
    }
}
