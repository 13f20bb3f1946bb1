//! Removal of nodes from the tree: evicted while nobody holds them, or detached because what they hold must not be used
//! again.

use text_generation_client::types::SlotRange;

use super::{NodeId, Parent, Tree};

impl Tree {
    /// Takes at most `count` slots from the end of the least recently used leaf; none when nothing is unlocked.
    pub(in super::super) fn evict(&mut self, count: u32) -> Vec<SlotRange> {
        let Some(&(used_at, id)) = self.leaves.first() else {
            return Vec::new();
        };
        let node = &mut self.nodes[id];
        if count < node.slots.len() {
            let kept = node.slots.len() - count;
            node.ids.truncate(kept as usize);
            self.unlocked -= count;
            let freed = node.slots.split_off(kept).ranges().to_vec();
            self.drop_blocks(id, kept);
            return freed;
        }
        let parent = node.parent();
        self.unlocked -= node.slots.len();
        self.leaves.remove(&(used_at, id));
        let freed = self.remove(id);
        if let Some(parent) = parent {
            self.settle(parent);
        }
        freed
    }

    /// Makes the last `count` positions of the path that ends at a locked node unreachable, and all that is below them:
    /// it was computed from them. Returns the slots of what nobody holds.
    pub(in super::super) fn detach(&mut self, end: NodeId, count: u32) -> Vec<SlotRange> {
        let (mut top, mut count) = (end, count);
        while let Some(parent) = self.nodes[top].parent()
            && count > self.nodes[top].slots.len()
        {
            count -= self.nodes[top].slots.len();
            top = parent;
        }
        let kept = self.nodes[top].slots.len().saturating_sub(count);
        if kept > 0 {
            self.split(top, kept as usize);
        }
        self.cut(vec![top])
    }

    /// Makes every position unreachable. Returns the slots of what nobody holds.
    pub(in super::super) fn detach_all(&mut self) -> Vec<SlotRange> {
        let roots: Vec<NodeId> = self.roots.values().copied().collect();
        let below = |&root: &NodeId| self.nodes[root].children.values().copied();
        let tops = roots.iter().flat_map(below).collect();
        let freed = self.cut(tops);
        for root in roots {
            self.settle(root);
        }
        freed
    }

    /// Takes nodes out of the tree with all that is below them. Returns the slots of what nobody holds.
    fn cut(&mut self, tops: Vec<NodeId>) -> Vec<SlotRange> {
        for &top in &tops {
            self.unlink(top);
        }
        let mut freed = Vec::new();
        let mut below = tops;
        while let Some(id) = below.pop() {
            self.drop_blocks(id, 0);
            let node = &mut self.nodes[id];
            below.extend(node.children.values());
            if node.locks > 0 {
                node.detached = true;
            } else {
                self.unlocked -= node.slots.len();
                self.leaves.remove(&(node.used_at, id));
                freed.extend(self.remove(id));
            }
        }
        freed
    }

    /// Forgets every node. None of their ids is given to another node.
    pub(in super::super) fn clear(&mut self) {
        self.nodes.clear();
        self.roots.clear();
        self.leaves.clear();
        self.unlocked = 0;
        if let Some(log) = &mut self.events {
            log.cleared();
        }
    }

    /// Removes a node, and returns its slots.
    pub(super) fn remove(&mut self, id: NodeId) -> Vec<SlotRange> {
        self.unlink(id);
        self.drop_blocks(id, 0);
        let Some(node) = self.nodes.remove(id) else {
            return Vec::new();
        };
        if let Parent::Root(key) = node.parent {
            self.roots.remove(&key);
        }
        node.slots.ranges().to_vec()
    }

    /// Takes a node from the children of its parent.
    fn unlink(&mut self, id: NodeId) {
        let node = &self.nodes[id];
        let (first, parent) = (node.ids.first().copied(), node.parent());
        if let Some(place) = self.place(parent, first)
            && *place == id
            && let (Some(parent), Some(first)) = (parent, first)
        {
            self.nodes[parent].children.remove(&first);
        }
    }
}
