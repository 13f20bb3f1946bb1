//! The blocks of the tree: which end in which node, and what is noted when they come and go.

use super::{NodeId, Parent, Tree};
use crate::adapters::Adapters;
use crate::kv_pool::RootKey;
use crate::kv_pool::events::{BLOCK_TOKENS, EventLog, KvEvent, StoredBlocks};

/// Blocks that end within `length` positions.
fn blocks_in(length: u32) -> usize {
    (length / BLOCK_TOKENS) as usize
}

/// As events name a position: by the id of its token, or by a part of an image's key that is no id.
fn as_id(key: u64) -> u32 {
    if key >> 63 == 0 {
        key as u32
    } else {
        key as u32 | 1 << 31
    }
}

impl Tree {
    /// Changes are noted from now on, for the cache of this model and its adapters. The tree must be empty.
    pub(in super::super) fn note_events(&mut self, model: &str, adapters: Adapters) {
        self.events = Some(EventLog::new(model, adapters));
    }

    /// The changes since the last call.
    pub(in super::super) fn take_events(&mut self) -> Vec<KvEvent> {
        let events = self.events.as_mut();
        events.map_or_else(Vec::new, |log| std::mem::take(&mut log.pending))
    }

    /// The whole tree, as changes of an empty one, in the place of those that were not taken.
    pub(in super::super) fn announce(&mut self) -> Vec<KvEvent> {
        let Some(log) = &mut self.events else {
            return Vec::new();
        };
        log.cleared();
        let mut stored = Vec::new();
        let mut next: Vec<NodeId> = self.roots.values().copied().collect();
        while let Some(id) = next.pop() {
            next.extend(self.nodes[id].children.values());
            stored.extend(self.stored(id, 0));
        }
        let mut events = self.take_events();
        events.extend(stored.into_iter().map(KvEvent::Stored));
        events
    }

    /// Ids were put at the end of a node: the blocks that they complete get their names.
    pub(super) fn complete_blocks(&mut self, id: NodeId) {
        let node = &self.nodes[id];
        let known = node.blocks.len();
        let first = blocks_in(node.depth) + known;
        let complete = blocks_in(node.depth + node.slots.len());
        if self.events.is_none() || node.detached || first >= complete {
            return;
        }
        let ids = self.ids_from(id, first as u32 * BLOCK_TOKENS);
        let mut parent = self.block_before(id, known);
        let root = self.root_of(id);
        let Some(log) = &mut self.events else {
            return;
        };
        let ids = ids.chunks_exact(BLOCK_TOKENS as usize);
        for block in ids {
            let hash = log.hash(parent, &root, block);
            self.nodes[id].blocks.push(hash);
            parent = Some(hash);
        }
        if let Some(stored) = self.stored(id, known)
            && let Some(log) = &mut self.events
        {
            log.pending.push(KvEvent::Stored(stored));
        }
    }

    /// The blocks behind the first `length` positions of a node are gone.
    pub(super) fn drop_blocks(&mut self, id: NodeId, length: u32) {
        let Some(log) = &mut self.events else {
            return;
        };
        let node = &mut self.nodes[id];
        let kept = blocks_in(node.depth + length) - blocks_in(node.depth);
        if kept < node.blocks.len() {
            log.removed(node.blocks.split_off(kept));
        }
    }

    /// A node loses its first `count` positions to a new one above it; returns the blocks that end there.
    pub(super) fn split_blocks(&mut self, id: NodeId, count: u32) -> Vec<u64> {
        let node = &mut self.nodes[id];
        let before = blocks_in(node.depth + count) - blocks_in(node.depth);
        node.depth += count;
        let tail = node.blocks.split_off(before.min(node.blocks.len()));
        std::mem::replace(&mut node.blocks, tail)
    }

    /// The blocks of a node behind the first `skipped` that end there; none where there are no more.
    fn stored(&self, id: NodeId, skipped: usize) -> Option<StoredBlocks> {
        let node = &self.nodes[id];
        let hashes = node.blocks.get(skipped..)?.to_vec();
        if hashes.is_empty() {
            return None;
        }
        let first = blocks_in(node.depth) + skipped;
        let mut ids = self.ids_from(id, first as u32 * BLOCK_TOKENS);
        ids.truncate(hashes.len() * BLOCK_TOKENS as usize);
        let parent = self.block_before(id, skipped);
        let root = self.root_of(id);
        let adapter = self.events.as_ref().and_then(|log| log.adapter(&root));
        Some(StoredBlocks {
            hashes,
            parent,
            ids: ids.into_iter().map(as_id).collect(),
            salt: root.salt.filter(|_| parent.is_none()),
            adapter,
        })
    }

    /// The last block before the one with this number in a node.
    fn block_before(&self, id: NodeId, number: usize) -> Option<u64> {
        let own = self.nodes[id].blocks[..number].last();
        let above = || {
            let mut above = self.path(id).skip(1);
            above.find_map(|id| self.nodes[id].blocks.last())
        };
        own.or_else(above).copied()
    }

    /// The ids of positions from `start` to the end of a node; `start` may lie above it.
    fn ids_from(&self, id: NodeId, start: u32) -> Vec<u64> {
        let mut parts: Vec<&[u64]> = Vec::new();
        for id in self.path(id) {
            let node = &self.nodes[id];
            let skipped = start.saturating_sub(node.depth) as usize;
            parts.push(node.ids.get(skipped..).unwrap_or_default());
            if node.depth <= start {
                break;
            }
        }
        parts.reverse();
        parts.concat()
    }

    fn root_of(&self, id: NodeId) -> RootKey {
        let roots = self.path(id).filter_map(|id| match &self.nodes[id].parent {
            Parent::Root(key) => Some(key),
            Parent::Node(_) => None,
        });
        roots.last().cloned().unwrap_or_default()
    }

    /// A node and those above it, upwards.
    fn path(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(id), |&id| self.nodes[id].parent())
    }
}
