//! The full screen: progress, latencies, throughput over time, and latency against throughput of finished points.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Row, Sparkline, Table};

use crate::live::{Live, Point};
use crate::report::markdown::number;
use crate::stats::Distribution;

const INTERVAL: Duration = Duration::from_millis(100);
/// A rate is the tokens of so long a time.
const WINDOW: Duration = Duration::from_millis(500);
/// Bars of the histogram.
const BINS: usize = 60;

/// Draws until `ended`; `q` and Ctrl-C stop the benchmark.
pub fn show(live: &Live, ended: &AtomicBool) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let result = draw_until(&mut terminal, live, ended);
    ratatui::restore();
    result
}

fn draw_until(
    terminal: &mut ratatui::DefaultTerminal,
    live: &Live,
    ended: &AtomicBool,
) -> io::Result<()> {
    let mut rates = Rates::default();
    while !ended.load(Relaxed) {
        let point = live.point().clone();
        let counters = Counters::of(live);
        rates.update(&point, counters.tokens);
        terminal.draw(|frame| draw(frame, &point, counters, &rates))?;
        if event::poll(INTERVAL)? && is_quit(&event::read()?) {
            live.stop();
        }
    }
    Ok(())
}

fn is_quit(event: &Event) -> bool {
    let Some(key) = event.as_key_press_event() else {
        return false;
    };
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.code == KeyCode::Char('q') || interrupt
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy)]
struct Counters {
    tokens: u64,
    running: u64,
    done: u64,
    failed: u64,
}

impl Counters {
    fn of(live: &Live) -> Self {
        Self {
            tokens: live.tokens.load(Relaxed),
            running: live.running.load(Relaxed),
            done: live.done.load(Relaxed),
            failed: live.failed.load(Relaxed),
        }
    }
}

/// Tokens per second of the point that runs, over its time.
#[derive(Debug, Default)]
struct Rates {
    started: Option<Instant>,
    last: Option<(Instant, u64)>,
    /// (seconds since the start, tokens per second)
    series: Vec<(f64, f64)>,
}

impl Rates {
    fn update(&mut self, point: &Point, tokens: u64) {
        if self.started != point.started {
            self.started = point.started;
            self.last = point.started.map(|started| (started, 0));
            self.series.clear();
        }
        let (Some(started), Some((since, before))) = (self.started, self.last) else {
            return;
        };
        let now = Instant::now();
        let window = now.saturating_duration_since(since);
        if window >= WINDOW {
            let rate = tokens.saturating_sub(before) as f64 / window.as_secs_f64();
            let at = now.saturating_duration_since(started).as_secs_f64();
            self.series.push((at, rate));
            self.last = Some((now, tokens));
        }
    }
}

fn draw(frame: &mut Frame<'_>, point: &Point, counters: Counters, rates: &Rates) {
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(3),
        Constraint::Length(point.samples.len().max(1) as u16 + 3),
        Constraint::Min(6),
        Constraint::Length(1),
    ]);
    let [title, progress, latencies, plots, help] = rows.areas(frame.area());
    let name = format!(
        "{} [{}/{}]",
        point.label,
        point.index + 1,
        point.points.max(1)
    );
    frame.render_widget(Line::from(name).bold(), title);
    draw_progress(frame, progress, point, counters);
    draw_latencies(frame, latencies, point);
    let columns = Layout::horizontal([Constraint::Ratio(1, 3); 3]);
    let [over_time, histogram, against] = columns.areas(plots);
    draw_line(
        frame,
        over_time,
        ("tokens/s over seconds", GraphType::Line),
        &rates.series,
    );
    draw_histogram(frame, histogram, point);
    draw_line(
        frame,
        against,
        ("latency (ms) over tokens/s", GraphType::Scatter),
        &point.finished,
    );
    frame.render_widget(
        Line::from("q or Ctrl-C: stop and keep the results").dim(),
        help,
    );
}

fn draw_progress(frame: &mut Frame<'_>, area: Rect, point: &Point, counters: Counters) {
    let ended = counters.done + counters.failed;
    let ratio = |part: f64, whole: f64| {
        if whole > 0.0 {
            (part / whole).clamp(0.0, 1.0)
        } else {
            0.0
        }
    };
    let this = ratio(ended as f64, point.total as f64);
    let color = if counters.failed > 0 {
        Color::Red
    } else {
        Color::Green
    };
    let label = format!(
        "{ended}/{} done, {} running, {} failed",
        point.total, counters.running, counters.failed
    );
    let all = ratio(point.index as f64 + this, point.points as f64);
    let [left, right] = Layout::horizontal([Constraint::Ratio(1, 2); 2]).areas(area);
    let gauge = |title: &'static str, color| {
        Gauge::default()
            .block(Block::bordered().title(title))
            .gauge_style(Style::new().fg(color))
    };
    frame.render_widget(gauge("All points", color).ratio(all), left);
    frame.render_widget(
        gauge("This point", Color::Blue).ratio(this).label(label),
        right,
    );
}

