//! Allocator of KV slots: which are free. Ranges, best fit, neighbours merged.

use std::collections::{BTreeMap, BTreeSet};

pub use text_generation_client::types::SlotRange;

/// A range that was to be freed is not held by anybody, or lies outside the pool. Nothing was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("slots {}..{} of a pool of {capacity} are not allocated", .range.start, u64::from(.range.start) + u64::from(.range.length))]
pub struct FreeError {
    pub range: SlotRange,
    pub capacity: u32,
}

/// Owns the slots `0..capacity`. A slot belongs to one holder at a time.
#[derive(Debug, Clone)]
pub struct SlotAllocator {
    /// Start to length; ranges neither touch nor overlap.
    free: BTreeMap<u32, u32>,
    /// The same ranges as (length, start): the shortest first, and of equal ones the lowest.
    by_length: BTreeSet<(u32, u32)>,
    available: u32,
    capacity: u32,
}

impl SlotAllocator {
    pub fn new(capacity: u32) -> Self {
        let mut slots = Self {
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
            available: 0,
            capacity,
        };
        if capacity > 0 {
            slots.release(SlotRange {
                start: 0,
                length: capacity,
            });
        }
        slots
    }

    pub fn available(&self) -> u32 {
        self.available
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Takes `count` slots: the start of the shortest free range that is long enough, else the longest ranges there are.
    /// `None` when fewer are free. Logarithmic in the number of free ranges, for each range that is taken.
    pub fn allocate(&mut self, count: u32) -> Option<Vec<SlotRange>> {
        if count > self.available {
            return None;
        }
        let mut ranges = Vec::new();
        let mut missing = count;
        while missing > 0 {
            let fit = self.by_length.range((missing, 0)..).next();
            let Some(&(length, start)) = fit.or_else(|| self.by_length.last()) else {
                break;
            };
            let range = self.take(start, length, length.min(missing));
            missing -= range.length;
            ranges.push(range);
        }
        Some(ranges)
    }

    /// Takes the first `count` slots of the free range at `start`.
    fn take(&mut self, start: u32, length: u32, count: u32) -> SlotRange {
        self.remove(start);
        if length > count {
            self.insert(start + count, length - count);
        }
        self.available -= count;
        SlotRange {
            start,
            length: count,
        }
    }

    /// Gives slots back. Either all of `ranges` are freed, or none when one of them is not allocated or is named twice.
    pub fn free(&mut self, ranges: &[SlotRange]) -> Result<(), FreeError> {
        let mut ranges: Vec<SlotRange> = ranges.iter().copied().filter(|r| r.length > 0).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut last_end = 0;
        for &range in &ranges {
            if u64::from(range.start) < last_end || !self.is_allocated(range) {
                return Err(FreeError {
                    range,
                    capacity: self.capacity,
                });
            }
            last_end = end(range);
        }
        for range in ranges {
            self.release(range);
        }
        Ok(())
    }

    /// Inside the pool and touching no free slot.
    fn is_allocated(&self, range: SlotRange) -> bool {
        if end(range) > u64::from(self.capacity) {
            return false;
        }
        let before = self.free.range(..=range.start).next_back();
        let after = self.free.range(range.start..).next();
        before.is_none_or(|(&start, &length)| start + length <= range.start)
            && after.is_none_or(|(&start, _)| u64::from(start) >= end(range))
    }

    fn release(&mut self, range: SlotRange) {
        self.available += range.length;
        let SlotRange {
            mut start,
            mut length,
        } = range;
        if let Some(next) = self.remove(start + length) {
            length += next;
        }
        if let Some((&before, &before_length)) = self.free.range(..start).next_back()
            && before + before_length == start
        {
            self.remove(before);
            start = before;
            length += before_length;
        }
        self.insert(start, length);
    }

    fn insert(&mut self, start: u32, length: u32) {
        self.free.insert(start, length);
        self.by_length.insert((length, start));
    }

    /// Length of the free range that began at `start`.
    fn remove(&mut self, start: u32) -> Option<u32> {
        let length = self.free.remove(&start)?;
        self.by_length.remove(&(length, start));
        Some(length)
    }
}

fn end(range: SlotRange) -> u64 {
    u64::from(range.start) + u64::from(range.length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: u32, length: u32) -> SlotRange {
        SlotRange { start, length }
    }

    #[test]
    fn the_shortest_range_that_is_long_enough_is_taken_and_freed_neighbours_merge() {
        let mut slots = SlotAllocator::new(12);
        let ranges: Vec<_> = [4, 1, 2, 5].map(|n| slots.allocate(n)).into();
        assert_eq!(
            ranges,
            [(0, 4), (4, 1), (5, 2), (7, 5)].map(|(s, l)| Some(vec![range(s, l)]))
        );
        slots.free(&[range(0, 4)]).unwrap();
        slots.free(&[range(5, 2)]).unwrap();
        assert_eq!(slots.allocate(1), Some(vec![range(5, 1)]));
        assert_eq!(slots.allocate(3), Some(vec![range(0, 3)]));
        slots.free(&[range(8, 4)]).unwrap();
        assert_eq!(slots.allocate(5), Some(vec![range(8, 4), range(3, 1)]));
        slots
            .free(&[range(0, 7), range(8, 4), range(7, 1)])
            .unwrap_err();
        slots
            .free(&[range(7, 5), range(0, 3), range(3, 3)])
            .unwrap();
        assert_eq!(slots.allocate(12), Some(vec![range(0, 12)]));
    }

    #[test]
    fn too_many_slots_are_refused_and_nothing_is_taken() {
        let mut slots = SlotAllocator::new(4);
        assert_eq!(slots.allocate(5), None);
        assert_eq!(slots.available(), 4);
        assert_eq!(slots.allocate(0), Some(vec![]));
    }

    #[test]
    fn a_wrong_free_is_reported_and_changes_nothing() {
        let mut slots = SlotAllocator::new(8);
        slots.allocate(4).unwrap();
        for wrong in [
            vec![range(3, 2)],
            vec![range(6, 4)],
            vec![range(0, 1), range(7, 1)],
            vec![range(0, 2), range(1, 1)],
            vec![range(u32::MAX, u32::MAX)],
        ] {
            assert!(slots.free(&wrong).is_err(), "{wrong:?}");
            assert_eq!(slots.available(), 4);
        }
        slots.free(&[range(0, 4)]).unwrap();
        assert!(slots.free(&[range(0, 4)]).is_err());
    }

    #[derive(Debug, Clone)]
    enum Op {
        Allocate(u32),
        FreeHeld(prop::sample::Index),
        FreeAny(u32, u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u32..12).prop_map(Op::Allocate),
            3 => any::<prop::sample::Index>().prop_map(Op::FreeHeld),
            1 => (0u32..40, 0u32..6).prop_map(|(start, length)| Op::FreeAny(start, length)),
        ]
    }

