//! Owners of the mask slots of the device.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::PLANS_IN_FLIGHT;

/// How many constrained requests may run with so many mask slots, slot 0 among them: each may need a mask of its own in
/// each step that is in flight.
pub(crate) fn most_rows(slots: u32) -> usize {
    (slots.saturating_sub(1) / PLANS_IN_FLIGHT as u32) as usize
}

/// Which mask each slot of the device holds. Equal masks share a slot and are written once; what was read longest ago
/// makes room, once no step in flight reads it. Slot 0 allows everything, and is not in the pool.
#[derive(Debug)]
pub(crate) struct MaskPool<M> {
    /// `slots[n]` is slot `n + 1`.
    slots: Vec<Slot<M>>,
    by_mask: HashMap<M, u32>,
    /// Every slot with the step that read it last, the one that was read longest ago first.
    by_age: BTreeSet<(Option<u64>, u32)>,
}

#[derive(Debug)]
struct Slot<M> {
    mask: Option<M>,
    /// The last step that reads it.
    read: Option<u64>,
}

/// Where a mask is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: u32,
    /// The slot does not hold it yet.
    pub(crate) write: bool,
}

impl<M: Clone + Eq + Hash> MaskPool<M> {
    /// Of a device with slots `0..slots`, which hold nothing.
    pub(crate) fn new(slots: u32) -> Self {
        let numbers = 1..slots.max(1);
        Self {
            slots: numbers
                .clone()
                .map(|_| Slot {
                    mask: None,
                    read: None,
                })
                .collect(),
            by_mask: HashMap::new(),
            by_age: numbers.map(|slot| (None, slot)).collect(),
        }
    }

    /// A slot for `mask`, which `step` reads. Steps ascend, and those before `in_flight` have been answered. Nothing where
    /// every slot is read by a step in flight, which cannot be while at most [`most_rows`] rows of each have masks.
    pub(crate) fn place(&mut self, mask: &M, step: u64, in_flight: u64) -> Option<Place> {
        if let Some(&slot) = self.by_mask.get(mask) {
            self.read(slot, step);
            return Some(Place { slot, write: false });
        }
        let &(read, slot) = self.by_age.first()?;
        if read.is_some_and(|read| read >= in_flight) {
            return None;
        }
        let held = self.slots[slot as usize - 1].mask.replace(mask.clone());
        if let Some(held) = held {
            self.by_mask.remove(&held);
        }
        self.by_mask.insert(mask.clone(), slot);
        self.read(slot, step);
        Some(Place { slot, write: true })
    }

    /// The shards dropped everything, and steps count from 0 again.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.slots.len() as u32 + 1);
    }

    fn read(&mut self, slot: u32, step: u64) {
        let read = &mut self.slots[slot as usize - 1].read;
        self.by_age.remove(&(*read, slot));
        *read = Some(step);
        self.by_age.insert((*read, slot));
    }
}

#[cfg(test)]
mod tests;
