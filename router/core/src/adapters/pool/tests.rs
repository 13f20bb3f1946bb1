//! Pages in a hand-written order of events, and in random ones.

use std::collections::HashSet;

use proptest::collection::vec;
use proptest::prelude::*;
use text_generation_client::types::{LoadAdapter, LoadedAdapter};
use tokio::sync::mpsc;

use super::*;

fn weights(generation: u64, pages: u32) -> Arc<Weights> {
    let loaded = LoadedAdapter {
        generation,
        rank: 16 * pages,
        pages,
        bytes: 1,
    };
    let load = LoadAdapter {
        name: String::new(),
        source: String::new(),
        untrusted: false,
        generation: 0,
    };
    Arc::new(Weights::new(
        loaded,
        load,
        false,
        mpsc::unbounded_channel().0,
    ))
}

/// Brings an adapter, with its copy done at once; returns its first page.
fn bring(pool: &mut PagePool, generation: u64, pages: u32, stays: &[u64]) -> Option<u32> {
    let stays = |other: u64| stays.contains(&other);
    let (copy, _) = pool.bring(&weights(generation, pages), false, stays)?;
    pool.ready(copy.number);
    Some(copy.first_page)
}

#[test]
fn adapters_of_any_size_lie_side_by_side_and_the_oldest_go_first() {
    let mut pool = PagePool::new(8, 1);
    for (generation, pages, first) in [(1, 2, 0), (2, 4, 2), (3, 2, 6)] {
        assert_eq!(bring(&mut pool, generation, pages, &[]), Some(first));
    }
    assert_eq!((pool.used(), pool.len()), (8, 3));
    pool.touch(1);
    assert_eq!(bring(&mut pool, 4, 3, &[]), Some(2), "in the place of 2");
    assert_eq!(
        bring(&mut pool, 5, 1, &[]),
        Some(5),
        "in the hole that is left"
    );
    assert!(pool.has(1) && pool.has(3) && !pool.has(2));
    // 3 is older than 1, and too small: it goes with 5.
    assert_eq!(bring(&mut pool, 6, 3, &[1, 4]), Some(5));
    assert_eq!(bring(&mut pool, 7, 9, &[]), None);
    assert_eq!(bring(&mut pool, 7, 6, &[4]), None);
    assert_eq!(pool.victims(6), [1, 4, 6]);
}

#[test]
fn a_number_counts_when_every_rank_has_copied() {
    let mut pool = PagePool::new(2, 2);
    let one = weights(1, 2);
    let (copy, gone) = pool.bring(&one, false, |_| false).unwrap();
    assert_eq!((copy.number, gone), (1, 0));
    assert_eq!(
        (pool.number(1), pool.has(1), pool.is_copying()),
        (None, true, true)
    );
    assert!(
        bring(&mut pool, 2, 1, &[]).is_none(),
        "copies are not overwritten"
    );
    pool.ready(1);
    assert_eq!(pool.number(1), None);
    assert_eq!(Arc::strong_count(&one), 2, "the copy reads host memory");
    pool.ready(1);
    assert_eq!((pool.number(1), pool.is_copying()), (Some(1), false));
    assert_eq!(Arc::strong_count(&one), 1);
    pool.reset();
    assert_eq!((pool.number(1), pool.used()), (None, 0));
}

#[test]
fn pinned_adapters_go_only_where_nothing_else_makes_room() {
    let mut pool = PagePool::new(3, 1);
    let (copy, _) = pool.bring(&weights(1, 1), true, |_| false).unwrap();
    pool.ready(copy.number);
    assert_eq!(bring(&mut pool, 2, 1, &[]), Some(1));
    assert_eq!(bring(&mut pool, 3, 1, &[]), Some(2));
    pool.touch(2);
    pool.touch(3);
    assert_eq!(
        bring(&mut pool, 4, 1, &[]),
        Some(1),
        "2 goes, though 1 is older"
    );
    assert_eq!(bring(&mut pool, 5, 3, &[]), Some(0));
    assert_eq!(pool.len(), 1);
}

#[derive(Debug, Clone)]
enum Event {
    Bring(u64),
    Ready,
    Use(u64),
    Leave(u64),
    Reset,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..12_u64).prop_map(Event::Bring),
        4 => Just(Event::Ready),
        3 => (1..12_u64).prop_map(Event::Use),
        3 => (1..12_u64).prop_map(Event::Leave),
        1 => Just(Event::Reset),
    ]
}

proptest! {
    #[test]
    fn no_page_has_two_owners_and_what_runs_stays(events in vec(event(), 1..200), capacity in 4..12_u32) {
        let mut pool = PagePool::new(capacity, 1);
        let mut running: HashSet<u64> = HashSet::new();
        let mut copying: Vec<u32> = Vec::new();
        for event in events {
            match event {
                Event::Bring(generation) if !pool.has(generation) => {
                    let pages = 1 + generation as u32 % 4;
                    let stays = |other: u64| running.contains(&other);
                    let brought = pool.bring(&weights(generation, pages), false, stays);
                    if let Some((copy, _)) = brought {
                        prop_assert_eq!(copy.number, copy.first_page + 1);
                        prop_assert!(copy.first_page + pages <= capacity);
                        copying.push(copy.number);
                    } else {
                        prop_assert!(!running.is_empty() || !copying.is_empty());
                    }
                }
                Event::Ready => for number in copying.drain(..) {
                    pool.ready(number);
                },
                Event::Use(generation) if pool.number(generation).is_some() => {
                    pool.touch(generation);
                    running.insert(generation);
                }
                Event::Leave(generation) => {
                    running.remove(&generation);
                }
                Event::Reset => {
                    pool.reset();
                    running.clear();
                    copying.clear();
                }
                Event::Bring(_) | Event::Use(_) => {}
            }
            let mut end = 0;
            for (first, slot) in &pool.slots {
                prop_assert!(*first >= end);
                end = first + slot.pages;
                prop_assert_eq!(pool.places.get(&slot.generation), Some(first));
            }
            prop_assert!(end <= capacity);
            prop_assert_eq!(pool.places.len(), pool.slots.len());
            prop_assert!(running.iter().all(|one| pool.number(*one).is_some()));
        }
    }
}
