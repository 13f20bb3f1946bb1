//! A radix tree over [`Keys`] of positions: which slots hold K and V of which prefix. One tree a [`RootKey`].
//!
//! Locks are counted along the path: a node has at least as many as each of its children, so below an unlocked node
//! nothing is locked, and everything unlocked can be evicted leaf by leaf.

#[cfg(test)]
mod audit;
mod blocks;
mod removal;

use std::collections::{BTreeSet, HashMap};

use slotmap::{SlotMap, new_key_type};
use text_generation_client::types::SlotRange;

use super::RootKey;
use super::events::EventLog;
use super::keys::Keys;
use super::slots::SlotList;

new_key_type! {
    pub(super) struct NodeId;
}

#[derive(Clone)]
enum Parent {
    Node(NodeId),
    /// None: this is the root of the key, and has no ids.
    Root(RootKey),
}

struct Node {
    parent: Parent,
    /// By their first key.
    children: HashMap<u64, NodeId>,
    ids: Vec<u64>,
    /// One for each id.
    slots: SlotList,
    /// Positions before its first.
    depth: u32,
    /// Names of the blocks that end in it, in order; none where nobody wants to know.
    blocks: Vec<u64>,
    /// How many holdings end here or below.
    locks: u32,
    /// When a holding last let go of it.
    used_at: u64,
    /// No longer reachable from its root: it goes when the last holding lets go.
    detached: bool,
}

impl Node {
    fn parent(&self) -> Option<NodeId> {
        match self.parent {
            Parent::Node(id) => Some(id),
            Parent::Root(_) => None,
        }
    }
}

#[derive(Default)]
pub(super) struct Tree {
    nodes: SlotMap<NodeId, Node>,
    roots: HashMap<RootKey, NodeId>,
    /// Unlocked nodes without children, the least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Slots of unlocked nodes.
    unlocked: u32,
    /// Counts calls of [`Tree::unlock`].
    clock: u64,
    /// Set where changes are wanted.
    events: Option<EventLog>,
}

impl Tree {
    pub(super) fn unlocked(&self) -> u32 {
        self.unlocked
    }

    pub(super) fn contains(&self, id: NodeId) -> bool {
        self.nodes.contains_key(id)
    }

    pub(super) fn root(&self, key: &RootKey) -> Option<NodeId> {
        self.roots.get(key).copied()
    }

    /// The root of `key`, made where it is missing, with one more lock.
    pub(super) fn lock_root(&mut self, key: &RootKey) -> NodeId {
        let id = self.root(key).unwrap_or_else(|| {
            let id = self.nodes.insert(Node {
                parent: Parent::Root(key.clone()),
                children: HashMap::new(),
                ids: Vec::new(),
                slots: SlotList::default(),
                depth: 0,
                blocks: Vec::new(),
                locks: 0,
                used_at: 0,
                detached: false,
            });
            self.roots.insert(key.clone(), id);
            id
        });
        self.lock(id);
        id
    }

    /// The child of `id` that begins as `ids` do, and how many of its ids are the same.
    pub(super) fn next(&self, id: NodeId, ids: Keys<'_>) -> Option<(NodeId, usize)> {
        let child = *self.nodes[id].children.get(&ids.head()?)?;
        Some((child, ids.common(&self.nodes[child].ids)))
    }

    pub(super) fn is_locked(&self, id: NodeId) -> bool {
        self.nodes[id].locks > 0
    }

    pub(super) fn slots(&self, id: NodeId) -> &SlotList {
        &self.nodes[id].slots
    }

    /// Locks the first `count` ids of a child of a locked node, and returns the node that now ends with them.
    pub(super) fn enter(&mut self, id: NodeId, count: usize) -> NodeId {
        let id = if count < self.nodes[id].ids.len() {
            self.split(id, count)
        } else {
            id
        };
        self.lock(id);
        id
    }

    /// Puts ids behind those of a node that the caller has locked, where no child begins with them. Returns the node that
    /// now ends with them, locked: the same one where nobody else holds it and nothing is below it, so that the parts of
    /// one prompt do not become a chain.
    pub(super) fn append(&mut self, id: NodeId, ids: Keys<'_>, slots: SlotList) -> NodeId {
        let node = &mut self.nodes[id];
        if node.locks == 1 && node.children.is_empty() && node.parent().is_some() {
            node.ids.extend(ids.iter());
            node.slots.extend(slots.ranges());
            self.complete_blocks(id);
            return id;
        }
        let child = Node {
            parent: Parent::Node(id),
            children: HashMap::new(),
            ids: ids.iter().collect(),
            slots,
            depth: node.depth + node.slots.len(),
            blocks: Vec::new(),
            locks: 1,
            used_at: 0,
            detached: node.detached,
        };
        let child = self.nodes.insert(child);
        if let Some(first) = ids.head() {
            self.nodes[id].children.insert(first, child);
        }
        self.complete_blocks(child);
        child
    }

    fn lock(&mut self, id: NodeId) {
        let node = &mut self.nodes[id];
        node.locks += 1;
        if node.locks == 1 {
            self.unlocked -= node.slots.len();
            self.leaves.remove(&(node.used_at, id));
        }
    }

    /// Takes one lock from a node and from all above it. Returns slots that nobody can use any more.
    pub(super) fn unlock(&mut self, id: NodeId) -> Vec<SlotRange> {
        self.clock += 1;
        let mut freed = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next {
            let node = &mut self.nodes[id];
            next = node.parent();
            node.locks -= 1;
            node.used_at = self.clock;
            if node.locks > 0 {
                continue;
            }
            if node.detached {
                freed.extend(self.remove(id));
            } else {
                self.unlocked += node.slots.len();
                self.settle(id);
            }
        }
        freed
    }

    /// An unlocked node without children waits for its eviction; a root of that kind has no use.
    fn settle(&mut self, id: NodeId) {
        let node = &self.nodes[id];
        if node.locks > 0 || !node.children.is_empty() {
            return;
        }
        if node.parent().is_some() {
            self.leaves.insert((node.used_at, id));
        } else {
            self.remove(id);
        }
    }

    /// Moves the first `count` ids of a node into a new one above it, and returns that. Who held the node holds both.
    fn split(&mut self, id: NodeId, count: usize) -> NodeId {
        let depth = self.nodes[id].depth;
        let blocks = self.split_blocks(id, count as u32);
        let node = &mut self.nodes[id];
        let tail = node.ids.split_off(count);
        let slots = node.slots.split_off(count as u32);
        let upper = Node {
            parent: node.parent.clone(),
            children: tail.first().map(|&first| (first, id)).into_iter().collect(),
            ids: std::mem::replace(&mut node.ids, tail),
            slots: std::mem::replace(&mut node.slots, slots),
            depth,
            blocks,
            locks: node.locks,
            used_at: node.used_at,
            detached: node.detached,
        };
        let (first, parent) = (upper.ids.first().copied(), node.parent());
        let upper = self.nodes.insert(upper);
        self.nodes[id].parent = Parent::Node(upper);
        if let Some(place) = self.place(parent, first)
            && *place == id
        {
            *place = upper;
        }
        upper
    }

    /// Where a parent names the child that begins with `first`. Of a detached node the parent may be gone, or name another
    /// child by now.
    fn place(&mut self, parent: Option<NodeId>, first: Option<u64>) -> Option<&mut NodeId> {
        self.nodes.get_mut(parent?)?.children.get_mut(&first?)
    }
}
