//! Bookkeeping of KV slots, with a tree of what is computed.
//!
//! The idea is RadixAttention of SGLang (Zheng et al. 2024): K and V of a prompt stay after its request, in a radix tree
//! over token ids and keys of images, so that the next request with the same prefix need not compute them. As in LightLLM a slot is one
//! token, and a hit may end at any of them.
//!
//! A slot is in one place at a time: free ([`alloc`]), in one node of the tree (`tree.rs`), or one request's own
//! ([`Holding`]). What is in the tree and not locked by a request counts as free: it is evicted when slots are needed.

pub mod alloc;
pub mod events;
mod holding;
mod keys;
mod slots;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;
use std::sync::Arc;

use text_generation_client::types::SlotRange;

use alloc::SlotAllocator;
use events::KvEvent;
pub use holding::Holding;
pub use keys::Keys;
use slots::{Cursor, SlotList};
use tree::{NodeId, Tree};

use crate::adapters::Adapters;

/// What the tree has already, and ends within a node, is locked when it is at least as long as this. A request that
/// computes the same ids as another, one by one, would else cut the other's node at each of them.
const SHORTEST_SPLIT: usize = 64;

/// Requests share what they compute when these are equal.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct RootKey {
    /// Generation of the adapter; 0: none.
    pub adapter: u64,
    /// Keeps those who may not learn of each other's prompts apart.
    pub salt: Option<Arc<str>>,
}

/// Says nothing of the salt, which may be a client's secret.
impl fmt::Debug for RootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RootKey")
            .field("adapter", &self.adapter)
            .finish_non_exhaustive()
    }
}

/// What the tree has of a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Match {
    /// Positions from the first on.
    pub length: u32,
    /// How many of their slots nobody has locked, so that they count as free until somebody opens them.
    pub unlocked: u32,
}

/// The slots `0..capacity` of all shards, and what they hold. Not shared between threads; no call waits.
pub struct KvPool {
    allocator: SlotAllocator,
    tree: Tree,
    caching: bool,
}

impl fmt::Debug for KvPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvPool")
            .field("capacity", &self.capacity())
            .field("free", &self.free())
            .field("caching", &self.caching)
            .finish_non_exhaustive()
    }
}

impl KvPool {
    /// Without `caching` nothing enters the tree, and all else is the same.
    pub fn new(capacity: u32, caching: bool) -> Self {
        Self {
            allocator: SlotAllocator::new(capacity),
            tree: Tree::default(),
            caching,
        }
    }

    /// The same, which notes what enters and leaves the tree. `model` tells the caches of models apart, and `adapters`
    /// are those that its requests may name.
    #[must_use]
    pub fn noting_events(mut self, model: &str, adapters: Adapters) -> Self {
        self.tree.note_events(model, adapters);
        self
    }

