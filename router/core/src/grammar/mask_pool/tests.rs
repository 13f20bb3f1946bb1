use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

#[test]
fn equal_masks_share_a_slot_and_the_oldest_makes_room() {
    let mut pool = MaskPool::new(4);
    let mut place = |mask, step, in_flight| {
        let place = pool.place(&mask, step, in_flight)?;
        Some((place.slot, place.write))
    };
    assert_eq!(place('a', 0, 0), Some((1, true)));
    assert_eq!(place('a', 0, 0), Some((1, false)));
    assert_eq!(place('b', 0, 0), Some((2, true)));
    assert_eq!(place('c', 1, 0), Some((3, true)));
    // Step 0 reads a and b, step 1 reads c.
    assert_eq!(place('d', 1, 0), None);
    assert_eq!(place('b', 2, 1), Some((2, false)));
    assert_eq!(place('d', 2, 1), Some((1, true)));
    assert_eq!(place('a', 2, 1), None);
    assert_eq!(place('a', 3, 2), Some((3, true)));
    pool.reset();
    let again = pool.place(&'a', 0, 0);
    assert_eq!(
        again,
        Some(Place {
            slot: 1,
            write: true
        })
    );
}

#[test]
fn without_slots_nothing_is_placed() {
    for slots in [0, 1] {
        assert_eq!(MaskPool::new(slots).place(&'a', 0, 0), None);
        assert_eq!(most_rows(slots), 0);
    }
    assert_eq!([2, 3, 4, 5, 2048].map(most_rows), [0, 1, 1, 2, 1023]);
}

proptest! {
    /// A device that takes all writes holds what each step reads, no write touches what a step in flight reads, and the
    /// slot that makes room is one that was read longest ago. As many rows as are allowed always find their masks.
    #[test]
    fn agrees_with_a_device_that_remembers_everything(
        slots in 1..12u32,
        steps in prop::collection::vec((prop::collection::vec(0..9u8, 0..6), any::<bool>()), 1..60),
    ) {
        let mut pool = MaskPool::new(slots);
        let mut device: BTreeMap<u32, u8> = BTreeMap::new();
        let mut last_read: BTreeMap<u32, u64> = BTreeMap::new();
        let mut in_flight: VecDeque<(u64, BTreeSet<u32>)> = VecDeque::new();
        for (number, (masks, answered)) in (0..).zip(steps) {
            if in_flight.len() == PLANS_IN_FLIGHT || (answered && !in_flight.is_empty()) {
                in_flight.pop_front();
            }
            in_flight.push_back((number, BTreeSet::new()));
            let oldest = in_flight[0].0;
            for mask in masks.into_iter().take(most_rows(slots)) {
                let place = pool.place(&mask, number, oldest);
                let place = place.expect("a slot for each of the rows that may run");
                prop_assert!((1..slots).contains(&place.slot));
                if place.write {
                    prop_assert!(!device.values().any(|&held| held == mask), "it was there");
                    let read = in_flight.iter().any(|(_, slots)| slots.contains(&place.slot));
                    prop_assert!(!read, "a step in flight reads it");
                    let age = |slot: &u32| last_read.get(slot).copied();
                    let oldest = (1..slots).map(|slot| age(&slot)).min();
                    prop_assert_eq!(Some(age(&place.slot)), oldest);
                    device.insert(place.slot, mask);
                }
                prop_assert_eq!(device.get(&place.slot), Some(&mask));
                last_read.insert(place.slot, number);
                in_flight.back_mut().unwrap().1.insert(place.slot);
            }
        }
    }
}
