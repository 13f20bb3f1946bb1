//! Random clients before random limits.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use text_generation_core::policy::{BatchLimits, WaitingServedRatio};

use super::clients::{Client, Reading};
use super::model::{POISON, Task, VOCAB};
use super::server::{Setup, step_time};

const LONGEST_PROMPT: usize = 120;
const LONGEST_OUTPUT: u32 = 60;

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn ids(random: &mut StdRng, count: usize) -> Vec<u32> {
    (0..count).map(|_| random.random_range(1..POISON)).collect()
}

/// So many clients, `per_second` of them each second, in bursts and alone. Half of the prompts begin as others do, and
/// some are the same.
pub fn clients(random: &mut StdRng, count: usize, per_second: f64) -> Vec<Client> {
    let prefixes: Vec<Vec<u32>> = (0..8)
        .map(|_| {
            let length = random.random_range(1..LONGEST_PROMPT / 2);
            ids(random, length)
        })
        .collect();
    let mut at = 0.0;
    let mut one = || {
        if random.random_bool(0.4) {
            at += random.random_range(0.0..5e3 / per_second);
        }
        let mut prompt = match random.random_bool(0.5) {
            true => prefixes[random.random_range(0..prefixes.len())].clone(),
            false => Vec::new(),
        };
        if prompt.is_empty() || random.random_bool(0.9) {
            let own = 1 + ((LONGEST_PROMPT / 2) as f64 * random.random::<f64>().powi(2)) as usize;
            prompt.extend(ids(random, own));
        }
        Client {
            at: ms(at as u64),
            task: Task {
                prompt,
                seed: random
                    .random_bool(0.5)
                    .then(|| random.random_range(0..1 << 40)),
                max_new_tokens: random.random_range(1..=LONGEST_OUTPUT),
                ignore_eos: random.random_bool(0.1),
                stop: random
                    .random_bool(0.2)
                    .then(|| random.random_range(1..VOCAB)),
                pictures: Vec::new(),
                scored: random.random_bool(0.2),
            },
            samples: [1, 1, 1, 1, 1, 1, 2, 4][random.random_range(0..8)],
            priority: random.random_range(-1..=1) * i32::from(random.random_bool(0.3)),
            reading: match random.random_range(0..20) {
                0..=2 => Reading::Leaves(ms(random.random_range(0..6000))),
                3 => Reading::Slowly(ms(random.random_range(1..1000))),
                4 => Reading::Late(ms(random.random_range(0..60_000))),
                _ => Reading::AtOnce,
            },
        }
    };
    (0..count).map(|_| one()).collect()
}

/// `auto`, or a number.
fn random_ratio(random: &mut StdRng) -> WaitingServedRatio {
    match random.random_bool(0.5) {
        true => WaitingServedRatio::Auto,
        false => WaitingServedRatio::Fixed(random.random_range(0.0..1.5)),
    }
}

/// Limits that any of [`clients`] fits, mostly tight.
pub fn setup(random: &mut StdRng, ranks: usize) -> Setup {
    let prefill_chunking = random.random_bool(0.8);
    let longest = LONGEST_PROMPT as u32 + LONGEST_OUTPUT;
    let max_batch_size = random.random_range(1..24);
    let setup = Setup::spacious();
    Setup {
        limits: BatchLimits {
            waiting_served_ratio: random_ratio(random),
            max_waiting_tokens: random.random_range(0..30),
            max_batch_prefill_tokens: match prefill_chunking {
                true => random.random_range(4..256),
                false => random.random_range(LONGEST_PROMPT as u32..512),
            },
            max_batch_total_tokens: match random.random_bool(0.3) {
                true => longest,
                false => random.random_range(longest..900),
            },
            max_batch_size,
            prefill_chunking,
            max_token_gap: random
                .random_bool(0.7)
                .then(|| step_time(random.random_range(1..200))),
            prefix_caching: random.random_bool(0.8),
            ..setup.limits
        },
        ranks,
        ..setup
    }
}
