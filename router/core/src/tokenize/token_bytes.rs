//! The bytes that each token id adds to a text.
//!
//! The decoders of today's models treat a token in the middle of a text on its own: they map it to bytes and join.
//! So the bytes are worked out once, at load, and decoding a stream is a table look-up instead of two calls of the
//! library for each token. A decoder that looks at later tokens is refused at load.

use tokenizers::{Decoder, DecoderWrapper, Tokenizer};

use super::TokenizerError;

/// Far above any vocabulary; the table has a place for each id up to the largest.
const LARGEST_ID: u32 = (1 << 24) - 1;

/// Bytes of every id, as they read after other tokens; ids without a token have none.
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// Token `id` is `bytes[ends[id - 1]..ends[id]]`.
    ends: Vec<usize>,
    special: Vec<bool>,
}

impl TokenBytes {
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Self, TokenizerError> {
        let largest = tokenizer.get_vocab(true).into_values().max();
        if let Some(id) = largest.filter(|&id| id > LARGEST_ID) {
            let reason = format!("token id {id} is above {LARGEST_ID}");
            return Err(TokenizerError::Load(reason));
        }
        let tokens: Vec<Option<String>> = (0..=largest.unwrap_or(0))
            .map(|id| tokenizer.id_to_token(id))
            .collect();
        let known: Vec<bool> = tokens.iter().map(Option::is_some).collect();
        let tokens = tokens.into_iter().map(Option::unwrap_or_default).collect();
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(known.len()),
            special: vec![false; known.len()],
        };
        for (token, known) in decode_each(tokens, tokenizer.get_decoder())?
            .iter()
            .zip(known)
        {
            if known {
                table.bytes.extend_from_slice(token);
            }
            table.ends.push(table.bytes.len());
        }
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            if let Some(special) = table.special.get_mut(id as usize) {
                *special = token.special;
            }
        }
        Ok(table)
    }

    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match self.ends.get(id) {
            Some(&end) => &self.bytes[id.checked_sub(1).map_or(0, |before| self.ends[before])..end],
            None => &[],
        }
    }

    /// Bytes of the longest token.
    pub(super) fn longest(&self) -> usize {
        let starts = std::iter::once(&0).chain(&self.ends);
        let lengths = self.ends.iter().zip(starts).map(|(end, start)| end - start);
        lengths.max().unwrap_or(0)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// The ids of all special tokens, in order.
    pub(super) fn special(&self) -> impl Iterator<Item = u32> {
        let flagged = (0..).zip(&self.special);
        flagged.filter_map(|(id, special)| special.then_some(id))
    }
}

/// The bytes of each token after other tokens.
fn decode_each(
    tokens: Vec<String>,
    decoder: Option<&DecoderWrapper>,
) -> Result<Vec<Vec<u8>>, TokenizerError> {
    let Some(decoder) = decoder else {
        // Without a decoder the library joins tokens with a space.
        return Ok(tokens
            .into_iter()
            .map(|token| format!(" {token}").into_bytes())
            .collect());
    };
    let steps = flatten(decoder);
    if steps
        .iter()
        .all(|step| matches!(step, DecoderWrapper::ByteLevel(_) | DecoderWrapper::Fuse(_)))
    {
        return Ok(tokens.iter().map(|token| byte_level(token)).collect());
    }
    let byte_tokens: Vec<Option<u8>> = tokens.iter().map(|token| byte_token(token)).collect();
    // Some decoders strip the first token of a text, so something else takes that place.
    let mut texts: Vec<String> = std::iter::once(String::from("a")).chain(tokens).collect();
    let (mut fused, mut byte_fallback) = (false, false);
    for step in steps {
        match step {
            DecoderWrapper::Fuse(_) => fused = true,
            // On the joined text it touches only the start, which is the prompt's.
            DecoderWrapper::Strip(strip) if fused && strip.stop == 0 => {}
            DecoderWrapper::ByteFallback(_) if !fused => byte_fallback = true,
            DecoderWrapper::Strip(strip) if !fused && strip.stop == 0 => {
                texts = apply(step, texts)?
            }
            DecoderWrapper::Replace(_)
            | DecoderWrapper::Metaspace(_)
            | DecoderWrapper::WordPiece(_)
                if !fused =>
            {
                texts = apply(step, texts)?;
            }
            unsupported => return Err(TokenizerError::Decoder(format!("{unsupported:?}"))),
        }
    }
    let bytes = texts
        .into_iter()
        .skip(1)
        .zip(byte_tokens)
        .map(|(text, byte)| match byte {
            Some(byte) if byte_fallback => vec![byte],
            _ => text.into_bytes(),
        });
    Ok(bytes.collect())
}