fn draw_latencies(frame: &mut Frame<'_>, area: Rect, point: &Point) {
    let rows = point.samples.iter().filter_map(|(name, samples)| {
        let d = Distribution::of(samples.clone())?;
        let cells = [d.mean, d.min, d.p50, d.p90, d.p99, d.max].map(number);
        Some(Row::new(std::iter::once((*name).to_owned()).chain(cells)))
    });
    let table = Table::new(rows, [Constraint::Fill(1); 7])
        .header(Row::new(["ms", "mean", "lowest", "p50", "p90", "p99", "highest"]).bold())
        .block(Block::bordered().title("Latency"));
    frame.render_widget(table, area);
}

fn draw_histogram(frame: &mut Frame<'_>, area: Rect, point: &Point) {
    let Some((name, samples)) = point.samples.first() else {
        frame.render_widget(Block::bordered().title("no sample yet"), area);
        return;
    };
    let (bins, low, high) = histogram(samples);
    let title = format!("{name}: {} to {} ms", number(low), number(high));
    let bars = Sparkline::default()
        .block(Block::bordered().title(title))
        .data(bins)
        .style(Style::new().fg(Color::Cyan));
    frame.render_widget(bars, area);
}

/// Counts in equal bins between the lowest and the 99th percentile, and these two; the tail is in the last bin.
fn histogram(samples: &[f64]) -> (Vec<u64>, f64, f64) {
    let Some(summary) = Distribution::of(samples.to_vec()) else {
        return (Vec::new(), 0.0, 0.0);
    };
    let width = ((summary.p99 - summary.min) / BINS as f64).max(f64::MIN_POSITIVE);
    let mut bins = vec![0; BINS];
    for sample in samples {
        let bin = ((sample - summary.min) / width) as usize;
        bins[bin.min(BINS - 1)] += 1;
    }
    (bins, summary.min, summary.p99)
}

fn draw_line(
    frame: &mut Frame<'_>,
    area: Rect,
    (title, kind): (&str, GraphType),
    series: &[(f64, f64)],
) {
    let most = |of: fn(&(f64, f64)) -> f64| series.iter().map(of).fold(1e-3, f64::max) * 1.1;
    let (right, top) = (most(|mark| mark.0), most(|mark| mark.1));
    let axis = |end: f64| {
        Axis::default()
            .bounds([0.0, end])
            .labels([number(0.0), number(end / 2.0), number(end)])
    };
    let data = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(kind)
        .style(Style::new().fg(Color::Yellow))
        .data(series);
    let chart = Chart::new(vec![data])
        .block(Block::bordered().title(title))
        .x_axis(axis(right))
        .y_axis(axis(top));
    frame.render_widget(chart, area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn drawn(live: &Live) -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, 30)).unwrap();
        let point = live.point().clone();
        let mut rates = Rates::default();
        rates.update(&point, 0);
        let screen = |frame: &mut Frame<'_>| draw(frame, &point, Counters::of(live), &rates);
        terminal.draw(screen).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_shows_progress_failures_and_latencies() {
        let live = Live::default();
        live.begin("concurrency 8", 1, 3, 40);
        live.done.store(9, Relaxed);
        live.failed.store(1, Relaxed);
        live.sample("TTFT", 12.5);
        live.end(800.0, 20.0);
        let screen = drawn(&live);
        for part in [
            "concurrency 8 [2/3]",
            "10/40 done, 0 running, 1 failed",
            "TTFT",
            "12.50",
            "q or Ctrl-C",
        ] {
            assert!(screen.contains(part), "{part} is missing:\n{screen}");
        }
    }

    #[test]
    fn nothing_measured_yet_can_be_drawn() {
        assert!(drawn(&Live::default()).contains("no sample yet"));
    }

    #[test]
    fn the_histogram_counts_every_sample_once() {
        let samples: Vec<f64> = (0..500).map(f64::from).chain([1e6]).collect();
        let (bins, low, high) = histogram(&samples);
        assert_eq!(bins.iter().sum::<u64>(), 501);
        assert_eq!(low, 0.0);
        assert!(high < 500.0);
        assert_eq!(histogram(&[3.0, 3.0]).0.iter().sum::<u64>(), 2);
    }
}
