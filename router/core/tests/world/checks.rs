//! What must hold of every world.

use std::collections::BTreeSet;
use std::time::Duration;

use text_generation_core::error::InferError;
use tokio::time::Instant;

use super::chaos::Fault;
use super::clients::{End, Outcome, Reading};
use super::model::{POISON, alone};

/// A fault that ends requests has done so within this time: the step that it hits may come behind shards that were lost.
const AFTERMATH: Duration = Duration::from_secs(40);

/// What came of an answer is what the request gets alone, and all of it where the client stayed. Nobody fails but by a
/// fault that has just `happened` and ends requests, or because the shards were lost twice while it ran.
pub fn answers(outcomes: &[Outcome], happened: &[(Instant, Fault)]) {
    let losses = happened.iter().filter(|(_, fault)| fault.is_loss()).count();
    for outcome in outcomes {
        let (expected, reason) = alone(&outcome.task);
        assert!(
            expected.starts_with(&outcome.tokens),
            "{:?}: {expected:?}, not {:?}",
            outcome.task,
            outcome.tokens
        );
        match &outcome.end {
            End::Finished(finish) => {
                assert_eq!(outcome.tokens, expected, "{:?}", outcome.task);
                assert_eq!(*finish, reason, "{:?}", outcome.task);
            }
            End::Left => assert!(matches!(outcome.reading, Reading::Leaves(_))),
            End::Failed(InferError::ShardLost) => {
                let poison = outcome.task.prompt.first() == Some(&POISON);
                assert!(poison || losses > 1, "{:?}", outcome.task);
            }
            End::Failed(error) => {
                let ends = |&(at, fault): &(Instant, Fault)| {
                    // Who reads late hears late of it.
                    let late = outcome.reading != Reading::AtOnce;
                    let recent = at <= outcome.ended && outcome.ended <= at + AFTERMATH;
                    !fault.is_loss() && (late || recent)
                };
                assert!(happened.iter().any(ends), "nothing happened, but {error}");
            }
        }
    }
}

/// Requests start in the order of the queue: by arrival, moved by ten seconds for each step of priority. Holds where
/// nobody waits for another one's prefix, and each client stays.
pub fn order(outcomes: &[Outcome]) {
    let began = outcomes
        .iter()
        .filter_map(|o| Some(o.instants?.queued))
        .min();
    let mut changes = Vec::new();
    for (index, outcome) in outcomes.iter().enumerate() {
        let (Some(instants), Some(began)) = (outcome.instants, began) else {
            continue;
        };
        let arrival = (instants.queued - began).as_millis() as i64;
        let due = (arrival + 10_000 * i64::from(outcome.priority), index);
        changes.push((instants.queued, false, due));
        changes.push((instants.started, true, due));
    }
    changes.sort_unstable();
    let mut waiting = BTreeSet::new();
    for moment in changes.chunk_by(|a, b| a.0 == b.0) {
        let starting = moment.iter().filter(|change| change.1);
        let starting: Vec<_> = starting.map(|change| change.2).collect();
        // Those that came in this very moment may be too late for its step.
        for due in &starting {
            waiting.remove(due);
        }
        let late =
            |due: &&(i64, usize)| Some(due.0) > waiting.first().map(|first: &(i64, usize)| first.0);
        if !waiting.is_empty() {
            assert_eq!(
                starting.iter().find(late),
                None,
                "{:?} waits",
                waiting.first()
            );
        }
        let coming = moment
            .iter()
            .filter(|change| !change.1)
            .map(|change| change.2);
        waiting.extend(coming.filter(|due| !starting.contains(due)));
    }
    assert!(waiting.is_empty());
}

/// The longest time between two tokens of one stream whose client reads them as they come.
pub fn longest_gap(outcomes: &[Outcome]) -> Duration {
    let at_once = outcomes.iter().filter(|o| o.reading == Reading::AtOnce);
    let gaps = at_once.flat_map(|outcome| outcome.times.windows(2).map(|pair| pair[1] - pair[0]));
    gaps.max().unwrap_or_default()
}
