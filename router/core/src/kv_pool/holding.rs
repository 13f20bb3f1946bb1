//! Slots of the pool that one request holds.

use text_generation_client::types::SlotRange;

use super::slots::{Cursor, SlotList};
use super::tree::NodeId;

/// The slots of one request: for its first positions a locked path of the tree, then its own. It must come back to its
/// pool, by [`close`](super::KvPool::close) or [`discard`](super::KvPool::discard); dropped, it keeps its slots until the
/// pool is [`reset`](super::KvPool::reset).
#[derive(Debug)]
#[must_use = "slots are held until the pool gets it back"]
pub struct Holding {
    /// One for each position.
    pub(super) row: SlotList,
    /// Where the locked path ends.
    pub(super) end: NodeId,
    /// Positions on the path.
    pub(super) locked: u32,
    /// `locked` as a place in the row.
    pub(super) behind: Cursor,
    /// Slots of positions on the path for which the tree has other slots than the row: two requests computed the same.
    pub(super) duplicates: SlotList,
    pub(super) cached: u32,
    /// First position of the path that this holding brought into the tree.
    pub(super) brought: Option<u32>,
}

impl Holding {
    /// Positions that were found in the tree when it was opened.
    pub fn cached(&self) -> u32 {
        self.cached
    }

    /// Slots in all, for positions `0..len`.
    pub fn len(&self) -> u32 {
        self.row.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots that nobody else can use: they are not in the tree.
    pub fn own(&self) -> u32 {
        self.row.len() - self.locked + self.duplicates.len()
    }

    /// For positions `0..len` in order, neighbours merged.
    pub fn slots(&self) -> &[SlotRange] {
        self.row.ranges()
    }

    /// The slots of the next `count` positions behind the path, which then ends at `end`.
    pub(super) fn advance(&mut self, end: NodeId, count: usize) -> SlotList {
        self.end = end;
        self.locked += count as u32;
        self.row.read(&mut self.behind, count as u32)
    }
}
