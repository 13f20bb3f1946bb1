//! Simulation of a queue that never runs dry before a pool that is too small, in model time: each step every request
//! generates a token. How much of the pool is in use, and how often must a request pause?

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const LIMIT: u32 = 8192;

#[derive(Debug, Clone, Copy)]
struct Request {
    number: usize,
    slots: u32,
    generated: u32,
    length: u32,
}

#[derive(Debug)]
struct Usage {
    /// Pauses for each request.
    pauses: f64,
    /// Share of the pool in use while requests wait.
    used: f64,
}

#[derive(Debug, Clone, Copy)]
enum AdmissionRule {
    Expectation,
    /// Every request counts with `max_new_tokens`.
    Reservation,
    /// Every length is known.
    Oracle,
}

impl AdmissionRule {
    fn peak(self, lengths: &OutputLengths, requests: impl Iterator<Item = Request>) -> u64 {
        match self {
            Self::Expectation => Forecast::of(lengths, requests.map(|r| r.demand(LIMIT))).peak(0),
            Self::Reservation => exact(requests.map(|r| r.demand(LIMIT))),
            Self::Oracle => exact(requests.map(|r| r.demand(r.length))),
        }
    }
}

impl Request {
    fn demand(self, limit: u32) -> Demand {
        let left = limit - self.generated;
        Demand {
            slots: self.slots,
            generated: self.generated,
            left,
        }
    }
}

/// LightLLM's estimate: when one is about to end, those that run longer have grown by as much as it has.
fn exact(demands: impl Iterator<Item = Demand>) -> u64 {
    let mut demands: Vec<Demand> = demands.collect();
    demands.sort_unstable_by_key(|demand| std::cmp::Reverse(demand.left));
    let (mut slots, mut peak) = (0, 0);
    for (index, demand) in demands.iter().enumerate() {
        slots += u64::from(demand.slots);
        peak = peak.max(slots + (index as u64 + 1) * u64::from(demand.left));
    }
    peak
}

fn in_use(running: &[Request]) -> u64 {
    running.iter().map(|request| u64::from(request.slots)).sum()
}

fn simulate(admission: AdmissionRule, capacity: u64, requests: &[Request]) -> Usage {
    let mut queue: VecDeque<Request> = requests.iter().copied().collect();
    let mut lengths = OutputLengths::default();
    let mut running: Vec<Request> = Vec::new();
    let (mut pauses, mut steps, mut used) = (0, 0, 0);
    while let Some(&next) = queue.front() {
        lengths.refresh(running.iter().map(|request| request.generated));
        let all = running.iter().copied().chain([next]);
        if admission.peak(&lengths, all) <= capacity {
            running.extend(queue.pop_front());
            continue;
        }
        while in_use(&running) + running.len() as u64 > capacity {
            let newest = (0..running.len()).max_by_key(|&index| running[index].number);
            queue.push_front(running.remove(newest.unwrap()));
            pauses += 1;
        }
        for request in &mut running {
            request.slots += 1;
            request.generated += 1;
        }
        (steps, used) = (steps + 1, used + in_use(&running));
        running.retain(|request| {
            match request.generated {
                LIMIT => lengths.observe_cut(LIMIT),
                generated if generated == request.length => lengths.observe(generated),
                _ => return true,
            }
            false
        });
    }
    Usage {
        pauses: f64::from(pauses) / requests.len() as f64,
        used: used as f64 / (steps * capacity) as f64,
    }
}

/// Requests with prompts of 32 to 512 tokens.
fn requests(count: usize, length: impl Fn(&mut StdRng) -> f64) -> Vec<Request> {
    let mut random = StdRng::seed_from_u64(1);
    (0..count)
        .map(|number| Request {
            number,
            slots: random.random_range(32..=512),
            generated: 0,
            length: (length(&mut random) as u32).clamp(1, LIMIT),
        })
        .collect()
}

/// The sum of 12 uniform numbers less 6 is close to normal.
fn lognormal(random: &mut StdRng) -> f64 {
    let normal = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
    (5.5 + 0.9 * normal).exp()
}

fn uniform(random: &mut StdRng) -> f64 {
    random.random_range(1.0..1000.0)
}

fn bimodal(random: &mut StdRng) -> f64 {
    if random.random_bool(0.7) {
        random.random_range(20.0..100.0)
    } else {
        random.random_range(800.0..1600.0)
    }
}

/// At least this share of what the oracle has in use, with less than 1 % of pauses.
fn check(name: &str, capacity: u64, requests: &[Request], share: f64) {
    let expectation = simulate(AdmissionRule::Expectation, capacity, requests);
    let reservation = simulate(AdmissionRule::Reservation, capacity, &requests[..200]);
    let oracle = simulate(AdmissionRule::Oracle, capacity, requests);
    println!(
        "{name}, {capacity} slots: {expectation:?}, reservation {reservation:?}, oracle {oracle:?}"
    );
    assert!(expectation.pauses < 0.01);
    assert!(expectation.used > share * oracle.used);
    assert!(expectation.used > 5.0 * reservation.used);
    assert_eq!(oracle.pauses, 0.0);
}

#[test]
fn expectation_uses_nearly_what_an_oracle_would_and_hardly_ever_pauses() {
    check("lognormal", 40_000, &requests(1200, lognormal), 0.89);
    check("uniform", 40_000, &requests(1200, uniform), 0.89);
    check("bimodal", 40_000, &requests(1200, bimodal), 0.89);
}

#[test]
fn many_requests_together_need_little_reserve() {
    check("lognormal", 200_000, &requests(3000, lognormal), 0.92);
}
