//! Items that responses have put out, for clients that name them in their next turn (`item_reference`) instead of sending
//! them again.
//!
//! What is remembered is bounded by bytes and by age. Tenants see only their own; where there is no more room, the oldest
//! item of the tenant that takes most goes first, so that nobody pushes out what others keep.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::items::Input;
use crate::bounds::{ITEM_AGE, MEMORY_PER_ITEM};
use crate::error::ApiError;
use crate::extract::memory_of;
use crate::json_text::json_shape;
use crate::memory::MemoryShare;
use crate::routes::openai::sampling::refused;
use crate::tenant;

/// Characters of an id in a message; ours are shorter.
const LONGEST_ID: usize = 80;

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

    fn of(&self, tenant: Arc<str>) -> Option<TenantItems> {
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
    fn json(&self, id: &str, now: Instant) -> Option<String> {
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

/// Puts remembered items in the place of references to them. What they add to the body counts as if it had been sent:
/// body and items together have at most `limit` bytes, and `share` holds what they take.
///
/// # Errors
/// 422 for an item that is not remembered, 413 for more than the limit, and as [`MemoryShare::resize`].
pub fn resolve(
    input: &mut Input,
    remembered: Option<&TenantItems>,
    limit: usize,
    share: &MemoryShare,
) -> Result<(), ApiError> {
    let Input::Items(items) = input else {
        return Ok(());
    };
    let mut left = limit;
    for (index, item) in items.iter_mut().enumerate() {
        if !is_reference(item) {
            continue;
        }
        let json = find(index, item, remembered)?;
        left = left
            .checked_sub(json.len())
            .ok_or_else(|| ApiError::payload_too_large(limit))?;
        let (texts, values) = memory_of(json.len(), json_shape(json.as_bytes()).marks);
        share.hold_more(texts, values)?;
        *item = serde_json::from_str(&json).map_err(|_| ApiError::internal())?;
    }
    Ok(())
}

/// OpenAI's API lets clients leave the type of a reference out.
fn is_reference(item: &Map<String, Value>) -> bool {
    match item.get("type") {
        None | Some(Value::Null) => item.contains_key("id") && !item.contains_key("role"),
        Some(kind) => kind == "item_reference",
    }
}

fn find(
    index: usize,
    reference: &Map<String, Value>,
    remembered: Option<&TenantItems>,
) -> Result<String, ApiError> {
    let id = reference.get("id").and_then(Value::as_str);
    let id = id.ok_or_else(|| refused(format_args!("`input[{index}].id` must be a string")))?;
    remembered
        .and_then(|items| items.json(id, Instant::now()))
        .ok_or_else(|| unknown(index, id, remembered.is_some()))
}

fn unknown(index: usize, id: &str, remembers: bool) -> ApiError {
    let why = match remembers {
        true => {
            "is not remembered here: it is too old, was made with `store: false`, or by another server"
        }
        false => "is unknown: this server remembers no items",
    };
    // As much of it as a message needs.
    let id: String = id.chars().take(LONGEST_ID).collect();
    refused(format_args!(
        "`input[{index}]` refers to the item `{id}`, which {why}. Send the item itself: clients that send references send \
         whole items instead when they are told `store: false`"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::memory::MemoryBudget;

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

    #[test]
    fn many_references_count_as_what_they_stand_for() {
        let memory = ItemMemory::new(1_000_000);
        let items = memory.of("t".into());
        items.as_ref().unwrap().keep(&item("a", 1_000));
        let resolved = |references: usize| {
            let reference = json!({"id": "a"}).as_object().cloned().unwrap();
            let mut input = Input::Items(vec![reference; references]);
            let share = MemoryBudget::new(1 << 20).share();
            resolve(&mut input, items.as_ref(), 5_000, &share).map(|()| input)
        };
        let Ok(Input::Items(sent)) = resolved(2) else {
            panic!("two fit");
        };
        assert_eq!(Value::from(sent[1].clone()), item("a", 1_000));
        assert_eq!(resolved(9).unwrap_err().status, 413);
    }
}
