//! Figures of one point of the grid, from its runs.

use std::collections::BTreeMap;
use std::time::Duration;

use text_generation_client::ClientError;

use super::args::Place;
use super::step::Run;
use crate::report::{ErrorCount, Point};
use crate::stats::Distribution;

/// The figures of one point. Throughput of the prefill counts prompt tokens, of the decode new ones.
pub fn summarize(place: &Place, runs: &[Run], error: Option<&ClientError>) -> Point {
    let duration: Duration = runs.iter().map(|run| run.prefill + run.decode).sum();
    Point {
        label: place.label(),
        duration_s: duration.as_secs_f64(),
        completed: runs.len(),
        failed: usize::from(error.is_some()),
        errors: error.map(count).into_iter().collect(),
        latency_ms: latencies(place, runs),
        rates: rates(place, runs),
        notes: notes(runs),
        ..Point::default()
    }
}

fn latencies(place: &Place, runs: &[Run]) -> BTreeMap<String, Distribution> {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let decoded = || runs.iter().filter(|run| run.steps > 0);
    let token = runs
        .iter()
        .filter_map(|run| run.decode_token(place.batch_size));
    [
        (
            "prefill",
            runs.iter().map(|run| milliseconds(run.prefill)).collect(),
        ),
        ("decode_token", token.map(milliseconds).collect()),
        (
            "decode_total",
            decoded()
                .map(|run| milliseconds(run.decode))
                .collect::<Vec<_>>(),
        ),
    ]
    .into_iter()
    .filter_map(|(name, samples)| Some((name.to_owned(), Distribution::of(samples)?)))
    .collect()
}

fn rates(place: &Place, runs: &[Run]) -> BTreeMap<String, f64> {
    let prompt = f64::from(place.batch_size) * f64::from(place.sequence_length);
    let decoded = || runs.iter().filter(|run| run.tokens > 0);
    let prefill = runs.iter().map(|run| prompt / run.prefill.as_secs_f64());
    let decode = decoded().map(|run| run.tokens as f64 / run.decode.as_secs_f64());
    let mut rates = BTreeMap::new();
    for (name, samples) in [
        ("prefill", prefill.collect()),
        ("decode", decode.collect::<Vec<_>>()),
    ] {
        if let Some(rate) = Distribution::of(samples) {
            rates.insert(format!("{name}_tokens_per_s"), rate.mean);
            rates.insert(format!("{name}_tokens_per_s_lowest"), rate.min);
            rates.insert(format!("{name}_tokens_per_s_highest"), rate.max);
        }
    }
    let steps: u32 = runs.iter().map(|run| run.steps).sum();
    if steps > 0 {
        let idle: Duration = runs.iter().map(|run| run.idle).sum();
        rates.insert(
            "device_idle_us_per_step".to_owned(),
            (idle / steps).as_secs_f64() * 1e6,
        );
    }
    rates
}

fn notes(runs: &[Run]) -> Vec<String> {
    let compiled = runs
        .iter()
        .map(|run| run.kernel_compilations)
        .max()
        .unwrap_or(0);
    if compiled > 0 {
        vec![format!(
            "{compiled} kernels were compiled after Warmup; the figures hold some of that time."
        )]
    } else {
        Vec::new()
    }
}

fn count(error: &ClientError) -> (String, ErrorCount) {
    let kind = match error {
        ClientError::Shard { reason, .. } => reason.clone(),
        ClientError::Connection(_) => "connection_lost".to_owned(),
        ClientError::Deadline { .. } | ClientError::Overdue { .. } => "timeout".to_owned(),
        ClientError::Disagreement { .. } => "disagreement".to_owned(),
        ClientError::EmptyResults | ClientError::Pixels(_) => "empty".to_owned(),
    };
    let example = error.to_string();
    (kind, ErrorCount { count: 1, example })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place {
        batch_size: 2,
        sequence_length: 10,
        decode_length: 5,
    };

    /// Two requests, four decodes of one token each.
    fn run(prefill: u64, decode: u64) -> Run {
        Run {
            prefill: Duration::from_millis(prefill),
            decode: Duration::from_millis(decode),
            steps: 4,
            tokens: 8,
            ..Run::default()
        }
    }

    #[test]
    fn latency_is_a_step_and_throughput_the_whole_batch() {
        let point = summarize(&PLACE, &[run(10, 40), run(20, 80)], None);
        assert_eq!(point.latency_ms["prefill"].mean, 15.0);
        assert_eq!(point.latency_ms["decode_token"].min, 10.0);
        assert_eq!(point.latency_ms["decode_total"].max, 80.0);
        assert!((point.rates["prefill_tokens_per_s_highest"] - 2000.0).abs() < 1e-6);
        assert!((point.rates["decode_tokens_per_s"] - 150.0).abs() < 1e-6);
    }

    #[test]
    fn a_single_token_has_no_decode() {
        let only_prefill = Run {
            prefill: Duration::from_millis(5),
            ..Run::default()
        };
        let point = summarize(&PLACE, &[only_prefill], None);
        assert_eq!(point.latency_ms.keys().collect::<Vec<_>>(), ["prefill"]);
        assert!(!point.rates.contains_key("decode_tokens_per_s"));
    }

    #[test]
    fn compiled_kernels_and_failures_are_told() {
        let compiled = Run {
            kernel_compilations: 3,
            ..run(1, 4)
        };
        let error = ClientError::Shard {
            shard: 0,
            reason: "out_of_memory".to_owned(),
            message: "too large".to_owned(),
        };
        let point = summarize(&PLACE, &[compiled], Some(&error));
        assert!(point.notes[0].contains("3 kernels"));
        assert_eq!((point.failed, point.errors["out_of_memory"].count), (1, 1));
    }
}
