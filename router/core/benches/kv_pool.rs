//! Benchmark of the prefix tree: its cost in the step loop.
//!
//! `make bench-kv-pool` prints JSON: medians in microseconds of hits of 10,000 tokens in a pool of 840,000 slots whose tree
//! has about 780,000, and of slots for new prompts when everything else is cached, so that each of them evicts.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use text_generation_core::kv_pool::{KvPool, RootKey};

const CAPACITY: u32 = 840_000;
const PROMPT: usize = 10_000;
/// One prefix for every ten prompts.
const SHARED: usize = 2048;
const PROMPTS: usize = 96;
/// Prompts of the pool that is full.
const SHORT: usize = 40;
const ROWS: usize = 512;
const RUNS: usize = 400;

fn main() {
    let mut random = StdRng::seed_from_u64(1);
    let mut tokens = |count: usize| -> Vec<u32> {
        (0..count)
            .map(|_| random.random_range(0..128_000))
            .collect()
    };
    let root = RootKey::default();
    let mut pool = KvPool::new(CAPACITY, true);
    let mut prompts = Vec::new();
    let mut prefix = Vec::new();
    for index in 0..PROMPTS {
        if index % 10 == 0 {
            prefix = tokens(SHARED);
        }
        prompts.push([prefix.clone(), tokens(PROMPT - SHARED)].concat());
    }
    let (mut commits, mut cached) = (Vec::new(), 0);
    for ids in &prompts {
        let mut holding = pool.open(&root, ids, u32::MAX);
        let missing = PROMPT as u32 - holding.cached();
        cached += missing;
        let granted = pool.grow(&mut holding, missing);
        assert!(granted.is_some(), "the pool holds all prompts");
        for end in (512..=PROMPT).step_by(512) {
            commits.push(time(|| pool.commit(&mut holding, &ids[..end])));
        }
        pool.close(holding, ids);
    }
    let (mut probes, mut opens, mut closes, mut misses) = (vec![], vec![], vec![], vec![]);
    for run in 0..RUNS {
        let ids = &prompts[run * 7 % PROMPTS];
        probes.push(time(|| pool.probe(&root, ids)));
        let mut holding = None;
        opens.push(time(|| {
            holding = Some(pool.open(&root, ids, PROMPT as u32 - 1))
        }));
        if let Some(holding) = holding {
            closes.push(time(|| pool.close(holding, ids)));
        }
        misses.push(time(|| pool.probe(&root, &ids[1..])));
    }

    // A pool full of short prompts, so that every slot that is given is one that was evicted.
    let mut full = KvPool::new(CAPACITY, true);
    for _ in 0..CAPACITY as usize / SHORT {
        turn(&mut full, &tokens(SHORT), &mut Vec::new());
    }
    let (mut long, mut short, mut steps) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        turn(&mut full, &tokens(PROMPT), &mut long);
        turn(&mut full, &tokens(SHORT), &mut short);
    }
    let ids: Vec<Vec<u32>> = (0..ROWS).map(|_| tokens(SHORT)).collect();
    let mut rows: Vec<_> = ids.iter().map(|ids| full.open(&root, ids, 0)).collect();
    for _ in 0..RUNS / 4 {
        steps.push(time(|| {
            rows.iter_mut().for_each(|row| drop(full.grow(row, 1)))
        }));
    }
    for (row, ids) in rows.into_iter().zip(&ids) {
        full.close(row, ids);
    }
    let report = json!({
        "cached_tokens": cached,
        "hit_of_10000": {
            "probe": median(probes),
            "open": median(opens),
            "close": median(closes),
        },
        "probe_of_a_miss": median(misses),
        "commit_of_512": median(commits),
        "grow_with_eviction_of_prompts_of_40": {
            "by_10000": median(long),
            "by_40": median(short),
            "by_1_for_each_of_512_rows": median(steps),
        },
    });
    println!("{report:#}");
}

/// A new prompt comes and goes.
fn turn(pool: &mut KvPool, ids: &[u32], grows: &mut Vec<Duration>) {
    let mut holding = pool.open(&RootKey::default(), ids, u32::MAX);
    let missing = ids.len() as u32 - holding.cached();
    grows.push(time(|| pool.grow(&mut holding, missing)));
    pool.close(holding, ids);
}

/// In microseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    middle.as_nanos() as f64 / 1e3
}

fn time<T>(call: impl FnOnce() -> T) -> Duration {
    let started = Instant::now();
    let result = call();
    let taken = started.elapsed();
    drop(result);
    taken
}
