//! `Infer` and the batcher in worlds of their own: clients, router and shards in one runtime whose clock is paused, so
//! hours pass in a second, every step takes what it should take, and whatever can go wrong does.
//!
//! A world follows from its seed, which a failing one prints.

#![allow(clippy::unwrap_used, reason = "a helper of tests may panic as they do")]

mod chaos;
mod checks;
mod clients;
mod model;
mod pictures;
mod server;
mod traffic;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Builder;
use tokio::time::{Instant, timeout};

use chaos::{Chaos, Fault};
use clients::{Client, End, Outcome, Reading};
use server::{Server, Setup, step_time};

/// Nobody needs longer.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Runs on one thread, whose clock goes on when all wait.
fn in_model_time<T>(seed: u64, world: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let run = || runtime.block_on(async { timeout(LIFETIME, world).await.unwrap() });
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        eprintln!("the world of seed {seed} failed");
        resume_unwind(panic)
    })
}

/// What became of a world.
struct Report {
    outcomes: Vec<Outcome>,
    /// What went wrong, and when.
    happened: Vec<(Instant, Fault)>,
    /// Starts of requests, each one again when it resumes.
    admitted: usize,
    /// Before each step but the first.
    idle: Vec<Duration>,
    /// Of the shards.
    starts: usize,
    /// Images, each time that one was encoded.
    encoded: usize,
    /// That the shards were given.
    hints: usize,
}

/// Lets all clients ask and everything go wrong; checks what holds in every world.
async fn live(setup: &Setup, clients: Vec<Client>, chaos: Chaos) -> Report {
    let generations: u32 = clients.iter().map(|client| client.samples).sum();
    let server = Server::start(setup);
    let (outcomes, happened) = tokio::join!(
        clients::serve(&server.infer, clients),
        chaos::disturb(&server, chaos)
    );
    assert_eq!(outcomes.len(), generations as usize);
    checks::answers(&outcomes, &happened);
    server.assert_clean().await;
    Report {
        outcomes,
        happened,
        admitted: server.mock.admitted(),
        idle: server.mock.idle(),
        starts: server.mock.starts(),
        encoded: server.mock.images().1,
        hints: server.mock.steps().iter().map(|step| step.hints).sum(),
    }
}

impl Report {
    fn count(&self, end: impl Fn(&End) -> bool) -> usize {
        self.outcomes.iter().filter(|o| end(&o.end)).count()
    }

    fn finished(&self) -> usize {
        self.count(|end| matches!(end, End::Finished(_)))
    }

    fn failed(&self) -> usize {
        self.count(|end| matches!(end, End::Failed(_)))
    }
}

fn random_world(seed: u64, count: usize, faults: usize) -> Report {
    let mut random = StdRng::seed_from_u64(seed);
    let ranks = random.random_range(1..=2);
    let mut setup = traffic::setup(&mut random, ranks);
    // Where nothing is cached the layers may keep a state, of which no draft can be taken back.
    if setup.limits.prefix_caching && seed.is_multiple_of(2) {
        setup.widths = vec![2, 4, 8];
        // So little that old ones are dropped now and then.
        setup.answer_bytes = 40_000 * (seed as usize / 2 % 2);
    }
    let per_second = random.random_range(0.5..6.0);
    let clients = traffic::clients(&mut random, count, per_second);
    let within = clients.last().map_or(Duration::ZERO, |last| last.at) + Duration::from_secs(20);
    let chaos = chaos::random(&mut random, faults, within, ranks);
    in_model_time(seed, live(&setup, clients, chaos))
}

#[test]
fn any_traffic_gets_what_each_request_gets_alone() {
    let reports: Vec<Report> = (0..4).map(|seed| random_world(seed, 30, 0)).collect();
    let all = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>();
    assert_eq!(all(Report::failed), 0);
    // What is to be tested did happen.
    assert!(all(|report| report.count(|end| *end == End::Left)) > 0);
    assert!(all(|report| report.hints) > 10);
}

#[test]
fn whatever_goes_wrong_everybody_gets_an_answer() {
    let reports: Vec<Report> = (100..106).map(|seed| random_world(seed, 24, 5)).collect();
    let all = |count: fn(&Report) -> usize| reports.iter().map(count).sum::<usize>();
    assert!(all(|report| report.happened.len()) > 5);
    assert!(all(|report| report.starts) > 6);
    assert!(all(Report::failed) > 0);
    assert!(all(Report::finished) > 100);
}

