//! Invariants of the tree, checked by tests.

use std::collections::HashMap;

use text_generation_client::types::SlotRange;

use super::{NodeId, Tree};

impl Tree {
    /// Checks the tree against the nodes where the paths of all holdings end. Returns all slots in it.
    pub(in super::super) fn audit(&self, ends: &[NodeId]) -> Vec<SlotRange> {
        let mut locks: HashMap<NodeId, u32> = HashMap::new();
        for &end in ends {
            let path = std::iter::successors(Some(end), |&id| self.nodes[id].parent());
            path.for_each(|id| *locks.entry(id).or_default() += 1);
        }
        let (mut unlocked, mut leaves) = (0, 0);
        for (id, node) in &self.nodes {
            assert_eq!(node.locks, locks.get(&id).copied().unwrap_or(0));
            assert_eq!(node.ids.len(), node.slots.len() as usize);
            for (first, &child) in &node.children {
                let child = &self.nodes[child];
                assert!(child.parent() == Some(id) && child.ids.first() == Some(first));
                assert_eq!(child.detached, node.detached);
                assert!(node.locks > 0 || (child.locks == 0 && child.used_at <= node.used_at));
            }
            let Some(parent) = node.parent() else {
                assert!(self.roots.values().any(|&root| root == id));
                assert!(node.ids.is_empty() && (node.locks > 0 || !node.children.is_empty()));
                continue;
            };
            assert!(!node.ids.is_empty());
            if node.detached {
                assert!(node.locks > 0, "nobody will free it");
            } else {
                assert_eq!(self.nodes[parent].children.get(&node.ids[0]), Some(&id));
            }
            if node.locks == 0 {
                unlocked += node.slots.len();
                let leaf = node.children.is_empty();
                assert_eq!(self.leaves.contains(&(node.used_at, id)), leaf);
                leaves += usize::from(leaf);
            }
        }
        assert_eq!((self.unlocked, self.leaves.len()), (unlocked, leaves));
        assert!(self.roots.values().all(|&root| self.contains(root)));
        let slots = self.nodes.values().flat_map(|node| node.slots.ranges());
        slots.copied().collect()
    }

    pub(in super::super) fn count(&self) -> usize {
        self.nodes.len()
    }
}
