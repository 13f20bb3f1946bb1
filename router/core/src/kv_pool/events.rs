//! Events of the prefix tree, in blocks, for routers that send requests to where their prefix is cached.
//!
//! A block is [`BLOCK_TOKENS`] positions, counted from the first. It is named by a hash of its ids and of all before them,
//! as blocks are in vLLM, so the same prompt has the same blocks in every replica of a model.

use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::RootKey;
use crate::adapters::Adapters;

/// Positions of a block.
pub const BLOCK_TOKENS: u32 = 16;

/// A change of what is cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    Stored(StoredBlocks),
    /// Names of blocks that were stored before.
    Removed(Vec<u64>),
    /// Nothing that was stored before is there any more.
    Cleared,
}

/// Consecutive blocks of one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlocks {
    pub hashes: Vec<u64>,
    /// The block before the first of them; none where they begin the prompt.
    pub parent: Option<u64>,
    /// [`BLOCK_TOKENS`] for each of `hashes`. Positions of images have numbers above all ids of tokens.
    pub ids: Vec<u32>,
    /// Only requests with the same one find them. Said of blocks that begin the prompt, and of no others.
    pub salt: Option<Arc<str>>,
    /// Only its requests find them; none: those of the base. Of adapters with equal contents the first.
    pub adapter: Option<AdapterLabel>,
}

/// An adapter as events name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterLabel {
    pub id: u32,
    pub name: String,
}

/// Notes the changes of one tree, until they are taken.
#[derive(Debug)]
pub(super) struct EventLog {
    seed: u64,
    adapters: Adapters,
    pub(super) pending: Vec<KvEvent>,
}

impl EventLog {
    /// For the cache of this model and its adapters.
    pub(super) fn new(model: &str, adapters: Adapters) -> Self {
        Self {
            seed: xxh3_64_with_seed(model.as_bytes(), 0),
            adapters,
            pending: Vec::new(),
        }
    }

    /// The name of a block with these ids behind `parent`, or at the beginning of prompts of `root`.
    pub(super) fn hash(&self, parent: Option<u64>, root: &RootKey, ids: &[u64]) -> u64 {
        let mut hash = Xxh3::with_seed(self.seed);
        match parent {
            Some(parent) => hash.update(&parent.to_le_bytes()),
            None => {
                hash.update(&root.adapter.to_le_bytes());
                hash.update(root.salt.as_deref().unwrap_or_default().as_bytes());
            }
        }
        for &id in ids {
            match u32::try_from(id) {
                Ok(id) => hash.update(&id.to_le_bytes()),
                Err(_) => hash.update(&id.to_le_bytes()),
            }
        }
        hash.digest()
    }

    /// Whose prompts begin at `root`.
    pub(super) fn adapter(&self, root: &RootKey) -> Option<AdapterLabel> {
        let adapter = self.adapters.with_generation(root.adapter)?;
        Some(AdapterLabel {
            id: adapter.id,
            name: adapter.name.clone(),
        })
    }

    pub(super) fn removed(&mut self, hashes: Vec<u64>) {
        if !hashes.is_empty() {
            self.pending.push(KvEvent::Removed(hashes));
        }
    }

    /// What was noted and not taken does not matter any more.
    pub(super) fn cleared(&mut self) {
        self.pending.clear();
        self.pending.push(KvEvent::Cleared);
    }
}
