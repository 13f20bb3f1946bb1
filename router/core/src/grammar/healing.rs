//! Token healing: the last tokens of a prompt are generated again, because the model may write its end, and what
//! follows, with other tokens than the tokenizer that saw the end alone.
//!
//! A prompt that ends with `http:` has the token `:` there, where texts have `://`. Without its last tokens, and with
//! masks that allow their bytes alone, the model chooses how the text goes on from within a token.

use std::sync::Arc;

use text_generation_grammar::Mask;

use crate::tokenize::TextTokenizer;

/// Tokens at the end of a prompt that may be generated again.
const MOST_TOKENS: usize = 3;

/// The tokens that are text, in the order of their bytes. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct TextTokens {
    tokenizer: TextTokenizer,
    ids: Arc<[u32]>,
    eos_token_ids: Arc<[u32]>,
    vocab_size: u32,
}

impl TextTokens {
    /// Of a model whose logits have `vocab_size` entries. Takes some 50 ms for 130,000 tokens.
    pub(crate) fn new(tokenizer: TextTokenizer, vocab_size: u32, eos_token_ids: &[u32]) -> Self {
        let mut tokens = Self {
            tokenizer,
            ids: Arc::default(),
            eos_token_ids: eos_token_ids.into(),
            vocab_size,
        };
        let mut ids: Vec<u32> = (0..vocab_size).filter(|&id| tokens.is_text(id)).collect();
        ids.sort_by_key(|&id| tokens.tokenizer.bytes(id));
        tokens.ids = ids.into();
        tokens
    }

    /// What is generated again of a prompt whose tokens from `first` on may be; nothing where no token goes on beyond
    /// its end. One token stays.
    ///
    /// It is as much as can be the beginning of one token, up to three tokens and in whole characters.
    pub(crate) fn heal(&self, prompt: &[u32], first: usize) -> Option<Healing> {
        let open = prompt.get(first.max(1)..).unwrap_or_default();
        (1..=open.len().min(MOST_TOKENS))
            .rev()
            .find_map(|count| self.healing(&open[open.len() - count..]))
    }

    fn healing(&self, ids: &[u32]) -> Option<Healing> {
        if !ids.iter().all(|&id| self.is_text(id)) {
            return None;
        }
        let bytes = ids.iter().flat_map(|&id| self.tokenizer.bytes(id));
        let text = String::from_utf8(bytes.copied().collect()).ok()?;
        let last = self.that_begin_with(text.as_bytes()).last()?;
        let goes_on = self.tokenizer.bytes(*last).len() > text.len();
        (goes_on || ids.len() > 1).then(|| Healing::new(self.clone(), text.into(), ids.len()))
    }

    fn is_text(&self, id: u32) -> bool {
        let special = self.tokenizer.is_special(id) || self.eos_token_ids.contains(&id);
        !special && !self.tokenizer.bytes(id).is_empty()
    }

    /// Those whose bytes begin with these, the shortest first.
    fn that_begin_with(&self, bytes: &[u8]) -> &[u32] {
        let of = |id: &u32| self.tokenizer.bytes(*id);
        let first = self.ids.partition_point(|id| of(id) < bytes);
        let rest = &self.ids[first..];
        &rest[..rest.partition_point(|id| of(id).starts_with(bytes))]
    }

    /// Those whose bytes are these.
    fn that_are<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
        let found = self.that_begin_with(bytes).iter().copied();
        found.take_while(|&id| self.tokenizer.bytes(id).len() == bytes.len())
    }
}

/// The end of a prompt that is generated again, and how much of it has been.
#[derive(Debug, Clone)]
pub(crate) struct Healing {
    tokens: TextTokens,
    text: Arc<str>,
    /// Tokens that the prompt had for it.
    count: usize,
    /// Bytes that have come.
    written: usize,
    /// Of the first token.
    first: Mask,
}

impl Healing {
    fn new(tokens: TextTokens, text: Arc<str>, count: usize) -> Self {
        let mut healing = Self {
            tokens,
            text,
            count,
            written: 0,
            first: Mask::all(),
        };
        healing.first = healing.mask();
        healing
    }

    /// The end of the prompt's text.
    pub(crate) fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// Tokens that the prompt had for it.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Of the first token.
    pub(crate) fn first(&self) -> &Mask {
        &self.first
    }

    fn rest(&self) -> &[u8] {
        &self.text.as_bytes()[self.written..]
    }