#[test]
fn ten_thousand_arrivals_in_one_world() {
    let mut random = StdRng::seed_from_u64(7);
    let mut setup = Setup::spacious();
    setup.limits.max_batch_size = 128;
    setup.limits.max_batch_prefill_tokens = 1024;
    (setup.widths, setup.answer_bytes) = (vec![2, 4, 8], 200_000);
    let mut clients = traffic::clients(&mut random, 10_000, 100.0);
    for client in &mut clients {
        client.task.max_new_tokens = 1 + client.task.max_new_tokens % 12;
        client.samples = 1;
    }
    let chaos = chaos::random(&mut random, 20, Duration::from_secs(90), 1);
    let report = in_model_time(7, live(&setup, clients, chaos));
    assert!(report.happened.len() > 10);
    assert!(report.finished() > 7_500);
}

/// Clients with short answers, and others with longer ones than anybody expects after these.
fn surprise(random: &mut StdRng) -> (Vec<Client>, Vec<Client>) {
    let mut short = patient(random, 4000, 1000.0);
    for client in &mut short {
        (client.task.stop, client.priority) = (None, 0);
        (client.task.ignore_eos, client.task.max_new_tokens) = (false, 120);
    }
    short.retain(|client| model::alone(&client.task).0.len() < 5);
    let mut longer = patient(random, 24, 1000.0);
    for client in &mut longer {
        client.at += Duration::from_secs(30);
        (client.task.ignore_eos, client.task.max_new_tokens) = (true, 120);
    }
    (short, longer)
}

/// Windows and hints, which a pause leaves stale, change nothing of that.
#[test]
fn requests_that_pause_get_what_they_get_alone() {
    for widths in [vec![], vec![2, 4, 8]] {
        let mut random = StdRng::seed_from_u64(50);
        let mut setup = Setup::spacious();
        setup.limits.max_batch_total_tokens = 1_500;
        (setup.widths, setup.answer_bytes) = (widths, 100_000);
        let (mut clients, mut longer) = surprise(&mut random);
        clients.append(&mut longer);
        let report = in_model_time(50, live(&setup, clients, Chaos::new()));
        assert!(report.admitted > report.outcomes.len());
        assert_eq!(report.finished(), report.outcomes.len());
        assert_eq!(report.hints > 0, !setup.widths.is_empty());
    }
}

/// What several of them compute of the same, or again for log-probabilities, is there twice meanwhile.
#[test]
fn requests_may_be_as_long_as_the_pool() {
    let mut random = StdRng::seed_from_u64(80);
    let mut setup = Setup::spacious();
    setup.limits.max_batch_total_tokens = 180;
    let mut clients = patient(&mut random, 8, 5.0);
    for client in &mut clients {
        let task = &mut client.task;
        (task.stop, task.ignore_eos) = (None, true);
        // Shorter ones are not looked for in the cache while they are computed.
        task.prompt.resize(100, 1);
        task.max_new_tokens = setup.limits.max_batch_total_tokens - task.prompt.len() as u32;
    }
    clients.extend_from_within(..);
    let report = in_model_time(80, live(&setup, clients, Chaos::new()));
    assert_eq!(report.finished(), report.outcomes.len());
}

/// Whose answer took the shards with it is told so; all others get theirs.
#[test]
fn only_the_request_that_ends_the_shards_fails() {
    for ranks in [1, 2] {
        let mut random = StdRng::seed_from_u64(60);
        let mut clients = patient(&mut random, 20, 10.0);
        clients[10].task.prompt[0] = model::POISON;
        let setup = Setup {
            ranks,
            ..Setup::spacious()
        };
        let report = in_model_time(60, live(&setup, clients, Chaos::new()));
        assert_eq!((report.finished(), report.failed()), (19, 1));
        assert_eq!(report.starts, 3, "it was tried once");
    }
}

