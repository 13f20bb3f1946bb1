//! Figures of one point, from the outcomes of its requests.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::client::Outcome;
use super::load::Measured;
use crate::report::{ErrorCount, Point};
use crate::stats::Distribution;

/// Bounds in ms that a request has to keep to count as good.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Slo {
    pub ttft: Option<f64>,
    pub tpot: Option<f64>,
    pub e2e: Option<f64>,
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut slo = Self::default();
        for part in text.split(',') {
            let bad = || format!("`{part}`: write for example ttft=500,tpot=30,e2e=10000 (ms)");
            let (name, value) = part.split_once('=').ok_or_else(bad)?;
            let value: f64 = value.trim().parse().map_err(|_| bad())?;
            let bound = match name.trim() {
                "ttft" => &mut slo.ttft,
                "tpot" => &mut slo.tpot,
                "e2e" => &mut slo.e2e,
                _ => return Err(bad()),
            };
            *bound = (value > 0.0).then_some(value).ok_or_else(bad)?.into();
        }
        Ok(slo)
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = [("ttft", self.ttft), ("tpot", self.tpot), ("e2e", self.e2e)];
        let parts = bounds
            .iter()
            .filter_map(|(name, bound)| bound.map(|bound| format!("{name}={bound}")));
        f.write_str(&parts.collect::<Vec<_>>().join(","))
    }
}

impl Slo {
    /// A single token has no time per token, so it keeps that bound.
    fn kept_by(&self, outcome: &Outcome) -> bool {
        let within = |bound: Option<f64>, time: Option<Duration>| match (bound, time) {
            (Some(bound), Some(time)) => milliseconds(time) <= bound,
            _ => true,
        };
        within(self.ttft, outcome.time_to_first_token())
            && within(self.tpot, outcome.time_per_output_token())
            && within(self.e2e, Some(outcome.end_to_end()))
    }
}

/// The figures of one point; those of the client itself and of the floor are added by the caller.
pub fn point(label: String, measured: &Measured, slo: Option<&Slo>) -> Point {
    let good: Vec<&Outcome> = measured
        .outcomes
        .iter()
        .filter(|outcome| outcome.failure.is_none())
        .collect();
    let end = measured
        .outcomes
        .iter()
        .map(|outcome| outcome.finished)
        .max();
    let duration = end.map_or(Duration::ZERO, |end| {
        end.saturating_duration_since(measured.started)
    });
    Point {
        label,
        duration_s: duration.as_secs_f64(),
        completed: good.len(),
        failed: measured.outcomes.len() - good.len(),
        errors: errors(&measured.outcomes),
        latency_ms: latencies(&good),
        rates: rates(&good, duration.as_secs_f64(), slo),
        notes: notes(&good, measured.server_lost),
        ..Point::default()
    }
}

fn latencies(good: &[&Outcome]) -> BTreeMap<String, Distribution> {
    let gaps = good.iter().flat_map(|outcome| {
        let pairs = outcome.arrivals.windows(2);
        pairs.map(|pair| milliseconds(pair[1] - pair[0]))
    });
    let of = |time: fn(&Outcome) -> Option<Duration>| {
        let times = good.iter().filter_map(|outcome| time(outcome));
        times.map(milliseconds).collect::<Vec<f64>>()
    };
    [
        ("ttft", of(Outcome::time_to_first_token)),
        ("tpot", of(Outcome::time_per_output_token)),
        ("itl", gaps.collect()),
        ("e2e", of(|outcome| Some(outcome.end_to_end()))),
    ]
    .into_iter()
    .filter_map(|(name, samples)| Some((name.to_owned(), Distribution::of(samples)?)))
    .collect()
}

fn rates(good: &[&Outcome], seconds: f64, slo: Option<&Slo>) -> BTreeMap<String, f64> {
    let mut rates = BTreeMap::new();
    if good.is_empty() || seconds <= 0.0 {
        return rates;
    }
    let requests = good.len() as f64;
    let output: f64 = good.iter().map(|outcome| f64::from(outcome.tokens())).sum();
    let prompt = good
        .iter()
        .map(|outcome| outcome.prompt_tokens.map(f64::from))
        .sum::<Option<f64>>();
    let busy: f64 = good
        .iter()
        .map(|outcome| outcome.end_to_end().as_secs_f64())
        .sum();
    let mut set = |name: &str, value| rates.insert(name.to_owned(), value);
    set("requests_per_s", requests / seconds);
    set("output_tokens_per_s", output / seconds);
    set("output_tokens_per_request", output / requests);
    let images: usize = good.iter().map(|outcome| outcome.images).sum();
    if images > 0 {
        set("images_per_request", images as f64 / requests);
        set("images_per_s", images as f64 / seconds);
    }
    // Little's law: requests that run or wait at once, in the mean.
    set("concurrency", busy / seconds);
    if let Some(prompt) = prompt {
        set("total_tokens_per_s", (prompt + output) / seconds);
        set("prompt_tokens_per_request", prompt / requests);
    }
    if let Some(slo) = slo {
        let kept = good.iter().filter(|outcome| slo.kept_by(outcome)).count() as f64;
        set("goodput_requests_per_s", kept / seconds);
        set("slo_attainment", kept / requests);
    }
    rates
}

fn errors(outcomes: &[Outcome]) -> BTreeMap<String, ErrorCount> {
    let mut errors: BTreeMap<String, ErrorCount> = BTreeMap::new();
    for failure in outcomes
        .iter()
        .filter_map(|outcome| outcome.failure.as_ref())
    {
        errors
            .entry(failure.kind.clone())
            .and_modify(|error| error.count += 1)
            .or_insert_with(|| ErrorCount {
                count: 1,
                example: failure.message.clone(),
            });
    }
    errors
}

