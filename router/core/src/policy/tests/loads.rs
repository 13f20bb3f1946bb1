//! What `--waiting-served-ratio` and `--max-waiting-tokens` do to loads, in model time, by the costs of a card.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::world::{Knowledge, Report, Request, World};
use super::*;
use crate::tenant::Tenant;

/// Requests that come at these milliseconds.
fn requests(times_ms: impl Iterator<Item = f64>, input: u32, output: u32) -> Vec<Request> {
    let one = |(number, at_ms): (u32, f64)| Request {
        tenant: Tenant::default(),
        at_ms,
        priority: 0,
        ids: (0..input).map(|at| number * 10_000 + at).collect(),
        max_new_tokens: output,
        length: output,
        gone_ms: f64::INFINITY,
    };
    (0..).zip(times_ms).map(one).collect()
}

/// Arrivals by chance (Poisson), so many a second.
fn by_chance(per_second: f64, count: usize) -> impl Iterator<Item = f64> {
    let mut random = StdRng::seed_from_u64(5);
    let mut at_ms = 0.0;
    (0..count).map(move |_| {
        at_ms -= 1e3 / per_second * random.random_range(1e-9..1.0_f64).ln();
        at_ms
    })
}

/// First tokens and gaps between tokens in milliseconds, and tokens a second.
#[derive(Debug, Clone, Copy)]
struct Figures {
    first: [f64; 2],
    gap: [f64; 2],
    /// Of a request's tokens after the first, in the mean.
    mean_gap: f64,
    throughput: f64,
    mixed_steps: u32,
}

impl Figures {
    fn of(mut report: Report) -> Self {
        let tokens = report.first_ms.len() + report.gaps_ms.len();
        Self {
            first: quantiles(&mut report.first_ms),
            mean_gap: report.gaps_ms.iter().sum::<f64>() / report.gaps_ms.len() as f64,
            gap: quantiles(&mut report.gaps_ms),
            throughput: tokens as f64 / report.took_ms * 1e3,
            mixed_steps: report.mixed_steps,
        }
    }
}

/// The median and the 99th percentile.
fn quantiles(values: &mut [f64]) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [0.5, 0.99].map(|part| values[(part * (values.len() - 1) as f64) as usize])
}

fn run(
    name: &str,
    requests: &[Request],
    streams: u32,
    ratio: WaitingServedRatio,
    tokens: u32,
) -> Figures {
    let limits = BatchLimits {
        waiting_served_ratio: ratio,
        max_waiting_tokens: tokens,
        max_batch_prefill_tokens: 4096,
        max_batch_total_tokens: 400_000,
        max_batch_size: streams,
        max_token_gap: Some(ms(36.0)),
        ..limits()
    };
    let figures = Figures::of(World::new(limits, Knowledge::Expectation, requests.to_vec()).run());
    println!(
        "{name} | {ratio} / {tokens} | {:.1} / {:.1} | {:.2} / {:.2} / {:.2} | {:.0} | {}",
        figures.first[0],
        figures.first[1],
        figures.gap[0],
        figures.mean_gap,
        figures.gap[1],
        figures.throughput,
        figures.mixed_steps
    );
    figures
}

type Load = (&'static str, Vec<Request>, u32);

/// Those of `benchmark/bars.py`, with how many requests may run.
fn loads() -> Vec<Load> {
    let at_once = |count: usize| std::iter::repeat_n(0.0, count);
    vec![
        (
            "64 at a time, 2048/256",
            requests(at_once(128), 2048, 256),
            64,
        ),
        ("burst, 512/128", requests(at_once(256), 512, 128), 256),
        (
            "4 a second, 1024/256",
            requests(by_chance(4.0, 60), 1024, 256),
            256,
        ),
        (
            "8 a second, 1024/256",
            requests(by_chance(8.0, 120), 1024, 256),
            256,
        ),
        (
            "12 a second, 1024/256",
            requests(by_chance(12.0, 180), 1024, 256),
            256,
        ),
    ]
}

/// More requests than may run at once, with short prompts and outputs of 64 to 448 tokens.
fn many_short_prompts(input: u32) -> Vec<Request> {
    let mut random = StdRng::seed_from_u64(6);
    let mut requests = requests(std::iter::repeat_n(0.0, 800), input, 448);
    for request in &mut requests {
        request.length = random.random_range(64..=448);
    }
    requests
}

/// As many start as fit, or as many as pays.
const AT_ONCE_AND_AUTO: [(WaitingServedRatio, u32); 2] = [
    (WaitingServedRatio::Fixed(0.0), 20),
    (WaitingServedRatio::Auto, 20),
];

/// As users of TGI set them.
const FIXED: [(WaitingServedRatio, u32); 2] = [
    (WaitingServedRatio::Fixed(0.3), 20),
    (WaitingServedRatio::Fixed(1.2), 20),
];

/// The figures of a load with two settings.
fn compare(
    (name, requests, streams): &Load,
    settings: [(WaitingServedRatio, u32); 2],
) -> [Figures; 2] {
    settings.map(|(ratio, tokens)| run(name, requests, *streams, ratio, tokens))
}

#[test]
fn auto_delays_no_first_token_where_prompts_fill_a_step() {
    for load in loads() {
        let [at_once, auto] = compare(&load, AT_ONCE_AND_AUTO);
        assert!(auto.first[0] <= at_once.first[0] + 3.0, "{}", load.0);
        assert!(auto.throughput >= 0.99 * at_once.throughput, "{}", load.0);
    }
}

#[test]
fn auto_delays_no_first_token_where_short_prompts_are_rare() {
    let requests = requests(by_chance(60.0, 400), 64, 256);
    let [at_once, auto] = compare(&("60 a second, 64/256", requests, 256), AT_ONCE_AND_AUTO);
    assert!(auto.first[0] <= at_once.first[0] + 3.0);
}

#[test]
fn auto_lets_short_prompts_share_steps_where_many_streams_run() {
    for input in [64, 128] {
        let load = ("256 at a time", many_short_prompts(input), 256);
        let [at_once, auto] = compare(&load, AT_ONCE_AND_AUTO);
        assert!(auto.throughput > 1.02 * at_once.throughput);
        assert!(auto.mean_gap < at_once.mean_gap);
        assert!(2 * auto.mixed_steps < at_once.mixed_steps);
        let fixed = compare(&load, FIXED);
        assert!(fixed.iter().all(|each| auto.throughput > each.throughput));
    }
}
