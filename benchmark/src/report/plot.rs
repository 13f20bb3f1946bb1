//! Latency against throughput as SVG: one curve a latency, one mark a point.

use std::path::Path;

use plotters::prelude::*;

use super::{Point, Report};
use crate::error::{BenchmarkError, Result};

const SIZE: (u32, u32) = (960, 600);
/// What is drawn, p50 and p99 of each, in the order of preference; of another mode nothing is there.
const LATENCIES: [&str; 4] = ["ttft", "tpot", "prefill", "decode_token"];
const THROUGHPUTS: [&str; 2] = ["output_tokens_per_s", "decode_tokens_per_s"];

type Curve = (String, Vec<(f64, f64)>);

/// Writes the plot.
///
/// # Errors
/// When no point has both a throughput and a latency, or the file cannot be written.
pub fn save(report: &Report, path: &Path) -> Result<()> {
    let curves = curves(report);
    if curves.is_empty() {
        return Err(BenchmarkError::file(
            path,
            "there is no finished point to plot",
        ));
    }
    draw(report, &curves, path).map_err(|error| BenchmarkError::file(path, error))
}

fn throughput(point: &Point) -> Option<f64> {
    THROUGHPUTS
        .iter()
        .find_map(|name| point.rates.get(*name).copied())
}

fn curves(report: &Report) -> Vec<Curve> {
    let mut curves = Vec::new();
    for name in LATENCIES {
        for (statistic, p99) in [("p50", false), ("p99", true)] {
            let marks = report.points.iter().filter_map(|point| {
                let latency = point.latency_ms.get(name)?;
                Some((
                    throughput(point)?,
                    if p99 { latency.p99 } else { latency.p50 },
                ))
            });
            let marks: Vec<(f64, f64)> =
                marks.filter(|mark| mark.0 > 0.0 && mark.1 > 0.0).collect();
            if !marks.is_empty() {
                curves.push((format!("{name} {statistic}"), marks));
            }
        }
    }
    curves
}

fn draw(
    report: &Report,
    curves: &[Curve],
    path: &Path,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let marks = || curves.iter().flat_map(|(_, marks)| marks.iter());
    let fastest = marks().map(|mark| mark.0).fold(0.0, f64::max) * 1.05;
    let highest = marks().map(|mark| mark.1).fold(0.0, f64::max) * 1.5;
    let lowest = marks().map(|mark| mark.1).fold(highest, f64::min) / 1.5;
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            format!("{} ({} mode)", report.model, report.mode),
            ("sans-serif", 20),
        )
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..fastest, (lowest..highest).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("output tokens per second")
        .y_desc("latency (ms)")
        .draw()?;
    for (index, (name, marks)) in curves.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(
                marks.iter().copied(),
                color.stroke_width(2),
            ))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled()));
        chart.draw_series(
            marks
                .iter()
                .map(|mark| Circle::new(*mark, 4, color.filled())),
        )?;
    }
    let (_, first) = &curves[0];
    let labels = report
        .points
        .iter()
        .filter(|point| throughput(point).is_some());
    chart.draw_series(
        first
            .iter()
            .zip(labels)
            .map(|(mark, point)| Text::new(point.label.clone(), *mark, ("sans-serif", 12))),
    )?;
    chart
        .configure_series_labels()
        .background_style(WHITE)
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Distribution;

    #[test]
    fn a_plot_has_a_curve_for_each_latency_and_the_labels_of_the_points() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.svg");
        let mut report = Report::new("server", "some-model".to_owned());
        for (clients, ttft, tokens) in [(1, 10.0, 100.0), (8, 30.0, 600.0)] {
            report.points.push(Point {
                label: format!("concurrency {clients}"),
                latency_ms: [("ttft".to_owned(), Distribution::of(vec![ttft]).unwrap())].into(),
                rates: [("output_tokens_per_s".to_owned(), tokens)].into(),
                ..Point::default()
            });
        }
        save(&report, &path).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for part in [
            "<svg",
            "some-model",
            "ttft p50",
            "ttft p99",
            "concurrency 8",
        ] {
            assert!(svg.contains(part), "{part}");
        }
        assert!(svg.matches("<polyline").count() >= 2);
    }

    #[test]
    fn nothing_measured_is_nothing_to_plot() {
        let report = Report::new("server", "m".to_owned());
        let error = save(&report, Path::new("x.svg")).unwrap_err();
        assert!(error.to_string().contains("no finished point"));
    }
}
