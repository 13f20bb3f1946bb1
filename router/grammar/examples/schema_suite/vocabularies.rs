//! A vocabulary of bytes, and one of the size that models have.

use std::fs;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use text_generation_grammar::{TokenEntry, Vocabulary};

use crate::Outcome;

/// In the vocabulary of bytes, where all other ids are bytes.
pub const END: u32 = 256;

/// A vocabulary with the bytes of its tokens; those of special tokens are empty.
#[derive(Clone)]
pub struct Tokens {
    pub vocabulary: Vocabulary,
    bytes: Vec<Vec<u8>>,
}

impl Tokens {
    fn new(entries: Vec<TokenEntry>, end: u32) -> Outcome<Self> {
        let bytes = entries
            .iter()
            .map(|entry| {
                if entry.special {
                    Vec::new()
                } else {
                    entry.bytes.clone()
                }
            })
            .collect();
        let vocabulary = Vocabulary::new(entries, &[end])?;
        Ok(Self { vocabulary, bytes })
    }

    pub fn size(&self) -> u32 {
        self.bytes.len() as u32
    }

    pub fn bytes(&self, id: u32) -> &[u8] {
        &self.bytes[id as usize]
    }
}

pub fn of_bytes() -> Outcome<Tokens> {
    let bytes = (0..=u8::MAX).map(|byte| entry(vec![byte], false));
    Tokens::new(bytes.chain([entry(b"</s>".to_vec(), true)]).collect(), END)
}

/// The 131,072 tokens of Mistral's tekken files; 2 is the end.
pub fn tekken(path: &str) -> Outcome<Tokens> {
    let file: Value = serde_json::from_slice(&fs::read(path)?)?;
    let number = |name: &str| file["config"][name].as_u64().unwrap_or(0) as usize;
    let special = number("default_num_special_tokens");
    let mut entries: Vec<TokenEntry> = (0..special)
        .map(|id| entry(format!("<special_{id}>").into_bytes(), true))
        .collect();
    let count = number("default_vocab_size") - special;
    for token in file["vocab"].as_array().into_iter().flatten().take(count) {
        let bytes = token["token_bytes"].as_str().unwrap_or_default();
        entries.push(entry(BASE64_STANDARD.decode(bytes)?, false));
    }
    Tokens::new(entries, 2)
}

fn entry(bytes: Vec<u8>, special: bool) -> TokenEntry {
    TokenEntry { bytes, special }
}
