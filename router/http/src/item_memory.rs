//! Items that responses have put out, for clients that name them in their next turn (`item_reference`) instead of sending
//! them again.
//!
//! What is remembered is bounded by bytes and by age. Tenants see only their own; where there is no more room, the oldest
//! item of the tenant that takes most goes first, so that nobody pushes out what others keep.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bounds::{ITEM_AGE, MEMORY_PER_ITEM};
use crate::tenant;

/// The items of all responses. Clones share them.
#[derive(Debug, Clone)]
pub struct ItemMemory {
    /// Bytes at most; 0 remembers nothing.
    most: usize,
    items: Arc<Mutex<Items>>,
}

/// The items of one tenant.
#[derive(Debug, Clone)]
pub struct TenantItems {
    memory: ItemMemory,
    tenant: Arc<str>,
}

#[derive(Debug, Default)]
struct Items {
    /// In the order in which they came.
    all: BTreeMap<u64, Item>,
    tenants: HashMap<Arc<str>, Owned>,
    bytes: usize,
    next: u64,
}

#[derive(Debug)]
struct Item {
    tenant: Arc<str>,
    id: String,
    /// JSON of an object.
    json: String,
    since: Instant,
}

/// What one tenant has.
#[derive(Debug, Default)]
struct Owned {
    by_id: HashMap<String, u64>,
    in_order: BTreeSet<u64>,
    bytes: usize,
}

impl ItemMemory {
    /// Remembers as much as fits `most` bytes; nothing with 0.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            items: Arc::default(),
        }
    }

    /// The items of whoever has sent the request that is being handled; None where nothing is remembered.
    pub fn of_caller(&self) -> Option<TenantItems> {
        let tenant = tenant::current().tenant;
        let tenant = tenant.name().cloned().unwrap_or_else(|| "".into());
        self.of(tenant)
    }

    /// The items of a tenant; None where nothing is remembered.
    pub fn of(&self, tenant: Arc<str>) -> Option<TenantItems> {
        let memory = self.clone();
        (self.most > 0).then_some(TenantItems { memory, tenant })
    }

    /// The items that are not too old `now`.
    fn lock(&self, now: Instant) -> MutexGuard<'_, Items> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        items.forget_older_than(ITEM_AGE, now);
        items
    }
}

impl TenantItems {
    /// Remembers an item by its `id`.
    pub fn keep(&self, item: &Value) {
        self.keep_at(item, Instant::now());
    }

    fn keep_at(&self, item: &Value, now: Instant) {
        let Some(id) = item["id"].as_str() else {
            return;
        };
        let item = Item {
            tenant: self.tenant.clone(),
            id: id.to_owned(),
            json: item.to_string(),
            since: now,
        };
        let most = self.memory.most;
        // One that would leave no room for any other is not worth it.
        if item.bytes() <= most {
            self.memory.lock(now).add(item, most);
        }
    }

    /// The JSON of an item.
    pub fn json(&self, id: &str, now: Instant) -> Option<String> {
        let items = self.memory.lock(now);
        let number = items.tenants.get(&self.tenant)?.by_id.get(id)?;
        items.all.get(number).map(|item| item.json.clone())
    }
}

impl Item {
    fn bytes(&self) -> usize {
        self.json.len() + 2 * self.id.len() + MEMORY_PER_ITEM
    }
}

impl Items {
    fn add(&mut self, item: Item, most: usize) {
        let bytes = item.bytes();
        while self.bytes + bytes > most {
            let largest = self.tenants.values().max_by_key(|owned| owned.bytes);
            let oldest = largest.and_then(|owned| owned.in_order.first().copied());
            let Some(oldest) = oldest else {
                return;
            };
            self.forget(oldest);
        }
        let number = self.next;
        self.next += 1;
        self.bytes += bytes;
        let owned = self.tenants.entry(item.tenant.clone()).or_default();
        owned.bytes += bytes;
        owned.in_order.insert(number);
        owned.by_id.insert(item.id.clone(), number);
        self.all.insert(number, item);
    }

    fn forget(&mut self, number: u64) {
        let Some(item) = self.all.remove(&number) else {
            return;
        };
        self.bytes -= item.bytes();
        if let Some(owned) = self.tenants.get_mut(&item.tenant) {
            owned.bytes -= item.bytes();
            owned.in_order.remove(&number);
            owned.by_id.remove(&item.id);
            if owned.in_order.is_empty() {
                self.tenants.remove(&item.tenant);
            }
        }
    }

    fn forget_older_than(&mut self, age: Duration, now: Instant) {
        while let Some((&number, item)) = self.all.first_key_value()
            && now.saturating_duration_since(item.since) > age
        {
            self.forget(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(id: &str, bytes: usize) -> Value {
        json!({"id": id, "type": "message", "role": "assistant", "content": "x".repeat(bytes)})
    }

    fn known(items: &TenantItems, ids: &[&str], now: Instant) -> Vec<bool> {
        ids.iter().map(|id| items.json(id, now).is_some()).collect()
    }

    #[test]
    fn tenants_see_their_own_items_and_the_largest_makes_room() {
        let (memory, now) = (ItemMemory::new(10_000), Instant::now());
        let of = |name: &str| memory.of(name.into()).unwrap();
        let (small, large) = (of("small"), of("large"));
        small.keep(&item("s", 10));
        for number in 0..100 {
            large.keep(&item(&format!("l{number}"), 1_000));
        }
        assert_eq!(known(&small, &["s", "l99"], now), [true, false]);
        assert_eq!(
            known(&large, &["s", "l0", "l98", "l99"], now),
            [false, false, true, true]
        );
        assert!(memory.lock(now).bytes <= 10_000);
        large.keep(&item("huge", 20_000));
        assert_eq!(known(&large, &["huge", "l99"], now), [false, true]);
    }

    #[test]
    fn items_are_forgotten_in_time() {
        let (memory, start) = (ItemMemory::new(10_000), Instant::now());
        let items = memory.of("t".into()).unwrap();
        items.keep_at(&item("old", 10), start);
        let day = start + ITEM_AGE;
        items.keep_at(&item("new", 10), day);
        assert_eq!(known(&items, &["old", "new"], day), [true, true]);
        let later = day + Duration::from_secs(1);
        assert_eq!(known(&items, &["old", "new"], later), [false, true]);
        let all = memory.lock(later + ITEM_AGE);
        assert_eq!((all.bytes, all.tenants.len()), (0, 0));
    }
}
