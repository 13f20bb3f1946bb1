//! An adapter in the host memory of the shards, as long as anybody may ask for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use text_generation_client::types::{LoadAdapter, LoadedAdapter};
use tokio::sync::mpsc::UnboundedSender;

/// Where an adapter is, beside the host memory of the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Nowhere else.
    Host,
    /// On its way to pages of the device.
    Copying,
    /// On the device.
    Device,
}

/// The place of an adapter, which the batcher writes and pages of the server read.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedPlace(Arc<AtomicU8>);

impl SharedPlace {
    pub(crate) fn set(&self, place: Place) {
        self.0.store(place as u8, Ordering::Relaxed);
    }

    fn get(&self) -> Place {
        match self.0.load(Ordering::Relaxed) {
            0 => Place::Host,
            1 => Place::Copying,
            _ => Place::Device,
        }
    }
}

/// The contents of an adapter. When the last holder is gone the shards drop them.
#[derive(Debug)]
pub(crate) struct Weights {
    /// Never 0; equal for equal contents.
    pub(crate) generation: u64,
    /// The highest of its matrices.
    pub(crate) rank: u32,
    /// That it takes on the device.
    pub(crate) pages: u32,
    /// Of host memory.
    pub(crate) bytes: u64,
    /// An adapter of the start, which the memory of the others does not count.
    pub(crate) of_start: bool,
    pub(crate) place: SharedPlace,
    /// Where it was read: shards that start again read it there.
    load: LoadAdapter,
    lost: AtomicBool,
    unused: UnboundedSender<u64>,
}

impl Weights {
    pub(crate) fn new(
        loaded: LoadedAdapter,
        load: LoadAdapter,
        of_start: bool,
        unused: UnboundedSender<u64>,
    ) -> Self {
        Self {
            generation: loaded.generation,
            rank: loaded.rank,
            pages: loaded.pages.max(1),
            bytes: loaded.bytes,
            of_start,
            place: SharedPlace::default(),
            load: LoadAdapter {
                generation: loaded.generation,
                ..load
            },
            lost: AtomicBool::new(false),
            unused,
        }
    }

    /// What shards that have started again are asked for.
    pub(crate) fn load_again(&self) -> LoadAdapter {
        self.load.clone()
    }

    /// Shards that have started again cannot read it any more as it was.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Weights {
    fn drop(&mut self) {
        // Where nobody listens the server ends.
        let _ = self.unused.send(self.generation);
    }
}

/// An adapter under its name. Requests keep theirs, whatever the name stands for meanwhile.
#[derive(Debug)]
pub struct Adapter {
    pub name: String,
    /// Counts the adapters of this server, from 1 on.
    pub id: u32,
    /// The folder or hub id that it was loaded from.
    pub source: String,
    pub(crate) weights: Arc<Weights>,
}

/// The same adapter, not only equal contents.
impl PartialEq for Adapter {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Adapter {}

impl Adapter {
    /// Never 0; equal for equal contents.
    pub fn generation(&self) -> u64 {
        self.weights.generation
    }

    /// The highest of its matrices.
    pub fn rank(&self) -> u32 {
        self.weights.rank
    }

    pub fn place(&self) -> Place {
        self.weights.place.get()
    }
}
