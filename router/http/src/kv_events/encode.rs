//! Batches of events as MessagePack, in the form that vLLM writes since 2026-06: each event is a map that names its fields.

use rmp::encode::{
    ByteBuf, write_array_len, write_f64, write_map_len, write_nil, write_str, write_u64, write_uint,
};
use text_generation_core::kv_pool::events::{BLOCK_TOKENS, KvEvent, StoredBlocks};

/// The K and V are where the model computes.
const MEDIUM: &str = "GPU";

/// `[time, [events], data parallel rank]`, of events at `time`, in seconds since 1970.
pub(super) fn batch(time: f64, events: &[KvEvent]) -> Vec<u8> {
    let mut out = Encoder(ByteBuf::new());
    out.list(3);
    out.float(time);
    out.list(events.len());
    for event in events {
        match event {
            KvEvent::Stored(stored) => out.stored(stored),
            KvEvent::Removed(hashes) => out.removed(hashes),
            KvEvent::Cleared => out.event("AllBlocksCleared", 0),
        }
    }
    out.number(0);
    out.0.into_vec()
}

/// Writing to memory cannot fail, which the library says by its type of errors.
struct Encoder(ByteBuf);

impl Encoder {
    fn stored(&mut self, stored: &StoredBlocks) {
        self.event("BlockStored", 10);
        self.hashes(&stored.hashes);
        self.text("parent_block_hash");
        match stored.parent {
            Some(parent) => self.hash(parent),
            None => self.nil(),
        }
        self.text("token_ids");
        self.list(stored.ids.len());
        for &id in &stored.ids {
            self.number(id.into());
        }
        self.text("block_size");
        self.number(BLOCK_TOKENS.into());
        self.adapter(stored);
        self.medium();
        self.text("extra_keys");
        self.extra_keys(stored);
        self.text("group_idx");
        self.number(0);
        self.text("kv_cache_spec_kind");
        self.text("full_attention");
    }

    fn adapter(&mut self, stored: &StoredBlocks) {
        self.text("lora_id");
        match &stored.adapter {
            Some(adapter) => self.number(adapter.id.into()),
            None => self.nil(),
        }
        self.text("lora_name");
        match &stored.adapter {
            Some(adapter) => self.text(&adapter.name),
            None => self.nil(),
        }
    }

    /// One entry for each block: the adapter's name, and the salt for the one that begins the prompt.
    fn extra_keys(&mut self, stored: &StoredBlocks) {
        let name = stored.adapter.as_ref().map(|adapter| adapter.name.as_str());
        let mut salt = stored.salt.as_deref();
        if name.is_none() && salt.is_none() {
            return self.nil();
        }
        self.list(stored.hashes.len());
        for _ in &stored.hashes {
            let keys: Vec<&str> = name.into_iter().chain(salt.take()).collect();
            if keys.is_empty() {
                self.nil();
                continue;
            }
            self.list(keys.len());
            for key in keys {
                self.text(key);
            }
        }
    }

    fn removed(&mut self, hashes: &[u64]) {
        self.event("BlockRemoved", 3);
        self.hashes(hashes);
        self.medium();
        self.text("group_idx");
        self.number(0);
    }

    /// The beginning of an event with so many fields beside its type.
    fn event(&mut self, kind: &str, fields: u32) {
        let _ = write_map_len(&mut self.0, 1 + fields);
        self.text("type");
        self.text(kind);
    }

    fn hashes(&mut self, hashes: &[u64]) {
        self.text("block_hashes");
        self.list(hashes.len());
        for &hash in hashes {
            self.hash(hash);
        }
    }

    fn medium(&mut self) {
        self.text("medium");
        self.text(MEDIUM);
    }

    fn list(&mut self, length: usize) {
        let _ = write_array_len(&mut self.0, u32::try_from(length).unwrap_or(u32::MAX));
    }

    fn text(&mut self, text: &str) {
        let _ = write_str(&mut self.0, text);
    }

    /// Always in eight bytes.
    fn hash(&mut self, hash: u64) {
        let _ = write_u64(&mut self.0, hash);
    }

    /// In as few bytes as it needs.
    fn number(&mut self, number: u64) {
        let _ = write_uint(&mut self.0, number);
    }

    fn float(&mut self, number: f64) {
        let _ = write_f64(&mut self.0, number);
    }

    fn nil(&mut self) {
        let _ = write_nil(&mut self.0);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use text_generation_core::kv_pool::events::AdapterLabel;

    use super::*;

    #[test]
    fn events_are_maps_that_name_their_fields() {
        let stored = StoredBlocks {
            hashes: vec![u64::MAX, 7],
            parent: Some(3),
            ids: (100..132).collect(),
            salt: None,
            adapter: None,
        };
        let events = [
            KvEvent::Cleared,
            KvEvent::Stored(stored.clone()),
            KvEvent::Removed(vec![7, u64::MAX]),
        ];
        let read: Value = rmp_serde::from_slice(&batch(1.5, &events)).expect("MessagePack");
        assert_eq!(
            read,
            json!([1.5, [
                {"type": "AllBlocksCleared"},
                {
                    "type": "BlockStored", "block_hashes": [u64::MAX, 7], "parent_block_hash": 3, "token_ids": stored.ids,
                    "block_size": 16, "lora_id": null, "lora_name": null, "medium": "GPU", "extra_keys": null,
                    "group_idx": 0, "kv_cache_spec_kind": "full_attention",
                },
                {"type": "BlockRemoved", "block_hashes": [7, u64::MAX], "medium": "GPU", "group_idx": 0},
            ], 0])
        );
    }

    #[test]
    fn blocks_of_an_adapter_have_its_name() {
        let adapter = AdapterLabel {
            id: 2,
            name: "pirate".to_owned(),
        };
        let stored = StoredBlocks {
            hashes: vec![1, 2],
            parent: None,
            ids: (100..132).collect(),
            salt: Some("s".into()),
            adapter: Some(adapter),
        };
        let read: Value =
            rmp_serde::from_slice(&batch(0.0, &[KvEvent::Stored(stored)])).expect("MessagePack");
        let event = &read[1][0];
        assert_eq!(
            (&event["lora_id"], &event["lora_name"], &event["extra_keys"]),
            (
                &json!(2),
                &json!("pirate"),
                &json!([["pirate", "s"], ["pirate"]])
            )
        );
    }
}
