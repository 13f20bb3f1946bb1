//! Token ids to text as they come.

use crate::tokenize::TextTokenizer;

/// The text of one request, decoded token by token. Bytes of a character that is not complete yet wait for the next
/// token, so no piece ever ends inside a character. Bytes that can never become a character show as U+FFFD, one for
/// each maximal ill-formed part (Unicode standard, section 3.9), as in `String::from_utf8_lossy`.
///
/// The joined pieces equal the tokenizer's decoding of the ids after other text, special tokens included. They
/// differ in one case: where byte tokens (`<0xE4>`) of a run are ill-formed, the library shows U+FFFD for every byte
/// of the run, also for characters that were complete, and this keeps those.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: TextTokenizer,
    /// Start of a character, at most three bytes.
    pending: Vec<u8>,
}

impl Detokenizer {
    pub fn new(tokenizer: TextTokenizer) -> Self {
        Self {
            tokenizer,
            pending: Vec::new(),
        }
    }

    /// The text that `id` completes; empty when its character is not complete.
    pub fn push(&mut self, id: u32) -> String {
        let bytes = self.tokenizer.bytes(id);
        if self.pending.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return text.to_owned();
        }
        let mut input = std::mem::take(&mut self.pending);
        input.extend_from_slice(bytes);
        let mut text = String::with_capacity(input.len());
        for chunk in input.utf8_chunks() {
            text.push_str(chunk.valid());
            match chunk.invalid() {
                [] => {}
                invalid if is_start_of_character(invalid) && input.ends_with(invalid) => {
                    self.pending = invalid.to_vec();
                }
                _ => text.push(char::REPLACEMENT_CHARACTER),
            }
        }
        text
    }

    /// What is left at the end: U+FFFD for a character that was never completed, otherwise nothing.
    pub fn flush(&mut self) -> String {
        let pending = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&pending).into_owned()
    }
}

fn is_start_of_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