/// Losses at any moment, so far apart that whoever was suspect is not any more: nobody can tell but by time.
#[test]
fn streams_outlive_shards_that_are_lost_again_and_again() {
    const LOSSES: usize = 3;
    for ranks in [1, 2] {
        let mut random = StdRng::seed_from_u64(70);
        let mut clients = traffic::clients(&mut random, 64, 1000.0);
        for client in &mut clients {
            (client.samples, client.task.stop) = (1, None);
            client.task.ignore_eos = true;
            client.task.max_new_tokens += 250;
        }
        let mut at = Duration::ZERO;
        let mut kill = || {
            at += Duration::from_millis(random.random_range(7_000..12_000));
            (at, Fault::Kill)
        };
        let chaos = (0..LOSSES).map(|_| kill()).collect();
        let mut setup = Setup::spacious();
        (setup.ranks, setup.limits.max_batch_size) = (ranks, 64);
        let report = in_model_time(70, live(&setup, clients, chaos));
        assert_eq!(report.failed(), 0);
        assert_eq!(report.starts, 1 + report.happened.len());
        assert!(report.happened.len() > 1);
    }
}

/// The next client need not wait for the warm-up.
#[test]
fn shards_that_are_lost_while_nobody_asks_serve_again_before_the_next_request() {
    for ranks in [1, 2] {
        let mut setup = Setup::spacious();
        setup.ranks = ranks;
        let mut clients = traffic::clients(&mut StdRng::seed_from_u64(15), 1, 1.0);
        clients[0].task.max_new_tokens = 8;
        (clients[0].samples, clients[0].reading) = (1, Reading::AtOnce);
        clients[0].at = Duration::ZERO;
        let prompt = clients[0].task.prompt.len() as u32;
        let (report, took) = in_model_time(15, async {
            let server = Server::start(&setup);
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.mock.kill();
            tokio::time::sleep(Duration::from_secs(30)).await;
            let asked = Instant::now();
            let outcomes = clients::serve(&server.infer, clients).await;
            (outcomes, asked)
        });
        let [outcome] = report.as_slice() else {
            panic!("{report:?}");
        };
        assert!(matches!(outcome.end, End::Finished(_)), "{outcome:?}");
        let first = outcome.times[0] - took;
        assert!(first < 2 * step_time(prompt), "{first:?}");
    }
}

/// Clients who stay and want one answer each.
fn patient(random: &mut StdRng, count: usize, per_second: f64) -> Vec<Client> {
    let mut clients = traffic::clients(random, count, per_second);
    for client in &mut clients {
        (client.samples, client.reading) = (1, Reading::AtOnce);
    }
    clients
}

#[test]
fn requests_start_by_priority_and_age() {
    for seed in 200..203 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut setup = traffic::setup(&mut random, 1);
        // Nobody waits for what another one computes.
        setup.limits.prefix_caching = false;
        let clients = patient(&mut random, 50, 6.0);
        let report = in_model_time(seed, live(&setup, clients, Chaos::new()));
        checks::order(&report.outcomes);
    }
}

#[test]
fn streams_keep_the_gap_that_they_are_promised() {
    let longest_gap = |max_token_gap| {
        let mut random = StdRng::seed_from_u64(300);
        let mut setup = Setup::spacious();
        setup.limits.max_token_gap = max_token_gap;
        let clients = patient(&mut random, 80, 8.0);
        let report = in_model_time(300, live(&setup, clients, Chaos::new()));
        assert_eq!(report.admitted, report.outcomes.len(), "nobody pauses");
        checks::longest_gap(&report.outcomes)
    };
    // The smallest chunk beside all rows fits.
    let promised = step_time(32 + 32) * 21 / 20;
    let timers = Duration::from_millis(2);
    assert!(longest_gap(Some(promised)) <= promised + timers);
    assert!(longest_gap(None) > promised * 3 / 2);
}

#[test]
fn the_device_never_waits_while_somebody_runs() {
    for ranks in [1, 2] {
        let mut random = StdRng::seed_from_u64(400);
        let mut clients = traffic::clients(&mut random, 30, 3.0);
        let mut anchor = patient(&mut random, 1, 1.0);
        for client in &mut anchor {
            (client.at, client.priority) = (Duration::ZERO, -10);
            client.task.stop = None;
            (client.task.ignore_eos, client.task.max_new_tokens) = (true, 300);
        }
        clients.append(&mut anchor);
        let setup = Setup {
            ranks,
            ..Setup::spacious()
        };
        let report = in_model_time(400, live(&setup, clients, Chaos::new()));
        // It gets a token in each of them.
        let idle: Duration = report.idle[..298].iter().sum();
        assert_eq!(idle, Duration::ZERO);
    }
}
