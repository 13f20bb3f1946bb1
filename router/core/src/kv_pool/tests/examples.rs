use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::kv_pool::{Match, SHORTEST_SPLIT};

fn base() -> RootKey {
    RootKey::default()
}

fn ids(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

fn found(length: u32, unlocked: u32) -> Match {
    Match { length, unlocked }
}

/// A request that has computed all of `ids`.
fn computed(pool: &mut KvPool, ids: &[u32]) -> Holding {
    let mut holding = pool.open(&base(), ids, u32::MAX);
    let missing = ids.len() as u32 - holding.len();
    pool.grow(&mut holding, missing).unwrap();
    pool.commit(&mut holding, ids);
    holding
}

fn remember(pool: &mut KvPool, ids: &[u32]) {
    let holding = computed(pool, ids);
    pool.close(holding, ids);
}

#[test]
fn the_next_request_gets_the_slots_of_its_longest_cached_prefix() {
    let mut pool = KvPool::new(100, true);
    let first = computed(&mut pool, &ids(0..10));
    let slots = expand(first.slots());
    assert_eq!((first.cached(), first.own(), pool.used()), (0, 0, 10));
    assert_eq!(pool.probe(&base(), &ids(0..20)), found(10, 0));
    pool.close(first, &ids(0..10));
    assert_eq!((pool.used(), pool.free()), (0, 100));

    let fork = [ids(0..6), ids(50..54)].concat();
    assert_eq!(pool.probe(&base(), &fork), found(6, 6));
    let mut second = pool.open(&base(), &fork, u32::MAX);
    assert_eq!((second.cached(), second.len(), second.own()), (6, 6, 0));
    assert_eq!(expand(second.slots()), slots[..6]);
    assert_eq!(pool.used(), 6, "the other branch can be evicted");
    assert_eq!(pool.probe(&base(), &ids(0..20)), found(10, 4));
    let granted = pool.grow(&mut second, 4).unwrap();
    assert_eq!(
        expand(second.slots()),
        [&slots[..6], &expand(&granted)].concat()
    );
    assert_eq!((second.len(), second.own(), pool.used()), (10, 4, 10));
    pool.close(second, &fork);
    assert_eq!(pool.probe(&base(), &fork), found(10, 10));
    assert_eq!(pool.probe(&base(), &ids(0..10)), found(10, 10));
}

#[test]
fn at_most_as_many_positions_are_locked_as_asked_for() {
    let mut pool = KvPool::new(100, true);
    remember(&mut pool, &ids(0..10));
    let holding = pool.open(&base(), &ids(0..10), 9);
    assert_eq!((holding.cached(), pool.used()), (9, 9));
    pool.close(holding, &ids(0..9));
    assert_eq!(pool.probe(&base(), &ids(0..10)), found(10, 10));
}

#[test]
fn roots_of_adapters_and_salts_share_nothing() {
    let mut pool = KvPool::new(100, true);
    remember(&mut pool, &ids(0..10));
    let salted = |salt: &str| RootKey {
        adapter: 0,
        salt: Some(salt.into()),
    };
    for other in [adapter(1), salted("a")] {
        assert_eq!(pool.probe(&other, &ids(0..10)), Match::default());
        let mut holding = pool.open(&other, &ids(0..10), u32::MAX);
        pool.grow(&mut holding, 10).unwrap();
        pool.close(holding, &ids(0..10));
        assert_eq!(pool.probe(&other, &ids(0..10)), found(10, 10));
    }
    assert_eq!(pool.probe(&salted("b"), &ids(0..10)), Match::default());
    assert!(!format!("{:?}", salted("secret")).contains("secret"));
}

#[test]
fn a_pause_gives_all_back_and_the_resumed_request_finds_what_it_generated() {
    let mut pool = KvPool::new(20, true);
    let mut holding = computed(&mut pool, &ids(0..8));
    pool.grow(&mut holding, 6).unwrap();
    pool.commit(&mut holding, &ids(0..9));
    assert_eq!(holding.own(), 5);
    pool.close(holding, &ids(0..12));
    assert_eq!(pool.used(), 0);
    let resumed = pool.open(&base(), &ids(0..13), 12);
    assert_eq!(resumed.cached(), 12);
    pool.close(resumed, &ids(0..12));
}

#[test]
fn what_two_requests_computed_twice_is_the_second_ones_own_until_it_closes() {
    let mut pool = KvPool::new(400, true);
    let long = 2 * SHORTEST_SPLIT as u32;
    let (one, two) = (ids(0..long), [ids(0..long), vec![7]].concat());
    let mut first = pool.open(&base(), &one, u32::MAX);
    let mut second = pool.open(&base(), &two, u32::MAX);
    pool.grow(&mut first, long).unwrap();
    pool.grow(&mut second, long + 1).unwrap();
    let row = second.slots().to_vec();
    pool.commit(&mut first, &one);
    pool.commit(&mut second, &two);
    assert_eq!((first.own(), second.own()), (0, long));
    assert_eq!(second.slots(), row, "its row on the device reads them");
    assert_eq!(pool.used(), 2 * long + 1);
    pool.close(first, &one);
    assert_eq!(pool.probe(&base(), &two), found(long + 1, 0));
    pool.close(second, &two);
    assert_eq!(pool.probe(&base(), &two), found(long + 1, long + 1));
    audit(&pool, std::iter::empty());
    remember(&mut pool, &ids(1000..1400));
    assert_eq!(pool.probe(&base(), &two), Match::default());
}

#[test]
fn requests_that_go_in_step_do_not_cut_the_tree_into_single_tokens() {
    let mut pool = KvPool::new(10_000, true);
    let all = ids(0..2000);
    let mut holdings = [(); 3].map(|()| pool.open(&base(), &all, u32::MAX));
    for step in 1..=all.len() {
        for holding in &mut holdings {
            pool.grow(holding, 1).unwrap();
            pool.commit(holding, &all[..step]);
        }
    }
    assert!(
        pool.tree.count() <= 2 + all.len() / SHORTEST_SPLIT,
        "{}",
        pool.tree.count()
    );
    audit(&pool, holdings.iter());
    for holding in holdings {
        pool.close(holding, &all);
    }
    assert_eq!(pool.used(), 0);
}

#[test]
fn chunks_of_one_request_and_turns_of_one_conversation_are_one_node() {
    let mut pool = KvPool::new(10_000, true);
    let all = ids(0..10_000);
    for turn in [4000, 7000, 10_000] {
        let mut holding = pool.open(&base(), &all[..turn], u32::MAX);
        let missing = turn as u32 - holding.cached();
        pool.grow(&mut holding, missing).unwrap();
        for end in (holding.cached() as usize..turn).step_by(512) {
            pool.commit(&mut holding, &all[..end]);
        }
        pool.close(holding, &all[..turn]);
    }
    assert_eq!(pool.tree.count(), 2, "a root and a leaf");
}

#[test]
fn the_least_recently_used_is_evicted_from_its_end_and_only_as_much_as_is_needed() {
    let mut pool = KvPool::new(30, true);
    let [a, b, c] = [0, 100, 200].map(|start| ids(start..start + 10));
    remember(&mut pool, &a);
    remember(&mut pool, &b);
    remember(&mut pool, &c);
    let again = pool.open(&base(), &a, u32::MAX);
    pool.close(again, &a);
    let mut holding = pool.open(&base(), &[], u32::MAX);
    let lengths = |pool: &KvPool| [&a, &b, &c].map(|ids| pool.probe(&base(), ids).length);
    for (count, left) in [
        (4, [10, 6, 10]),
        (7, [10, 0, 9]),
        (9, [10, 0, 0]),
        (10, [0, 0, 0]),
    ] {
        pool.grow(&mut holding, count).unwrap();
        assert_eq!(lengths(&pool), left);
    }
    assert_eq!((pool.free(), pool.grow(&mut holding, 1)), (0, None));
    pool.close(holding, &[]);
    assert_eq!(pool.tree.count(), 0, "emptied roots are removed");
}

#[test]
fn a_branch_is_evicted_before_what_it_stands_on() {
    let mut pool = KvPool::new(30, true);
    let branches = [100, 200].map(|start| [ids(0..10), ids(start..start + 5)].concat());
    branches.iter().for_each(|ids| remember(&mut pool, ids));
    let mut holding = pool.open(&base(), &[], u32::MAX);
    for (count, left) in [(15, [10, 15]), (5, [10, 10]), (4, [6, 6])] {
        pool.grow(&mut holding, count).unwrap();
        let lengths = [0, 1].map(|branch: usize| pool.probe(&base(), &branches[branch]).length);
        assert_eq!(lengths, left);
    }
    pool.close(holding, &[]);
}

#[test]
fn what_is_locked_is_not_evicted_and_a_refusal_changes_nothing() {
    let mut pool = KvPool::new(20, true);
    remember(&mut pool, &ids(0..10));
    let reader = pool.open(&base(), &ids(0..6), u32::MAX);
    let mut other = pool.open(&base(), &[], u32::MAX);
    assert_eq!(pool.grow(&mut other, 15), None);
    assert_eq!(pool.probe(&base(), &ids(0..10)), found(10, 4));
    assert_eq!((pool.free(), other.len()), (14, 0));
    pool.grow(&mut other, 14).unwrap();
    assert_eq!(pool.probe(&base(), &ids(0..10)), found(6, 0));
    pool.close(other, &[]);
    pool.close(reader, &ids(0..6));
}

#[test]
fn what_a_failed_request_computed_is_never_found_and_stays_with_those_who_read_it() {
    let mut pool = KvPool::new(100, true);
    remember(&mut pool, &ids(0..4));
    let mut failed = computed(&mut pool, &ids(0..10));
    pool.grow(&mut failed, 3).unwrap();
    let reader = computed(&mut pool, &ids(0..14));
    assert_eq!(reader.cached(), 10);
    pool.discard(failed);
    assert_eq!(pool.probe(&base(), &ids(0..14)), found(4, 0));
    assert_eq!(pool.used(), 14);
    // The same ids, computed again, are other slots.
    let healthy = computed(&mut pool, &ids(0..12));
    assert_eq!((healthy.cached(), pool.used()), (4, 22));
    audit(&pool, [&reader, &healthy].into_iter());
    pool.close(reader, &ids(0..14));
    assert_eq!(pool.used(), 12);
    pool.close(healthy, &ids(0..12));
    assert_eq!(pool.probe(&base(), &ids(0..14)), found(12, 12));
    audit(&pool, std::iter::empty());
}

#[test]
fn a_reader_of_failed_slots_that_fails_too_does_not_touch_what_was_computed_again() {
    let mut pool = KvPool::new(100, true);
    let failed = computed(&mut pool, &ids(0..10));
    let mut reader = pool.open(&base(), &ids(0..20), u32::MAX);
    pool.discard(failed);
    remember(&mut pool, &ids(0..10));
    pool.grow(&mut reader, 10).unwrap();
    pool.commit(&mut reader, &ids(0..20));
    pool.discard(reader);
    assert_eq!(pool.probe(&base(), &ids(0..20)), found(10, 10));
    audit(&pool, std::iter::empty());
}

#[test]
fn what_is_distrusted_is_not_found_and_stays_with_those_who_hold_it() {
    let mut pool = KvPool::new(100, true);
    remember(&mut pool, &ids(0..10));
    remember(&mut pool, &ids(50..60));
    let mut reader = computed(&mut pool, &ids(0..14));
    assert_eq!(reader.cached(), 10);
    pool.distrust();
    assert_eq!(pool.probe(&base(), &ids(0..14)), Match::default());
    assert_eq!(pool.probe(&base(), &ids(50..60)), Match::default());
    assert_eq!((pool.used(), pool.cached()), (14, 0));
    // It goes on, and what is computed from now on is found.
    pool.grow(&mut reader, 2).unwrap();
    pool.commit(&mut reader, &ids(0..16));
    remember(&mut pool, &ids(0..5));
    audit(&pool, std::iter::once(&reader));
    pool.close(reader, &ids(0..16));
    assert_eq!(pool.probe(&base(), &ids(0..16)), found(5, 5));
    assert_eq!((pool.used(), pool.cached()), (0, 5));
    audit(&pool, std::iter::empty());
}

#[test]
fn the_second_that_computed_the_same_uses_what_the_tree_has_of_it() {
    let mut pool = KvPool::new(30, true);
    let (twice, other) = (ids(0..10), ids(100..110));
    let mut holdings = [(); 2].map(|()| pool.open(&base(), &twice, u32::MAX));
    for holding in &mut holdings {
        pool.grow(holding, 10).unwrap();
        pool.commit(holding, &twice);
    }
    let [first, second] = holdings;
    pool.close(first, &twice);
    remember(&mut pool, &other);
    pool.close(second, &twice);
    let mut new = pool.open(&base(), &[], u32::MAX);
    pool.grow(&mut new, 20).unwrap();
    assert_eq!(pool.probe(&base(), &twice), found(10, 10));
    assert_eq!(pool.probe(&base(), &other), Match::default());
    pool.close(new, &[]);
}

#[test]
fn without_caching_nothing_is_found_and_all_slots_come_back() {
    let mut pool = KvPool::new(20, false);
    let mut holding = pool.open(&base(), &ids(0..10), u32::MAX);
    pool.grow(&mut holding, 12).unwrap();
    pool.commit(&mut holding, &ids(0..10));
    assert_eq!((holding.own(), pool.used()), (12, 12));
    assert_eq!(pool.probe(&base(), &ids(0..10)), Match::default());
    pool.close(holding, &ids(0..11));
    assert_eq!((pool.used(), pool.tree.count()), (0, 0));
}

#[test]
fn after_a_reset_the_holdings_of_before_do_no_harm() {
    let mut pool = KvPool::new(20, true);
    let mut stale = computed(&mut pool, &ids(0..10));
    let failed = computed(&mut pool, &ids(0..12));
    pool.reset();
    assert_eq!(pool.used(), 0);
    let live = computed(&mut pool, &ids(0..15));
    assert_eq!(live.cached(), 0);
    assert_eq!(pool.grow(&mut stale, 1), None);
    pool.commit(&mut stale, &ids(0..10));
    pool.close(stale, &ids(0..10));
    pool.discard(failed);
    assert_eq!(pool.used(), 15);
    audit(&pool, std::iter::once(&live));
    pool.close(live, &ids(0..15));
}

#[test]
fn after_ten_thousand_requests_with_cancellations_every_slot_is_free_or_in_the_tree() {
    let mut random = StdRng::seed_from_u64(7);
    let mut pool = KvPool::new(5000, true);
    let mut live: Vec<(Holding, Vec<u32>, usize)> = Vec::new();
    let mut requests = 0;
    while requests < 10_000 || !live.is_empty() {
        if requests < 10_000 && live.len() < 40 {
            let prefix = random.random_range(0..20) * 1000;
            let mut prompt = ids(prefix..prefix + random.random_range(1..300));
            prompt.extend((0..random.random_range(1..40)).map(|_| random.random_range(0..3)));
            let holding = pool.open(&base(), &prompt, prompt.len() as u32 - 1);
            let done = holding.cached() as usize;
            live.push((holding, prompt, done));
            requests += 1;
        }
        let index = random.random_range(0..live.len());
        let (holding, prompt, done) = &mut live[index];
        let chunk = (prompt.len() - *done).min(random.random_range(1..128));
        let enough = pool.grow(holding, chunk as u32).is_some();
        if enough {
            *done += chunk;
            pool.commit(holding, &prompt[..*done]);
        }
        let cancelled = random.random_range(0..20) == 0;
        if !enough || cancelled || *done == prompt.len() {
            let (holding, prompt, done) = live.swap_remove(index);
            match random.random_range(0..50) {
                0 => pool.discard(holding),
                _ => pool.close(holding, &prompt[..done]),
            }
        }
    }
    assert_eq!((pool.used(), pool.free()), (0, 5000));
    audit(&pool, std::iter::empty());
    assert!(pool.tree.unlocked() > 4000, "the tree is in use");
}