    /// One flag a slot.
    struct Bitmap(Vec<bool>);

    impl Bitmap {
        fn longest_free_run(&self) -> usize {
            self.0
                .split(|used| *used)
                .map(<[_]>::len)
                .max()
                .unwrap_or(0)
        }

        fn set(&mut self, ranges: &[SlotRange], used: bool) -> bool {
            let slots: Vec<usize> = ranges
                .iter()
                .flat_map(|r| r.start as usize..(r.start + r.length) as usize)
                .collect();
            let valid = slots.iter().all(|&s| self.0.get(s) == Some(&!used));
            if valid {
                slots.into_iter().for_each(|s| self.0[s] = used);
            }
            valid
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_bitmap(ops in prop::collection::vec(op(), 1..200)) {
            let mut slots = SlotAllocator::new(32);
            let mut model = Bitmap(vec![false; 32]);
            let mut held: Vec<Vec<SlotRange>> = Vec::new();
            for op in ops {
                match op {
                    Op::Allocate(count) => {
                        let free = model.0.iter().filter(|used| !**used).count();
                        let contiguous = model.longest_free_run() >= count as usize;
                        let ranges = slots.allocate(count);
                        prop_assert_eq!(ranges.is_some(), count as usize <= free);
                        if let Some(ranges) = ranges {
                            prop_assert_eq!(ranges.iter().map(|r| r.length).sum::<u32>(), count);
                            prop_assert!(!contiguous || ranges.len() <= 1);
                            prop_assert!(model.set(&ranges, true), "a used slot was given out");
                            held.push(ranges);
                        }
                    }
                    Op::FreeHeld(index) if !held.is_empty() => {
                        let ranges = held.swap_remove(index.index(held.len()));
                        prop_assert_eq!(slots.free(&ranges), Ok(()));
                        prop_assert!(model.set(&ranges, false));
                    }
                    Op::FreeHeld(_) => {}
                    Op::FreeAny(start, length) => {
                        let ranges = [range(start, length)];
                        let valid = model.set(&ranges, false);
                        prop_assert_eq!(slots.free(&ranges).is_ok(), valid);
                        // Whoever held these slots no longer does.
                        let gone = |r: &SlotRange| r.start < start + length && start < r.start + r.length;
                        if valid && held.iter().flatten().any(gone) {
                            return Ok(());
                        }
                    }
                }
                let free = model.0.iter().filter(|used| !**used).count();
                prop_assert_eq!(slots.available() as usize, free);
            }
        }
    }
}