    /// What has changed in the tree since the last call; nothing unless it [notes](Self::noting_events) it.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        self.tree.take_events()
    }

    /// All that is in the tree, as changes of an empty one, for somebody who has missed some. What
    /// [`KvPool::take_events`] would return is among it.
    pub fn announce(&mut self) -> Vec<KvEvent> {
        self.tree.announce()
    }

    pub fn capacity(&self) -> u32 {
        self.allocator.capacity()
    }

    /// Slots that [`KvPool::grow`] can give: in use by nobody, though the tree may remember what they hold.
    pub fn free(&self) -> u32 {
        self.allocator.available() + self.tree.unlocked()
    }

    /// Slots that are locked or a request's own.
    pub fn used(&self) -> u32 {
        self.capacity() - self.free()
    }

    /// Slots of the tree that nobody uses. They count as free.
    pub fn cached(&self) -> u32 {
        self.tree.unlocked()
    }

    /// Whether requests share what they compute.
    pub fn is_caching(&self) -> bool {
        self.caching
    }

    /// The longest prefix of `ids` in the tree. Changes nothing, and does not count as a use.
    pub fn probe<'a>(&self, root: &RootKey, ids: impl Into<Keys<'a>>) -> Match {
        let ids = ids.into();
        let mut found = Match::default();
        let mut end = self.tree.root(root);
        while let Some((child, count)) =
            end.and_then(|end| self.tree.next(end, ids.behind(found.length as usize)?))
        {
            found.length += count as u32;
            if !self.tree.is_locked(child) {
                found.unlocked += count as u32;
            }
            end = (count == self.tree.slots(child).len() as usize).then_some(child);
        }
        found
    }

    /// Locks the longest prefix of `ids` in the tree, at most `most` positions.
    pub fn open<'a>(&mut self, root: &RootKey, ids: impl Into<Keys<'a>>, most: u32) -> Holding {
        let ids = ids.into().until(most as usize);
        let mut holding = Holding {
            row: SlotList::default(),
            end: self.tree.lock_root(root),
            locked: 0,
            behind: Cursor::default(),
            duplicates: SlotList::default(),
            cached: 0,
            brought: None,
        };
        while let Some((end, count)) = self.enter(&holding, ids) {
            holding.row.extend(self.tree.slots(end).ranges());
            holding.advance(end, count);
        }
        holding.cached = holding.locked;
        holding
    }

    /// `count` more slots behind those it holds. Evicts what was not used for longest, where that is needed. `None`, and
    /// nothing changed, when fewer are free.
    pub fn grow(&mut self, holding: &mut Holding, count: u32) -> Option<Vec<SlotRange>> {
        if count > self.free() || !self.tree.contains(holding.end) {
            return None;
        }
        while self.allocator.available() < count {
            let evicted = self.tree.evict(count - self.allocator.available());
            if evicted.is_empty() {
                break;
            }
            self.release(&evicted);
        }
        let ranges = self.allocator.allocate(count)?;
        holding.row.extend(&ranges);
        Some(ranges)
    }

    /// K and V of positions `0..ids.len()` are computed, or will be before anything that is planned from now on: they
    /// enter the tree where it does not have them, and stay locked. `ids` begins as it did in all calls before; what is
    /// beyond the slots of the holding is not looked at.
    pub fn commit<'a>(&mut self, holding: &mut Holding, ids: impl Into<Keys<'a>>) {
        if !self.caching || !self.tree.contains(holding.end) {
            return;
        }
        let ids = ids.into().until(holding.len() as usize);
        while let Some(rest) = ids.behind(holding.locked as usize)
            && !rest.is_empty()
        {
            match self.tree.next(holding.end, rest) {
                Some((_, count)) if count == rest.len() && count < SHORTEST_SPLIT => return,
                Some((child, count)) => {
                    let end = self.tree.enter(child, count);
                    let slots = holding.advance(end, count);
                    holding.duplicates.extend(slots.ranges());
                }
                None => {
                    holding.brought.get_or_insert(holding.locked);
                    let slots = holding.advance(holding.end, rest.len());
                    holding.end = self.tree.append(holding.end, rest, slots);
                }
            }
        }
    }

    /// The request has ended or pauses: what is computed, positions `0..ids.len()`, enters the tree and is the last that
    /// was used; all other slots of its own are free.
    pub fn close<'a>(&mut self, mut holding: Holding, ids: impl Into<Keys<'a>>) {
        let ids = ids.into();
        self.commit(&mut holding, ids);
        let own = self.own(&holding);
        let ids = ids.until(holding.len() as usize);
        while let Some((end, count)) = self.enter(&holding, ids) {
            holding.advance(end, count);
        }
        self.unlock(&holding, own);
    }

    /// As [`KvPool::close`], but what this holding brought into the tree is never found again (it may hold NaN), and
    /// neither is what others computed from it. Others who hold such slots keep them; when the last lets go they are free.
    pub fn discard(&mut self, holding: Holding) {
        let mut own = self.own(&holding);
        if let Some(brought) = holding.brought
            && self.tree.contains(holding.end)
        {
            own.extend(self.tree.detach(holding.end, holding.locked - brought));
        }
        self.unlock(&holding, own);
    }

    /// Nothing that is in the tree now is found again: some of it is wrong, and nobody knows which. Who holds slots keeps
    /// them; when the last lets go they are free.
    pub fn distrust(&mut self) {
        let freed = self.tree.detach_all();
        self.release(&freed);
    }

    /// As new: the shards forgot everything. To holdings of before, every call but those that read them does nothing, and
    /// [`KvPool::grow`] gives them nothing.
    pub fn reset(&mut self) {
        self.allocator = SlotAllocator::new(self.capacity());
        self.tree.clear();
    }

    /// Locks the next node of the tree along `ids`, behind the path of a holding: where that ends then, and how many more
    /// positions it has.
    fn enter(&mut self, holding: &Holding, ids: Keys<'_>) -> Option<(NodeId, usize)> {
        if !self.tree.contains(holding.end) {
            return None;
        }
        let rest = ids.behind(holding.locked as usize)?;
        let (child, count) = self.tree.next(holding.end, rest)?;
        Some((self.tree.enter(child, count), count))
    }

    /// The slots of a holding that are not in the tree.
    fn own(&self, holding: &Holding) -> Vec<SlotRange> {
        let mut own = holding.duplicates.clone();
        let behind = holding.row.read(&mut holding.behind.clone(), u32::MAX);
        own.extend(behind.ranges());
        own.ranges().to_vec()
    }

    /// Ends the lock of a holding, and frees its own slots.
    fn unlock(&mut self, holding: &Holding, mut own: Vec<SlotRange>) {
        if self.tree.contains(holding.end) {
            own.extend(self.tree.unlock(holding.end));
            self.release(&own);
        }
    }

    fn release(&mut self, slots: &[SlotRange]) {
        if let Err(error) = self.allocator.free(slots) {
            tracing::error!(%error, "slots were given back that nobody held");
        }
    }
}
