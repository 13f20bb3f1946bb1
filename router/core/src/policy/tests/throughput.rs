//! What expecting outputs to be as long as others were gains over reserving `max_new_tokens`, and what is left to gain.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::world::{Knowledge, Request, World};
use super::*;
use crate::tenant::Tenant;

const CAPACITY: u32 = 40_000;

/// All come at once: prompts of 32 to 256 tokens, lognormal lengths of 90 tokens in the mean.
fn crowd(count: usize) -> Vec<Request> {
    let mut random = StdRng::seed_from_u64(7);
    (0..count as u32)
        .map(|number| {
            // The sum of 12 uniform numbers less 6 is close to normal.
            let normal = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
            Request {
                tenant: Tenant::default(),
                at_ms: 0.0,
                priority: 0,
                ids: (0..random.random_range(32..256))
                    .map(|at| number * 1000 + at)
                    .collect(),
                max_new_tokens: 2048,
                length: ((4.1 + 0.9 * normal).exp() as u32).clamp(1, 2048),
                gone_ms: f64::INFINITY,
            }
        })
        .collect()
}

#[test]
fn expectation_is_far_faster_than_reservation_and_close_to_an_oracle() {
    let limits = BatchLimits {
        max_batch_size: 512,
        max_batch_total_tokens: CAPACITY,
        max_batch_prefill_tokens: 1024,
        max_token_gap: Some(ms(30.0)),
        ..limits()
    };
    let count = 4000;
    let run = |knowledge, count: usize| {
        let report = World::new(limits, knowledge, crowd(count)).run();
        let used = report.busy_slots_ms / report.busy_ms / f64::from(CAPACITY);
        let pauses = f64::from(report.pauses) / count as f64;
        let tokens = report.busy_tokens as f64 / report.busy_ms * 1e3;
        println!(
            "{knowledge:?}: {tokens:.0} tokens/s, {used:.3} of the pool in use, {pauses:.4} pauses for each request"
        );
        (tokens, used, pauses)
    };
    let (expected, used, pauses) = run(Knowledge::Expectation, count);
    let (reserved, ..) = run(Knowledge::Reservation, count / 4);
    let (known, ..) = run(Knowledge::Oracle, count);
    assert!(pauses < 0.01 && used > 0.8);
    assert!(expected > 1.5 * reserved);
    assert!(expected > 0.9 * known);
}
