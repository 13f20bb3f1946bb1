//! The adapters that requests may name.

use std::sync::Arc;

use text_generation_client::types::AdapterInfo;

/// Those that the shards had when the server started. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Adapters(Arc<[Arc<AdapterInfo>]>);

impl Adapters {
    /// As the shards say.
    pub fn new(infos: Vec<AdapterInfo>) -> Self {
        Self(infos.into_iter().map(Arc::new).collect())
    }

    /// By its whole name.
    pub fn find(&self, name: &str) -> Option<&Arc<AdapterInfo>> {
        self.iter().find(|adapter| adapter.name == name)
    }

    /// The first one with these contents.
    pub(crate) fn with_generation(&self, generation: u64) -> Option<&Arc<AdapterInfo>> {
        self.iter().find(|adapter| adapter.generation == generation)
    }

    /// In the order in which the operator named them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<AdapterInfo>> {
        self.0.iter()
    }

    /// Whether there is the base alone.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a message may say of them.
    pub fn names(&self) -> String {
        let names: Vec<String> = self.iter().map(|each| format!("`{}`", each.name)).collect();
        names.join(", ")
    }

    /// Those that `others`, of shards that have started again, do not have as they were.
    pub(crate) fn missing_in(&self, others: &[AdapterInfo]) -> Vec<&Arc<AdapterInfo>> {
        let stays = |adapter: &AdapterInfo| {
            others.iter().any(|other| {
                (other.number, other.generation) == (adapter.number, adapter.generation)
            })
        };
        self.iter().filter(|adapter| !stays(adapter)).collect()
    }
}
