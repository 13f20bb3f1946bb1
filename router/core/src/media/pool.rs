//! Rows of the media pool: which item has which, and which may go.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use text_generation_client::types::ItemId;
use text_generation_images::ItemKey;

use super::MediaItem;

/// Keeps an item's rows, as long as it or a clone is there.
#[derive(Debug, Clone)]
pub(crate) struct MediaLock {
    pub(crate) key: ItemKey,
    /// The first of its rows.
    pub(crate) row: u32,
    _held: Arc<()>,
}

/// How far an item has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The shards have started again.
    Lost,
    /// Its pixels are on their way to the shards.
    Putting,
    /// The shards have them, and plans have encoded so many layers.
    Put { layers: u32 },
    /// Its rows may be read by every plan from now on.
    Encoded,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) id: ItemId,
    pub(super) item: Arc<MediaItem>,
    pub(super) row: u32,
    pub(super) progress: Progress,
    held: Arc<()>,
    used_at: u64,
}

impl Kept {
    pub(super) fn is_locked(&self) -> bool {
        Arc::strong_count(&self.held) > 1
    }

    pub(super) fn lock(&self) -> MediaLock {
        MediaLock {
            key: self.item.key,
            row: self.row,
            _held: Arc::clone(&self.held),
        }
    }
}

/// Rows `0..capacity`. An item has neighbouring rows; those that nobody locks stay until their rows are wanted.
#[derive(Debug)]
pub(super) struct Pool {
    capacity: u32,
    items: HashMap<ItemKey, Kept>,
    /// Free rows: lengths by their first.
    free: BTreeMap<u32, u32>,
    clock: u64,
    next: u64,
}

impl Pool {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            capacity,
            items: HashMap::new(),
            free: (capacity > 0)
                .then_some((0, capacity))
                .into_iter()
                .collect(),
            clock: 0,
            next: 0,
        }
    }

    pub(super) fn get(&mut self, key: &ItemKey) -> Option<&mut Kept> {
        self.clock += 1;
        let kept = self.items.get_mut(key)?;
        kept.used_at = self.clock;
        Some(kept)
    }

    pub(super) fn peek(&self, key: &ItemKey) -> Option<&Kept> {
        self.items.get(key)
    }

    pub(super) fn by_id(&mut self, id: ItemId) -> Option<&mut Kept> {
        self.items.values_mut().find(|kept| kept.id == id)
    }

    /// Of pixels that are on the shards, or on their way, and that are not encoded.
    pub(super) fn waiting_bytes(&self) -> u64 {
        let waiting = self
            .items
            .values()
            .filter(|kept| kept.progress != Progress::Encoded);
        waiting.map(|kept| kept.item.bytes()).sum()
    }

    /// Rows that are in use, or remembered.
    pub(super) fn used(&self) -> u32 {
        self.capacity - self.free.values().sum::<u32>()
    }

    /// Gives an item rows. Where that needs them, items that nobody locks go, the least recently used first, and are put
    /// into `gone`. `None` where locked items are in the way.
    pub(super) fn insert(
        &mut self,
        item: &Arc<MediaItem>,
        gone: &mut Vec<ItemId>,
    ) -> Option<&mut Kept> {
        let row = loop {
            match self.take(item.rows) {
                Some(row) => break row,
                None => {
                    let unlocked = self.items.values().filter(|kept| !kept.is_locked());
                    let oldest = unlocked.min_by_key(|kept| kept.used_at)?;
                    let key = oldest.item.key;
                    gone.extend(self.remove(&key));
                }
            }
        };
        self.clock += 1;
        self.next += 1;
        let kept = Kept {
            id: ItemId(self.next),
            item: Arc::clone(item),
            row,
            progress: Progress::Putting,
            held: Arc::default(),
            used_at: self.clock,
        };
        Some(self.items.entry(item.key).insert_entry(kept).into_mut())
    }

    /// Whether all items may go.
    pub(super) fn is_unlocked(&self) -> bool {
        !self.items.values().any(Kept::is_locked)
    }

    /// Nothing is remembered.
    pub(super) fn clear(&mut self, gone: &mut Vec<ItemId>) {
        let keys: Vec<ItemKey> = self.items.keys().copied().collect();
        for key in keys {
            gone.extend(self.remove(&key));
        }
    }

    /// Frees the rows of an item.
    pub(super) fn remove(&mut self, key: &ItemKey) -> Option<ItemId> {
        let kept = self.items.remove(key)?;
        self.give_back(kept.row, kept.item.rows);
        Some(kept.id)
    }

    /// First fit.
    fn take(&mut self, rows: u32) -> Option<u32> {
        let (&first, &length) = self.free.iter().find(|(_, length)| **length >= rows)?;
        self.free.remove(&first);
        if length > rows {
            self.free.insert(first + rows, length - rows);
        }
        Some(first)
    }

    fn give_back(&mut self, mut first: u32, mut rows: u32) {
        if let Some(behind) = self.free.remove(&(first + rows)) {
            rows += behind;
        }
        let before = self.free.range(..first).next_back();
        if let Some((&start, &length)) = before
            && start + length == first
        {
            self.free.remove(&start);
            first = start;
            rows += length;
        }
        self.free.insert(first, rows);
    }

    /// Nothing is on the shards any more. What is locked keeps its rows and gets another number; the others go.
    pub(super) fn reset(&mut self) {
        let unlocked = self.items.values().filter(|kept| !kept.is_locked());
        let unlocked: Vec<ItemKey> = unlocked.map(|kept| kept.item.key).collect();
        for key in unlocked {
            self.remove(&key);
        }
        for kept in self.items.values_mut() {
            self.next += 1;
            kept.id = ItemId(self.next);
            kept.progress = Progress::Lost;
        }
    }

    /// Items that have to be put again.
    pub(super) fn lost(&mut self) -> impl Iterator<Item = &mut Kept> {
        let items = self.items.values_mut();
        items.filter(|kept| kept.progress == Progress::Lost)
    }
}
