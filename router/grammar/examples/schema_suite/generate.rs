//! A model that chooses at random among what its mask allows.

use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::StdRng;
use text_generation_grammar::{Grammar, MaskForm};

use crate::vocabularies::Tokens;

pub enum Ended {
    /// By a token that ends a text.
    Whole(Vec<u8>),
    Length,
    Error(String),
}

/// One random generation of at most `limit` tokens; `observe` gets the time of every mask.
/// Ends and closing characters are likelier than others, or random strings would hardly ever end.
pub fn generate(
    grammar: &Grammar,
    tokens: &Tokens,
    random: &mut StdRng,
    limit: usize,
    mut observe: impl FnMut(Duration),
) -> Ended {
    let mut matcher = grammar.matcher();
    let mut text = Vec::new();
    for _ in 0..limit {
        let start = Instant::now();
        let mask = match matcher.mask() {
            Ok(mask) => mask,
            Err(error) => return Ended::Error(error.to_string()),
        };
        observe(start.elapsed());
        let allowed: Vec<u32> = match mask.form() {
            MaskForm::Only(ids) => ids.to_vec(),
            _ => (0..tokens.size()).filter(|&id| mask.allows(id)).collect(),
        };
        let closing: Vec<u32> = allowed
            .iter()
            .copied()
            .filter(|&id| matches!(tokens.bytes(id), b"" | b"\"" | b"}" | b"]"))
            .collect();
        let among = if !closing.is_empty() && random.random_bool(0.3) {
            &closing
        } else {
            &allowed
        };
        let id = among[random.random_range(0..among.len())];
        if tokens.bytes(id).is_empty() {
            return Ended::Whole(text);
        }
        text.extend_from_slice(tokens.bytes(id));
        if let Err(error) = matcher.accept(id) {
            return Ended::Error(error.to_string());
        }
    }
    Ended::Length
}
