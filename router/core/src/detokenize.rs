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
    /// What is not shown of the tokens to come, because the text before has it.
    skipped: Vec<u8>,
}

impl Detokenizer {
    pub fn new(tokenizer: TextTokenizer) -> Self {
        Self {
            tokenizer,
            pending: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// The same without `text`, with which the tokens begin.
    #[must_use]
    pub fn skipping(mut self, text: &str) -> Self {
        self.skipped = text.into();
        self
    }

    /// The text of `id` as the next token, without what the text before has of it; bytes that are no whole character
    /// show as U+FFFD. A token that does not go on with what is to be skipped is shown whole.
    pub fn alternative(&self, id: u32) -> String {
        let bytes = self.tokenizer.bytes(id);
        match bytes.strip_prefix(self.skipped.as_slice()) {
            Some(rest) if !self.skipped.is_empty() => String::from_utf8_lossy(rest).into_owned(),
            None if self.skipped.starts_with(bytes) => String::new(),
            _ => self.tokenizer.token_text(id),
        }
    }

    /// The text that `id` completes; empty when its character is not complete.
    pub fn push(&mut self, id: u32) -> String {
        let bytes = self.tokenizer.bytes(id);
        let (skipped, bytes) = bytes.split_at(self.skipped.len().min(bytes.len()));
        self.skipped.drain(..skipped.len());
        if self.pending.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return text.to_owned();
        }
        let mut input = std::mem::take(&mut self.pending);
        input.extend_from_slice(bytes);
        let mut text = String::with_capacity(input.len());
        let mut chunks = input.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            match chunk.invalid() {
                [] => {}
                last if chunks.peek().is_none() && is_start_of_character(last) => {
                    self.pending = last.to_vec();
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_tokenizers::{byte_fallback, byte_level};

    /// One piece for each id, then what is left.
    fn stream(tokenizer: &TextTokenizer, ids: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(tokenizer.clone());
        let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
        pieces.push(detokenizer.flush());
        pieces
    }

    #[test]
    fn pieces_join_to_the_text() {
        let texts = [
            "Hello here, this is a simple test",
            "我很感谢你的热情",
            "a 🙂 and 👩‍🚀 and 🇫🇷!",
            "e\u{301}clair, a\u{30a}ngstro\u{308}m, नमस्ते",
            "  two  spaces\n\tand lines\n",
        ];
        for text in texts {
            for (tokenizer, context) in [(byte_level(), ""), (byte_fallback(), " ")] {
                let ids = tokenizer.encode(text, false).unwrap();
                // Llama 2 puts a space before a text, which is there in the middle of another.
                assert_eq!(
                    stream(&tokenizer, &ids).concat(),
                    format!("{context}{text}")
                );
            }
        }
    }

    #[test]
    fn a_character_comes_with_the_token_that_completes_it() {
        let tokenizer = byte_fallback();
        let ids = tokenizer.encode("你🙂!", false).unwrap();
        assert_eq!(
            stream(&tokenizer, &ids),
            [" ", "", "", "你", "", "", "", "🙂", "!", ""]
        );
    }

    #[test]
    fn ill_formed_bytes_are_shown_as_soon_as_they_are_certain() {
        let tokenizer = byte_fallback();
        let byte = |byte: u32| tokenizer.encode("\0", false).unwrap()[1] + byte;
        // A complete character stays, whatever follows it.
        let ids = [0xe4, 0xbd, 0xa0, 0xff, 0xe4, 0xbd].map(byte);
        assert_eq!(
            stream(&tokenizer, &ids),
            ["", "", "你", "\u{fffd}", "", "", "\u{fffd}"]
        );
        let ids = [0xc3, 0xc3, 0xa9].map(byte);
        assert_eq!(stream(&tokenizer, &ids), ["", "\u{fffd}", "é", ""]);
        let ids = [byte(0xf0), byte(0x9f), byte(0x41), byte(0x80)];
        assert_eq!(
            stream(&tokenizer, &ids),
            ["", "", "\u{fffd}A", "\u{fffd}", ""]
        );
        // Thousands of them neither gather nor get lost.
        let ids = vec![byte(0x80); 5000];
        assert!(
            stream(&tokenizer, &ids)[..5000]
                .iter()
                .all(|piece| piece == "\u{fffd}")
        );
    }

    #[test]
    fn special_tokens_and_unknown_ids() {
        let tokenizer = byte_fallback();
        let mut ids = tokenizer.encode("hello", false).unwrap();
        ids.extend([2, u32::MAX]);
        assert_eq!(stream(&tokenizer, &ids), [" hello", "</s>", "", ""]);
    }

    proptest! {
        #[test]
        fn byte_level_streams_equal_the_librarys_decoding(ids in prop::collection::vec(0..330u32, 0..40)) {
            let tokenizer = byte_level();
            prop_assert_eq!(stream(&tokenizer, &ids).concat(), tokenizer.decode(&ids, false).unwrap());
        }

        #[test]
        fn byte_fallback_streams_equal_the_librarys_decoding_of_well_formed_ids(
            parts in prop::collection::vec(("\\PC{0,6}", prop::option::of(0..400u32)), 0..6)
        ) {
            let tokenizer = byte_fallback();
            let mut ids = tokenizer.encode("hello", false).unwrap();
            let context = tokenizer.decode(&ids, false).unwrap();
            let prompt = ids.len();
            for (text, id) in parts {
                ids.extend(tokenizer.encode(&text, false).unwrap());
                ids.extend(id);
            }
            let whole = tokenizer.decode(&ids, false).unwrap();
            let streamed = stream(&tokenizer, &ids[prompt..]).concat();
            if whole.contains(char::REPLACEMENT_CHARACTER) {
                let bytes: Vec<u8> = ids[prompt..].iter().flat_map(|&id| tokenizer.bytes(id).to_vec()).collect();
                prop_assert_eq!(streamed, String::from_utf8_lossy(&bytes));
            } else {
                prop_assert_eq!(context + &streamed, whole);
            }
        }
    }
}
