//! Benchmark of the policy: its cost in the step loop.
//!
//! `make bench-policy` prints JSON: microseconds of one plan with 512 running requests in a pool of 840,000 slots, the
//! median and the 99th percentile. The queue is as long as in a burst; its head is refused because of what is expected,
//! it starts, or slots run short. Beside that, what it takes to compute again how long outputs get, which happens once
//! in 64 steps.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use text_generation_core::policy::arrivals::Arrivals;
use text_generation_core::policy::cost::StepCost;
use text_generation_core::policy::expectation::OutputLengths;
use text_generation_core::policy::peak::Demand;
use text_generation_core::policy::windows::{DraftShare, Windows};
use text_generation_core::policy::{
    Admission, BatchLimits, Candidate, Order, Running, Situation, Waiting, WaitingServedRatio, plan,
};

const CAPACITY: u32 = 840_000;
const ROWS: u32 = 512;
const QUEUED: usize = 2000;
const RUNS: usize = 4000;

struct Queued(Vec<Candidate>);

impl Waiting for Queued {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn candidate(&mut self, index: usize, _: &[Admission]) -> Option<Candidate> {
        self.0.get(index).copied()
    }
}

fn main() {
    let mut random = StdRng::seed_from_u64(1);
    let mut lengths = OutputLengths::default();
    for _ in 0..2000 {
        lengths.observe(random.random_range(1..1024));
    }
    let refresh = (0..RUNS / 10).map(|_| {
        let started = Instant::now();
        (0..64).for_each(|_| lengths.refresh([]));
        started.elapsed()
    });
    let refresh = summary(refresh.collect());
    let running: Vec<Running> = (0..ROWS).map(|row| decoding(&mut random, row)).collect();
    let mut mixed = running.clone();
    if let Some(last) = mixed.last_mut() {
        (last.decodes, last.prompt_left) = (false, 20_000);
    }
    let mut short = running.clone();
    short
        .iter_mut()
        .for_each(|request| request.lacks_slot = true);
    let follower = Candidate {
        follows: true,
        ..candidate()
    };
    let behind = [vec![follower; 511], vec![candidate()]].concat();
    let head = |held: u32| {
        measure(
            &lengths,
            &running,
            vec![candidate(); QUEUED],
            CAPACITY - held,
        )
    };
    let report = json!({
        "rows": ROWS,
        "steady_decode": measure(&lengths, &running, vec![], 100_000),
        "refused_head": head(CAPACITY - 1500),
        "head_starts": head(300_000),
        "head_starts_behind_511_that_follow": measure(&lengths, &running, behind, CAPACITY - 300_000),
        "chunk_of_a_begun_prompt": measure(&lengths, &mixed, vec![candidate(); QUEUED], 40_000),
        "slots_run_short": measure(&lengths, &short, vec![candidate(); QUEUED], 100),
        "expectation_of_64_steps": refresh,
    });
    println!("{report:#}");
}

fn decoding(random: &mut StdRng, row: u32) -> Running {
    let generated = random.random_range(1..1000);
    Running {
        served: 0,
        order: Order {
            due: random.random_range(0..60_000),
            sequence: u64::from(row),
        },
        computed: 500 + generated,
        prompt_left: 0,
        decodes: true,
        lacks_slot: row.is_multiple_of(8),
        ahead: 0,
        drafts: DraftShare::default(),
        demand: Demand {
            slots: 500 + generated,
            generated,
            left: 8192 - generated,
        },
    }
}

fn candidate() -> Candidate {
    Candidate {
        length: 1024,
        left: 8192,
        ..Candidate::default()
    }
}

/// Plans the same step again and again.
fn measure(
    lengths: &OutputLengths,
    running: &[Running],
    queue: Vec<Candidate>,
    free: u32,
) -> Value {
    let limits = BatchLimits {
        waiting_served_ratio: WaitingServedRatio::Auto,
        max_waiting_tokens: 20,
        max_batch_prefill_tokens: 4096,
        max_batch_total_tokens: CAPACITY,
        max_batch_size: 2 * ROWS,
        max_queue_time: None,
        prefill_chunking: true,
        max_token_gap: Some(Duration::from_millis(30)),
        prefix_caching: true,
    };
    let cost = StepCost::new(
        &[1, 64, 128, 256, 512, 1024, 2048],
        &[4.2, 4.6, 5.2, 6.3, 10.8, 21.5, 43.0],
        0.0025,
        0.03,
        &[16, 32, 64, 128, 256, 512, 1024],
    );
    let mut arrivals = Arrivals::default();
    for at in 1..=100 {
        arrivals.ready(Duration::from_millis(at * 10), 1);
        arrivals.started(1024);
    }
    let mut queue = Queued(queue);
    let mut admitted = 0;
    let times = (0..RUNS).map(|_| {
        let windows = Windows::default();
        let situation = Situation {
            running,
            rows: ROWS as usize,
            free,
            freeing: 0,
            capacity: CAPACITY,
            encode: Duration::ZERO,
            decodes_since_joining: 30,
            now: Duration::from_secs(1),
            arrivals: &arrivals,
            limits: &limits,
            cost: &cost,
            lengths,
            windows: &windows,
        };
        let started = Instant::now();
        let plan = plan(&situation, &mut queue);
        let taken = started.elapsed();
        admitted = plan.admit.len();
        taken
    });
    let mut value = summary(times.collect());
    value["admitted"] = json!(admitted);
    value
}

fn summary(mut times: Vec<Duration>) -> Value {
    times.sort_unstable();
    let at = |share: f64| {
        let index = (times.len() as f64 * share) as usize;
        let time = times.get(index).copied().unwrap_or_default();
        time.as_nanos() as f64 / 1e3
    };
    json!({ "us_p50": at(0.5), "us_p99": at(0.99) })
}