fn notes(good: &[&Outcome], server_lost: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if server_lost {
        notes.push("The server went away; the point ended early.".to_owned());
    }
    let uncounted = good
        .iter()
        .filter(|outcome| outcome.output_tokens.is_none())
        .count();
    if uncounted > 0 {
        notes.push(format!(
            "{uncounted} answers came without usage; their tokens are the number of their events."
        ));
    }
    let short = good
        .iter()
        .filter(|outcome| outcome.tokens() < outcome.requested_tokens)
        .count();
    if short > 0 {
        notes.push(format!(
            "{short} answers ended before the requested length; the server may not know ignore_eos."
        ));
    }
    notes
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::server::failure::Failure;

    /// Due at `start + due`, events at the given ms after the start.
    fn outcome(start: Instant, due: u64, arrivals: &[u64], tokens: Option<u32>) -> Outcome {
        let at = |ms: u64| start + Duration::from_millis(ms);
        Outcome {
            scheduled: at(due),
            sent: at(due),
            arrivals: arrivals.iter().map(|ms| at(*ms)).collect(),
            last: arrivals.last().map(|ms| at(*ms)),
            finished: at(*arrivals.last().unwrap_or(&due)),
            requested_tokens: 3,
            images: 0,
            prompt_tokens: Some(10),
            output_tokens: tokens,
            text: String::new(),
            failure: None,
        }
    }

    fn measured(start: Instant, outcomes: Vec<Outcome>) -> Measured {
        Measured {
            started: start,
            outcomes,
            server_lost: false,
        }
    }

    #[test]
    fn latencies_count_from_the_scheduled_time() {
        let start = Instant::now();
        let mut late = outcome(start, 100, &[150, 160, 170], Some(3));
        late.sent = start + Duration::from_millis(140);
        let point = point("x".to_owned(), &measured(start, vec![late]), None);
        assert_eq!(point.latency_ms["ttft"].p50, 50.0);
        assert_eq!(point.latency_ms["e2e"].p50, 70.0);
        assert_eq!(point.latency_ms["itl"].count, 2);
        assert_eq!(point.latency_ms["tpot"].mean, 10.0);
    }

    #[test]
    fn tokens_are_those_of_the_usage_not_the_events() {
        let start = Instant::now();
        // Five tokens came in two events, 40 ms apart: 10 ms a token.
        let point = point(
            "x".to_owned(),
            &measured(start, vec![outcome(start, 0, &[60, 100], Some(5))]),
            None,
        );
        assert_eq!(point.latency_ms["tpot"].mean, 10.0);
        assert_eq!(point.latency_ms["itl"].mean, 40.0);
        assert!((point.rates["output_tokens_per_s"] - 50.0).abs() < 1e-9);
        assert!((point.rates["total_tokens_per_s"] - 150.0).abs() < 1e-9);
    }

    #[test]
    fn images_are_counted_where_there_are_some() {
        let start = Instant::now();
        let blind = || outcome(start, 0, &[60, 100], Some(5));
        let seeing = Outcome {
            images: 3,
            ..blind()
        };
        let rates = |outcomes| point("x".to_owned(), &measured(start, outcomes), None).rates;
        assert!(!rates(vec![blind()]).contains_key("images_per_s"));
        let rates = rates(vec![seeing, blind()]);
        assert_eq!(rates["images_per_request"], 1.5);
        assert!((rates["images_per_s"] - 30.0).abs() < 1e-9);
    }

    #[test]
    fn a_last_token_without_text_counts_when_the_answer_ends() {
        let start = Instant::now();
        let mut silent = outcome(start, 0, &[60, 80], Some(3));
        silent.last = Some(start + Duration::from_millis(100));
        let point = point("x".to_owned(), &measured(start, vec![silent]), None);
        assert_eq!(point.latency_ms["tpot"].mean, 20.0);
    }

    #[test]
    fn answers_without_usage_or_too_short_are_noted() {
        let start = Instant::now();
        let point = point(
            "x".to_owned(),
            &measured(start, vec![outcome(start, 0, &[10, 20], None)]),
            None,
        );
        assert!(point.notes[0].contains("without usage"));
        assert!(point.notes[1].contains("before the requested length"));
    }

    #[test]
    fn goodput_counts_requests_that_keep_every_bound() {
        let start = Instant::now();
        let outcomes = vec![
            outcome(start, 0, &[100, 110, 120], Some(3)),
            outcome(start, 0, &[100, 400, 1000], Some(3)),
        ];
        let slo: Slo = "ttft=200,tpot=50".parse().unwrap();
        let point = point("x".to_owned(), &measured(start, outcomes), Some(&slo));
        assert_eq!(point.rates["slo_attainment"], 0.5);
        assert!((point.rates["goodput_requests_per_s"] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn failures_are_counted_by_kind_and_leave_the_figures_alone() {
        let start = Instant::now();
        let mut refused = outcome(start, 0, &[], None);
        refused.failure = Some(Failure::new("http_429", "Model is overloaded"));
        let outcomes = vec![refused, outcome(start, 0, &[10, 20, 30], Some(3))];
        let point = point("x".to_owned(), &measured(start, outcomes), None);
        assert_eq!((point.completed, point.failed), (1, 1));
        assert_eq!(point.errors["http_429"].count, 1);
        assert_eq!(point.latency_ms["ttft"].count, 1);
    }

    #[test]
    fn bounds_are_read_and_written_alike() {
        for text in ["ttft=500,tpot=30", "e2e=1000"] {
            assert_eq!(text.parse::<Slo>().unwrap().to_string(), text);
        }
        for text in ["ttft", "ttft=0", "x=3", "tpot=fast", ""] {
            assert!(text.parse::<Slo>().unwrap_err().contains("for example"));
        }
    }
}
