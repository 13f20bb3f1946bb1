//! Pages of the device: which adapter has which, and which one makes room for another.
//!
//! An adapter has neighbouring pages, the first hole that is large enough. Where there is none, the adapters go that lie
//! in a stretch of pages: none that anybody uses, pinned ones last, and the least recently used first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use text_generation_client::types::AdapterCopy;

use super::weights::{Place, SharedPlace, Weights};

/// An adapter that has pages.
#[derive(Debug)]
struct Slot {
    generation: u64,
    pages: u32,
    /// Ranks that have not said that their copy is done.
    missing: usize,
    /// Keeps it in host memory until the copy is done.
    copying: Option<Arc<Weights>>,
    place: SharedPlace,
    pinned: bool,
    used_at: u64,
}

/// A stretch of pages and what has to go for it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Window {
    /// Whether pinned adapters have to go.
    pinned: bool,
    /// When the last one of those that have to go was used.
    used_at: u64,
    first_page: u32,
}

/// Pages `0..capacity`. The number of an adapter is that of its first page and 1.
#[derive(Debug)]
pub(crate) struct PagePool {
    capacity: u32,
    ranks: usize,
    /// By first page.
    slots: BTreeMap<u32, Slot>,
    /// First pages by generation.
    places: HashMap<u64, u32>,
    clock: u64,
}

impl PagePool {
    /// `ranks` say of each copy when it is done.
    pub(crate) fn new(capacity: u32, ranks: usize) -> Self {
        Self {
            capacity,
            ranks,
            slots: BTreeMap::new(),
            places: HashMap::new(),
            clock: 0,
        }
    }

    /// Pages that adapters have.
    pub(crate) fn used(&self) -> u32 {
        self.slots.values().map(|slot| slot.pages).sum()
    }

    /// How many adapters have pages.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// What requests of this adapter name, where its copy is done.
    pub(crate) fn number(&self, generation: u64) -> Option<u32> {
        let first = *self.places.get(&generation)?;
        let slot = self.slots.get(&first)?;
        (slot.missing == 0).then_some(first + 1)
    }

    /// Whether it has pages, or is on its way there.
    pub(crate) fn has(&self, generation: u64) -> bool {
        self.places.contains_key(&generation)
    }

    /// Whether copies are under way.
    pub(crate) fn is_copying(&self) -> bool {
        self.slots.values().any(|slot| slot.missing > 0)
    }

    /// A request of this adapter starts.
    pub(crate) fn touch(&mut self, generation: u64) {
        self.clock += 1;
        let slot = self.places.get(&generation);
        if let Some(slot) = slot.and_then(|first| self.slots.get_mut(first)) {
            slot.used_at = self.clock;
        }
    }

    /// Gives an adapter pages, for which others go unless they stay. Returns the copy and how many went, or `None` where
    /// there is no room.
    pub(crate) fn bring(
        &mut self,
        weights: &Arc<Weights>,
        pinned: bool,
        stays: impl Fn(u64) -> bool,
    ) -> Option<(AdapterCopy, usize)> {
        let first_page = self.window(weights.pages, stays)?.first_page;
        let gone = self.in_window(first_page, weights.pages);
        for first in &gone {
            self.remove(*first);
        }
        self.clock += 1;
        weights.place.set(Place::Copying);
        let slot = Slot {
            generation: weights.generation,
            pages: weights.pages,
            missing: self.ranks,
            copying: Some(Arc::clone(weights)),
            place: weights.place.clone(),
            pinned,
            used_at: self.clock,
        };
        self.slots.insert(first_page, slot);
        self.places.insert(weights.generation, first_page);
        let copy = AdapterCopy {
            number: first_page + 1,
            generation: weights.generation,
            first_page,
        };
        Some((copy, gone.len()))
    }

    /// Whether there is a hole of so many pages.
    pub(crate) fn has_hole(&self, pages: u32) -> bool {
        self.window(pages, |_| true).is_some()
    }

    /// Adapters that give up so many pages soonest, if they get no new requests.
    pub(crate) fn victims(&self, pages: u32) -> Vec<u64> {
        let Some(window) = self.window(pages, |_| false) else {
            return Vec::new();
        };
        let victims = self.in_window(window.first_page, pages);
        let slots = victims.iter().filter_map(|first| self.slots.get(first));
        slots.map(|slot| slot.generation).collect()
    }

    /// A rank has made the copy of this number.
    pub(crate) fn ready(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(&number.wrapping_sub(1)) else {
            return;
        };
        slot.missing = slot.missing.saturating_sub(1);
        if slot.missing == 0 {
            slot.copying = None;
            slot.place.set(Place::Device);
        }
    }

    /// Nothing is on the shards any more.
    pub(crate) fn reset(&mut self) {
        let all: Vec<u32> = self.slots.keys().copied().collect();
        for first in all {
            self.remove(first);
        }
    }

    fn remove(&mut self, first: u32) {
        if let Some(slot) = self.slots.remove(&first) {
            slot.place.set(Place::Host);
            self.places.remove(&slot.generation);
        }
    }

    /// The best stretch of so many pages. Copies under way always stay. One that begins elsewhere than at the beginning
    /// or behind an adapter can be moved to there, and overlaps no other adapters then.
    fn window(&self, pages: u32, stays: impl Fn(u64) -> bool) -> Option<Window> {
        let ends = self.slots.iter().map(|(first, slot)| first + slot.pages);
        let starts = std::iter::once(0).chain(ends);
        let last = self.capacity.checked_sub(pages)?;
        let windows = starts.filter(|&start| start <= last).filter_map(|start| {
            let mut window = Window {
                pinned: false,
                used_at: 0,
                first_page: start,
            };
            for first in self.in_window(start, pages) {
                let slot = self.slots.get(&first)?;
                if slot.missing > 0 || stays(slot.generation) {
                    return None;
                }
                window.pinned |= slot.pinned;
                window.used_at = window.used_at.max(slot.used_at);
            }
            Some(window)
        });
        windows.min()
    }

    /// First pages of the adapters that have one of these pages.
    fn in_window(&self, start: u32, pages: u32) -> Vec<u32> {
        let before = self.slots.range(..start + pages);
        let overlapping = before.filter(|(first, slot)| *first + slot.pages > start);
        overlapping.map(|(first, _)| *first).collect()
    }
}

#[cfg(test)]
mod tests;
