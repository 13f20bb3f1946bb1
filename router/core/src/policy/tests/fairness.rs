//! Tenants share a full server by their weights, whatever they ask for.

use super::world::{Knowledge, Report, Request, World};
use super::*;

/// `per_second` requests of one tenant within some seconds, of 60 tokens of prompt and 40 of answer.
fn traffic(tenant: &Tenant, from_s: f64, per_second: u32, seconds: f64) -> Vec<Request> {
    let count = (f64::from(per_second) * seconds) as u32;
    // No two prompts begin alike.
    let initial = tenant.name().map_or(0, |name| name.as_bytes()[0]);
    let first = u32::from(initial) * 10_000 + (from_s * 1000.0) as u32;
    (0..count)
        .map(|number| Request {
            tenant: tenant.clone(),
            at_ms: 1e3 * (from_s + f64::from(number) / f64::from(per_second)),
            priority: 0,
            ids: (0..60).map(|at| (first + number) * 1000 + at).collect(),
            max_new_tokens: 40,
            length: 40,
            gone_ms: f64::INFINITY,
        })
        .collect()
}

/// Eight rows: about 40 such requests in a second.
fn serve(mut requests: Vec<Request>) -> Report {
    requests.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    World::new(limits(), Knowledge::Expectation, requests).run()
}

/// What the first was served for each token of the second while both waited, and how much of both together.
fn ratio(report: &Report, first: &Tenant, second: &Tenant) -> (f64, u64) {
    let served = |tenant: &Tenant| {
        let name = tenant.name().cloned();
        report.contended.get(&name).copied().unwrap_or(0)
    };
    let ratio = served(first) as f64 / served(second) as f64;
    (ratio, served(first) + served(second))
}

#[test]
fn tokens_are_shared_by_weight_and_not_by_what_is_asked_for() {
    let light = tenant("light", 1);
    for (weight, wanted) in [(1, 1.0), (3, 1.0 / 3.0)] {
        let heavy = tenant("heavy", weight);
        let mut requests = traffic(&heavy, 0.0, 300, 3.0);
        requests.extend(traffic(&light, 0.0, 30, 3.0));
        let (ratio, tokens) = ratio(&serve(requests), &light, &heavy);
        assert!(tokens > 15_000, "{tokens} tokens while both waited");
        let error = ratio / wanted;
        assert!((0.9..1.1).contains(&error), "weight {weight}: {ratio}");
    }
}

#[test]
fn a_heavy_tenant_of_long_requests_gets_as_many_tokens_and_not_as_many_requests() {
    let (long, short) = (tenant("long", 1), tenant("short", 1));
    let mut requests = traffic(&long, 0.0, 80, 2.0);
    for request in &mut requests {
        (request.max_new_tokens, request.length) = (120, 120);
    }
    requests.extend(traffic(&short, 0.0, 80, 2.0));
    let (ratio, tokens) = ratio(&serve(requests), &long, &short);
    assert!(tokens > 15_000, "{tokens} tokens while both waited");
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn one_tenant_alone_gets_everything() {
    let end = |only: &Tenant| {
        let report = serve(traffic(only, 0.0, 100, 2.0));
        report.ended.iter().map(|end| end.1).fold(0.0, f64::max)
    };
    assert_eq!(end(&tenant("alone", 1)), end(&Tenant::default()));
}

/// One that comes late gets its share from then on, and not what it might have had before.
#[test]
fn idle_tenants_get_no_credit() {
    let (busy, idle) = (tenant("busy", 1), tenant("idle", 1));
    let mut requests = traffic(&busy, 0.0, 60, 8.0);
    requests.extend(traffic(&idle, 0.0, 1, 1.0));
    requests.extend(traffic(&idle, 5.0, 150, 1.0));
    let (ratio, tokens) = ratio(&serve(requests), &idle, &busy);
    assert!(tokens > 15_000, "{tokens} tokens while both waited");
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

/// What was computed while nobody else asked is held against nobody.
#[test]
fn an_idle_server_is_everybody_s() {
    let (early, late) = (tenant("early", 1), tenant("late", 1));
    let mut requests = traffic(&early, 0.0, 30, 3.0);
    requests.extend(traffic(&early, 5.0, 150, 1.0));
    requests.extend(traffic(&late, 5.0, 150, 1.0));
    let (ratio, tokens) = ratio(&serve(requests), &early, &late);
    assert!(tokens > 15_000, "{tokens} tokens while both waited");
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn of_two_tenants_the_one_that_was_served_most_pauses() {
    let served = |running: Running, served| Running { served, ..running };
    let case = Case {
        free: 1,
        ..Case::with(
            vec![
                served(short(1), 7),
                served(short(2), 3),
                served(short(3), 3),
            ],
            vec![],
        )
    };
    let plan = case.plan();
    assert_eq!(plan.pause, [0]);
    assert_eq!(plan.decode, [1]);
}
