//! Random traffic before random limits: nobody starves, no promise is broken, nothing leaks.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::world::{Knowledge, Report, Request, World};
use super::*;
use crate::tenant::Tenant;

const LONGEST_PROMPT: usize = 500;
const LONGEST_OUTPUT: u32 = 500;

/// Random arrivals, in bursts and alone. Half of the prompts begin as others do. In some traffic outputs suddenly get
/// much longer than could be expected.
fn traffic(random: &mut StdRng, count: usize) -> Vec<Request> {
    let per_second = random.random_range(20.0..150.0);
    let shared = random.random_range(10..300);
    let longer_from = if random.random_bool(0.4) {
        count / 2
    } else {
        count
    };
    let count_of_tenants = random.random_range(1..5);
    let tenants: Vec<Tenant> = (1..=count_of_tenants)
        .map(|weight| tenant(&weight.to_string(), weight))
        .collect();
    let mut at_ms = 0.0;
    let mut requests = Vec::new();
    for number in 0..count {
        if random.random_bool(0.3) {
            at_ms += random.random_range(0.0..6000.0 / per_second);
        }
        let group = random.random_range(0..20);
        let prefix = if group < 10 { shared } else { 0 };
        let own = 1 + (LONGEST_PROMPT as f64 * random.random::<f64>().powi(3)) as u32;
        let ids = (0..prefix).map(|at| group * 1000 + at);
        let ids = ids.chain((0..own).map(|at| 100_000 + 1000 * number as u32 + at));
        let mean = if number < longer_from { 30.0 } else { 300.0 };
        let length = 1.0 - mean * random.random_range(1e-9..1.0_f64).ln();
        let stays = if random.random_bool(0.1) {
            random.random_range(0.0..2000.0)
        } else {
            f64::INFINITY
        };
        requests.push(Request {
            tenant: tenants[random.random_range(0..tenants.len())].clone(),
            at_ms,
            priority: random.random_range(-1..=1) * i64::from(random.random_bool(0.3)),
            ids: ids.take(LONGEST_PROMPT).collect(),
            max_new_tokens: random.random_range(LONGEST_OUTPUT / 5..=LONGEST_OUTPUT),
            length: length as u32,
            gone_ms: at_ms + stays,
        });
    }
    requests
}

/// `auto`, or a number.
fn random_ratio(random: &mut StdRng) -> WaitingServedRatio {
    match random.random_bool(0.5) {
        true => WaitingServedRatio::Auto,
        false => WaitingServedRatio::Fixed(random.random_range(0.0..1.5)),
    }
}

fn random_limits(random: &mut StdRng) -> BatchLimits {
    let prefill_chunking = random.random_bool(0.8);
    BatchLimits {
        waiting_served_ratio: random_ratio(random),
        max_waiting_tokens: random.random_range(0..30),
        max_batch_prefill_tokens: if prefill_chunking {
            random.random_range(16..2048)
        } else {
            random.random_range(LONGEST_PROMPT as u32..2048)
        },
        max_batch_total_tokens: random.random_range(LONGEST_PROMPT as u32 + LONGEST_OUTPUT..10_000),
        max_batch_size: random.random_range(1..64),
        prefill_chunking,
        max_token_gap: random
            .random_bool(0.8)
            .then(|| ms(random.random_range(1.0..40.0))),
        prefix_caching: random.random_bool(0.8),
        ..limits()
    }
}

/// The world itself checks each step: see `check_step`, `check_order` and the pool's own accounting.
fn live(seed: u64, count: usize) -> Report {
    let mut random = StdRng::seed_from_u64(seed);
    let limits = random_limits(&mut random);
    let knowledge = if random.random_bool(0.2) {
        Knowledge::Careless
    } else {
        Knowledge::Expectation
    };
    let report = World::new(limits, knowledge, traffic(&mut random, count)).run();
    assert_eq!(
        report.waits.len() + report.cancelled as usize,
        count,
        "seed {seed}"
    );
    report
}

#[test]
fn any_traffic_is_served() {
    let reports: Vec<Report> = (0..50).map(|seed| live(seed, 200)).collect();
    // What is to be tested did happen.
    assert!(reports.iter().all(|report| report.most_followed < 10));
    assert!(reports.iter().map(|report| report.mixed_steps).sum::<u32>() > 5000);
    assert!(reports.iter().map(|report| report.pauses).sum::<u32>() > 100);
    assert!(reports.iter().map(|report| report.cancelled).sum::<u32>() > 100);
}

/// Without ageing, requests of low priority would wait until the very end.
#[test]
fn low_priority_waits_ten_seconds_longer_and_not_for_ever() {
    let request = |number: u32, at_ms, priority| Request {
        tenant: Tenant::default(),
        at_ms,
        priority,
        ids: (0..40).map(|at| number * 1000 + at).collect(),
        max_new_tokens: 40,
        length: 40,
        gone_ms: f64::INFINITY,
    };
    // 8 rows of 40 steps of 5 ms each: 40 requests a second, and 42 come.
    let mut arrivals: Vec<Request> = (0..1260)
        .map(|number| request(number, f64::from(number) * 1e3 / 42.0, 0))
        .collect();
    arrivals.extend((0..8).map(|number| request(2000 + number, 1000.0, 1)));
    arrivals.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    let report = World::new(limits(), Knowledge::Expectation, arrivals).run();
    let longest = |priority| {
        let waits = report.waits.iter().filter(|wait| wait.0 == priority);
        waits.map(|wait| wait.1).fold(0.0, f64::max)
    };
    assert!(longest(1) > 5_000.0);
    assert!(longest(1) < 10_000.0 + longest(0));
}
