//! The report as CSV, one row a figure: easy to filter, and a new figure adds no column.

use super::{Point, Report};

/// The statistic that is a share of what the machine could do.
pub const FRACTION: &str = "fraction_of_floor";

/// `mode,model,point,quantity,statistic,value` for every figure of the report. Latencies are in ms.
pub fn render(report: &Report) -> String {
    let mut text = "mode,model,point,quantity,statistic,value\n".to_owned();
    for point in &report.points {
        for (quantity, statistic, value) in figures(point) {
            let fields =
                [&report.mode, &report.model, &point.label, &quantity].map(|field| quote(field));
            text.push_str(&format!("{},{statistic},{value}\n", fields.join(",")));
        }
    }
    text
}

/// Every figure of a point: (quantity, statistic, value).
pub fn figures(point: &Point) -> Vec<(String, &'static str, f64)> {
    let mut figures = vec![
        ("duration_s".to_owned(), "value", point.duration_s),
        ("completed".to_owned(), "value", point.completed as f64),
        ("failed".to_owned(), "value", point.failed as f64),
    ];
    for (name, d) in &point.latency_ms {
        let statistics = [
            ("mean", d.mean),
            ("min", d.min),
            ("p50", d.p50),
            ("p90", d.p90),
            ("p95", d.p95),
            ("p99", d.p99),
            ("max", d.max),
        ];
        figures
            .extend(statistics.map(|(statistic, value)| (format!("{name}_ms"), statistic, value)));
    }
    let rates = point.rates.iter();
    figures.extend(rates.map(|(name, value)| (name.clone(), "value", *value)));
    for (name, figure) in &point.floor {
        figures.push((name.clone(), "floor", figure.floor));
        figures.push((name.clone(), FRACTION, figure.fraction));
    }
    figures
}

/// RFC 4180.
fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Distribution;

    #[test]
    fn every_figure_has_a_row_and_fields_are_quoted() {
        let mut report = Report::new("server", "a \"b\", c".to_owned());
        report.points.push(Point {
            label: "concurrency 1".to_owned(),
            completed: 4,
            latency_ms: [("ttft".to_owned(), Distribution::of(vec![1.0, 2.0]).unwrap())].into(),
            rates: [("requests_per_s".to_owned(), 2.5)].into(),
            ..Point::default()
        });
        let text = render(&report);
        let model = "server,\"a \"\"b\"\", c\",concurrency 1";
        assert!(text.contains(&format!("{model},ttft_ms,p50,1.5\n")));
        assert!(text.contains(&format!("{model},requests_per_s,value,2.5\n")));
        assert_eq!(text.lines().count(), 1 + 3 + 7 + 1);
    }
}