fn apply(step: &DecoderWrapper, texts: Vec<String>) -> Result<Vec<String>, TokenizerError> {
    step.decode_chain(texts)
        .map_err(|error| TokenizerError::Load(error.to_string()))
}

fn flatten(decoder: &DecoderWrapper) -> Vec<&DecoderWrapper> {
    match decoder {
        DecoderWrapper::Sequence(sequence) => {
            sequence.get_decoders().iter().flat_map(flatten).collect()
        }
        step => vec![step],
    }
}

/// `<0xE4>` stands for the byte E4.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// A token with a character outside the byte alphabet (an added token) stands for itself.
fn byte_level(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of_char).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte alphabet of GPT-2 (Radford et al., 2019): printable Latin-1 characters stand for themselves, and the
/// other bytes, in order, for the characters from U+0100 on.
fn byte_of_char(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The inverse of [`byte_of_char`].
pub(super) fn char_of_byte(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => return char::from(byte),
        0x00..=0x20 => 0x100 + u16::from(byte),
        0x7f..=0xa0 => 0x121 + u16::from(byte - 0x7f),
        0xad => 0x143,
    };
    // No code below U+0144 is a surrogate.
    char::from_u32(u32::from(code)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::decoders::byte_level::ByteLevel;

    use super::*;
    use crate::test_tokenizers::{byte_level as byte_level_tokenizer, from_decoder};

    #[test]
    fn byte_alphabet_is_that_of_the_library() {
        let mut bytes: Vec<u8> = ByteLevel::alphabet()
            .into_iter()
            .filter_map(byte_of_char)
            .collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        for character in ByteLevel::alphabet() {
            assert_eq!(byte_of_char(character).map(char_of_byte), Some(character));
            let bytes = byte_level(&character.to_string());
            let decoded = ByteLevel::default()
                .decode_chain(vec![character.to_string()])
                .unwrap();
            assert_eq!(decoded, [String::from_utf8_lossy(&bytes)]);
        }
    }

    #[test]
    fn byte_tokens_need_two_hex_digits() {
        assert_eq!(byte_token("<0xE4>"), Some(0xe4));
        assert_eq!(byte_token("<0x0A>"), Some(0x0a));
        for token in ["<0xE>", "<0xE44>", "<0xZZ>", "0xE4", "<0xé>", ""] {
            assert_eq!(byte_token(token), None, "{token}");
        }
    }

    #[test]
    fn an_id_without_a_token_has_no_bytes() {
        let table = byte_level_tokenizer();
        assert!(table.bytes(u32::MAX).is_empty());
        assert!(!table.is_special(u32::MAX));
    }

    #[test]
    fn every_supported_decoder_agrees_with_the_library() {
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let (bytes, fuse) = (json!({"type": "ByteFallback"}), json!({"type": "Fuse"}));
        let decoders = [
            json!(null),
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
            json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            json!({"type": "Sequence", "decoders": [replace, bytes, fuse, strip]}),
            json!({"type": "Sequence", "decoders": [replace, strip]}),
        ];
        for decoder in decoders {
            let tokenizer = from_decoder(&decoder).unwrap();
            // There is no token 7.
            let ids = [3, 4, 5, 4, 3, 7, 6, 5, 1, 8, 2];
            let context = tokenizer.decode(&[4], false).unwrap();
            let whole = tokenizer.decode(&[&[4][..], &ids].concat(), false).unwrap();
            let bytes: Vec<u8> = ids
                .iter()
                .flat_map(|&id| tokenizer.bytes(id).to_vec())
                .collect();
            assert_eq!(
                context + std::str::from_utf8(&bytes).unwrap(),
                whole,
                "{decoder}"
            );
        }
    }

    #[test]
    fn decoders_that_look_at_later_tokens_are_refused() {
        let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b"});
        let decoders = [
            json!({"type": "BPEDecoder", "suffix": "</w>"}),
            json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
            json!({"type": "Strip", "content": " ", "start": 0, "stop": 1}),
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, replace]}),
        ];
        for decoder in decoders {
            assert!(
                matches!(from_decoder(&decoder), Err(TokenizerError::Decoder(_))),
                "{decoder}"
            );
        }
    }
}
