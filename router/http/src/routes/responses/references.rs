//! References to remembered items in the input of a request.

use std::time::Instant;

use serde_json::{Map, Value};

use super::items::Input;
use crate::error::ApiError;
use crate::extract::memory_of;
use crate::item_memory::TenantItems;
use crate::json_text::json_shape;
use crate::memory::MemoryShare;
use crate::routes::openai::sampling::refused;

/// Characters of an id in a message; ours are shorter.
const LONGEST_ID: usize = 80;

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
    use crate::item_memory::ItemMemory;
    use crate::memory::MemoryBudget;

    #[test]
    fn many_references_count_as_what_they_stand_for() {
        let memory = ItemMemory::new(1_000_000);
        let items = memory.of("t".into());
        let item = json!({"id": "a", "type": "message", "role": "assistant", "content": "x".repeat(1_000)});
        items.as_ref().unwrap().keep(&item);
        let resolved = |references: usize| {
            let reference = json!({"id": "a"}).as_object().cloned().unwrap();
            let mut input = Input::Items(vec![reference; references]);
            let share = MemoryBudget::new(1 << 20).share();
            resolve(&mut input, items.as_ref(), 5_000, &share).map(|()| input)
        };
        let Ok(Input::Items(sent)) = resolved(2) else {
            panic!("two fit");
        };
        assert_eq!(Value::from(sent[1].clone()), item);
        assert_eq!(resolved(9).unwrap_err().status, 413);
    }
}