    /// All of it has come.
    pub(crate) fn is_written(&self) -> bool {
        self.rest().is_empty()
    }

    /// Whether a token would add nothing to the text that follows the prompt.
    pub(crate) fn covers(&self, id: u32) -> bool {
        let bytes = self.tokens.tokenizer.bytes(id);
        self.tokens.is_text(id) && self.rest().starts_with(bytes)
    }

    /// Takes the token that came.
    pub(crate) fn accept(&mut self, id: u32) {
        let bytes = self.tokens.tokenizer.bytes(id).len();
        self.written = (self.written + bytes).min(self.text.len());
    }

    /// The tokens that may come next: those that write a part of what is left, and those that go on beyond it.
    pub(crate) fn mask(&self) -> Mask {
        let rest = self.rest();
        if rest.is_empty() {
            return Mask::all();
        }
        let mut ids = self.tokens.that_begin_with(rest).to_vec();
        ids.extend((1..rest.len()).flat_map(|end| self.tokens.that_are(&rest[..end])));
        Mask::only(ids, self.tokens.vocab_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tokenizers::{byte_fallback, byte_level};

    fn tokens(tokenizer: TextTokenizer) -> TextTokens {
        TextTokens::new(tokenizer, 400, &[0])
    }

    fn healed(tokenizer: &TextTokenizer, text: &str) -> Option<(String, usize)> {
        let ids = tokenizer.encode(text, true).unwrap();
        let healing = tokens(tokenizer.clone()).heal(&ids, 0)?;
        Some((healing.text().to_string(), healing.count()))
    }

    /// What a mask allows, as texts.
    fn allowed(tokenizer: &TextTokenizer, mask: &Mask) -> Vec<String> {
        let ids = (0..400).filter(|&id| mask.allows(id));
        let mut texts: Vec<String> = ids.map(|id| tokenizer.token_text(id)).collect();
        texts.sort();
        texts
    }

    #[test]
    fn as_much_is_healed_as_can_begin_one_token() {
        let tokenizer = byte_fallback();
        let healed = |text| healed(&tokenizer, text);
        // ` hello` is a token; ` hel` is ` he` and `l`.
        assert_eq!(healed("x hel"), Some((" hel".to_owned(), 2)));
        assert_eq!(healed("x "), Some((" ".to_owned(), 1)));
        assert_eq!(healed("x t"), Some((" t".to_owned(), 1)));
        // Nothing goes on after these.
        assert_eq!(healed("x hello"), None);
        assert_eq!(healed("x!"), None);
        // What is left has one token at least.
        assert_eq!(healed("t"), Some((" t".to_owned(), 1)));
        let ids = tokenizer.encode("t", false).unwrap();
        assert!(tokens(tokenizer).heal(&ids, 0).is_none());
    }

    #[test]
    fn special_tokens_and_parts_of_characters_stay() {
        let tokenizer = byte_level();
        let tokens = tokens(tokenizer.clone());
        let mut ids = tokenizer.encode("once upon a t", false).unwrap();
        assert!(tokens.heal(&ids, 0).is_some());
        assert!(tokens.heal(&ids, ids.len()).is_none());
        ids.push(0);
        assert!(tokens.heal(&ids, 0).is_none());
        // The last two of the four bytes of a face.
        let byte = |byte: u8| (1..320).find(|&id| tokenizer.bytes(id) == [byte]).unwrap();
        assert!(tokens.heal(&[5, byte(0x99), byte(0x82)], 0).is_none());
    }

    #[test]
    fn masks_allow_every_way_to_write_the_end_and_to_go_on() {
        let tokenizer = byte_fallback();
        let ids = tokenizer.encode("x hel", false).unwrap();
        let mut healing = tokens(tokenizer.clone()).heal(&ids, 0).unwrap();
        // The byte 32 and the word of one space are two tokens.
        assert_eq!(
            allowed(&tokenizer, healing.first()),
            [" ", " ", " he", " hello"]
        );
        let id = |text: &str| tokenizer.token_id(text).unwrap();
        assert!(healing.covers(id("▁he")) && !healing.covers(id("▁hello")));
        healing.accept(id("▁he"));
        assert!(!healing.is_written());
        assert_eq!(
            allowed(&tokenizer, &healing.mask()),
            ["l", "l", "ll", "llo"]
        );
        healing.accept(id("llo"));
        assert!(healing.is_written());
        assert_eq!(healing.mask(), Mask::all());
    }
}
