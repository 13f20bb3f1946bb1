//! Token ids of byte-level tokenizers without the library's book-keeping of offsets.
//!
//! The library copies each word several times, with the place of each byte in the original, and splits with a
//! backtracking engine. Most callers want ids only. Here the words are slices of the text; special tokens,
//! normalisation, the model (BPE) and what is put around a text remain the library's.

use tokenizers::normalizer::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::{Split as LibrarySplit, SplitPattern};
use tokenizers::tokenizer::{Encoding, Model, OffsetReferential, OffsetType, Result};
use tokenizers::{NormalizerWrapper, Tokenizer};

use super::scanner::Scanner;
use super::token_bytes::char_of_byte;

/// The expression of GPT-2 (Radford et al., 2019), which `ByteLevel` splits by if it is to split.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Splits texts, one step after the other, into the words that the model reads as characters for bytes.
pub(super) struct IdEncoder {
    splits: Vec<Split>,
    alphabet: [char; 256],
}

enum Split {
    /// Each numeric character is a word.
    Digits,
    Expression(Scanner),
}

impl IdEncoder {
    /// For pre-tokenizers that are splits and then `ByteLevel`; the others are left to the library.
    pub(super) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let steps = flatten(tokenizer.get_pre_tokenizer()?);
        let (PreTokenizerWrapper::ByteLevel(byte_level), steps) = steps.split_last()? else {
            return None;
        };
        if byte_level.add_prefix_space {
            return None;
        }
        let mut splits: Vec<Split> = steps
            .iter()
            .map(|step| split(step))
            .collect::<Option<_>>()?;
        if byte_level.use_regex {
            splits.push(Split::Expression(Scanner::new(GPT2)?));
        }
        Some(Self {
            splits,
            alphabet: std::array::from_fn(|byte| char_of_byte(byte as u8)),
        })
    }

    /// The ids that `tokenizer`, which this was made for, gives to `text`.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>> {
        let added = tokenizer.get_added_vocabulary();
        let normalizer = tokenizer.get_normalizer().filter(|normalizer| {
            !(matches!(normalizer, NormalizerWrapper::NFC(_)) && is_nfc(text))
        });
        let parts = added.extract_and_normalize(normalizer, text);
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut characters = String::new();
        for (part, _, tokens) in parts.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            if let Some(tokens) = tokens {
                ids.extend(tokens.iter().map(|token| token.id));
                continue;
            }
            words(&self.splits, part, &mut |word| {
                characters.clear();
                characters.extend(word.bytes().map(|byte| self.alphabet[usize::from(byte)]));
                let tokens = tokenizer.get_model().tokenize(&characters)?;
                ids.extend(tokens.iter().map(|token| token.id));
                Ok(())
            })?;
        }
        let ids = ids.into_iter();
        let encoding: Encoding = ids.map(|id| (id, String::new(), (0, 0), None, 0)).collect();
        let encoding = tokenizer.post_process(encoding, None, add_special_tokens)?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// Calls `word` with each word of `text`, which has at least one character.
fn words(splits: &[Split], text: &str, word: &mut impl FnMut(&str) -> Result<()>) -> Result<()> {
    match splits.split_first() {
        None => word(text),
        Some((Split::Digits, rest)) => digits(text).try_for_each(|piece| words(rest, piece, word)),
        Some((Split::Expression(scanner), rest)) => scanner
            .pieces(text)
            .try_for_each(|piece| words(rest, piece, word)),
    }
}

/// Whether NFC surely leaves `text` as it is: Latin, punctuation, CJK ideographs and emoji, which are in that form and
/// combine with no character before them (Unicode Standard Annex 15).
fn is_nfc(text: &str) -> bool {
    text.chars().all(|character| {
        matches!(character,
            '\0'..='\u{2ff}' | '\u{2010}'..='\u{2027}' | '\u{4e00}'..='\u{9fff}' | '\u{1f300}'..='\u{1faff}')
    })
}

/// Numeric characters, and what lies between them.
fn digits(text: &str) -> impl Iterator<Item = &str> {
    let pieces = text.split_inclusive(char::is_numeric).flat_map(|piece| {
        let before = piece.trim_end_matches(char::is_numeric);
        [before, &piece[before.len()..]]
    });
    pieces.filter(|piece| !piece.is_empty())
}

fn split(step: &PreTokenizerWrapper) -> Option<Split> {
    match step {
        PreTokenizerWrapper::Digits(digits) if digits.individual_digits => Some(Split::Digits),
        PreTokenizerWrapper::Split(LibrarySplit {
            pattern: SplitPattern::Regex(expression),
            behavior: SplitDelimiterBehavior::Isolated,
            invert: false,
            ..
        }) => Scanner::new(expression).map(Split::Expression),
        _ => None,
    }
}

fn flatten(pre_tokenizer: &PreTokenizerWrapper) -> Vec<&PreTokenizerWrapper> {
    match pre_tokenizer {
        PreTokenizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().flat_map(flatten).collect()
        }
        step => vec![step],
    }
}

#[cfg(test)]
mod tests;
