//! Special tokens in the texts of clients, read as text.
//!
//! A chat template puts the texts of clients between special tokens that it writes itself. In the prompt nothing tells
//! `<|im_start|>` of the one from that of the other. So marks are put into those of clients before the template sees
//! them: the tokenizer does not find such a token, and the marks are taken out before the text is split into words.

use std::borrow::Cow;
use std::collections::HashSet;

use tokenizers::Tokenizer;
use tokenizers::tokenizer::{Encoding, Model, OffsetReferential, OffsetType, PreTokenizer, Result};

/// A noncharacter of Unicode, which is for such use and in no text. Templates do not trim it.
pub(super) const MARK: char = '\u{fdd0}';

/// What begins a special token of a tokenizer.
#[derive(Debug)]
pub(super) struct Escape {
    /// Every beginning of every special token, but not the whole.
    beginnings: HashSet<String>,
    /// Characters of the longest.
    longest: usize,
    /// The tokens whose text clients may write.
    ids: HashSet<u32>,
}

impl Escape {
    /// For all special tokens of `tokenizer`, or those that are named.
    pub(super) fn new(tokenizer: &Tokenizer, names: Option<&[&str]>) -> Self {
        let added = tokenizer.get_added_tokens_decoder();
        let mut special = added;
        special.retain(|_, token| match names {
            Some(names) => names.contains(&token.content.as_str()),
            None => token.special,
        });
        let beginnings: HashSet<String> = special
            .values()
            .flat_map(|token| {
                let ends = token.content.char_indices().skip(1);
                ends.map(|(end, _)| token.content[..end].to_owned())
            })
            .collect();
        let lengths = beginnings.iter().map(|text| text.chars().count());
        Self {
            longest: lengths.max().unwrap_or(0),
            ids: special.keys().copied().collect(),
            beginnings,
        }
    }

    /// `text` with marks in its special tokens, and behind what could become one with the text after it.
    pub(super) fn mark<'a>(&self, tokenizer: &Tokenizer, text: &'a str) -> Cow<'a, str> {
        let mut marked = String::new();
        let mut copied = 0;
        for (start, end) in self.special_tokens(tokenizer, text) {
            marked.push_str(&text[copied..start]);
            for character in text[start..end].chars() {
                marked.extend([character, MARK]);
            }
            copied = end;
        }
        // Spaces at the end are what templates trim.
        let words = text.trim_end().len();
        if copied < words && self.is_beginning(&text[copied..words]) {
            marked.push_str(&text[copied..words]);
            marked.push(MARK);
            copied = words;
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        marked.push_str(&text[copied..]);
        Cow::Owned(marked)
    }

    /// Where `tokenizer` finds special tokens in `text`, without the spaces that some take with them.
    fn special_tokens(&self, tokenizer: &Tokenizer, text: &str) -> Vec<(usize, usize)> {
        let added = tokenizer.get_added_vocabulary();
        let parts = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        let splits = parts.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let found = splits.into_iter().filter_map(|(_, (start, end), tokens)| {
            let token = tokens.as_ref()?.first()?;
            let part = text
                .get(start..end)
                .filter(|_| self.ids.contains(&token.id))?;
            let (before, after) = (part.trim_start().len(), part.trim_end().len());
            Some((end - before, start + after))
        });
        found.filter(|(start, end)| start < end).collect()
    }

    /// Whether `text` ends with the beginning of a special token.
    fn is_beginning(&self, text: &str) -> bool {
        let starts = text.char_indices().rev().take(self.longest);
        starts
            .map(|(start, _)| &text[start..])
            .any(|end| self.beginnings.contains(end))
    }
}

/// The library's encoding of a text with marks, which are in no token. Offsets are those of the text with marks.
pub(super) fn encode(tokenizer: &Tokenizer, text: &str, add_special: bool) -> Result<Encoding> {
    let added = tokenizer.get_added_vocabulary();
    let mut parts = added.extract_and_normalize(tokenizer.get_normalizer(), text);
    parts.normalize(|part| {
        part.filter(|character| character != MARK);
        Ok(())
    })?;
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut parts)?;
    }
    parts.tokenize(|part| tokenizer.get_model().tokenize(part.get()))?;
    let encoding = parts.into_encoding(None, 0, OffsetType::Byte)?;
    tokenizer.post_process(encoding, None, add_special)
}

/// `text` as it is read.
pub(super) fn without_marks(text: &str) -> Cow<'_, str> {
    if text.contains(MARK) {
        Cow::Owned(text.replace(MARK, ""))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;
    use crate::test_tokenizers::{byte_fallback, byte_level, byte_level_json};
    use crate::tokenize::TextTokenizer;

    fn special_ids(tokenizer: &TextTokenizer, ids: &[u32]) -> Vec<u32> {
        let special = ids.iter().filter(|&&id| tokenizer.is_special(id));
        special.copied().collect()
    }

    #[test]
    fn special_tokens_of_clients_are_the_text_that_the_library_can_make_of_them() {
        let mut library = Tokenizer::from_str(&byte_level_json()).unwrap();
        library.set_encode_special_tokens(true);
        let tokenizer = byte_level().escaping_special_tokens();
        for text in [
            "<|end|>",
            "Hello <|end|>there",
            "<|end|><|end|> naïve <|end|>\n",
            "<|end|><|en",
        ] {
            let marked = tokenizer.escape(text);
            assert_ne!(marked, text);
            assert_eq!(tokenizer.unescape(&marked), text);
            let ids = tokenizer.encode(&marked, false).unwrap();
            let expected = library.encode(text, false).unwrap();
            assert_eq!(ids, expected.get_ids(), "{text}");
        }
        for text in ["", " ", "Hello there", "a < b", "|end|>"] {
            assert_eq!(tokenizer.escape(text), text);
        }
    }

    #[test]
    fn those_of_the_template_stay_special() {
        for (plain, end) in [(byte_level(), "<|end|>"), (byte_fallback(), "</s>")] {
            let tokenizer = plain.clone().escaping_special_tokens();
            let text = format!("a{end}b");
            let prompt = format!("{end}{}{end}", tokenizer.escape(&text));
            let ids = tokenizer.encode(&prompt, false).unwrap();
            assert_eq!(special_ids(&tokenizer, &ids).len(), 2, "{ids:?}");
            let ends = [ids.first(), ids.last()].map(|id| tokenizer.is_special(*id.unwrap()));
            assert_eq!(ends, [true, true]);
            let shown = tokenizer.decode(&ids, false).unwrap();
            assert_eq!(shown.matches(end).count(), 3, "{shown}");
            // Without the option a prompt is what it is.
            assert_eq!(plain.escape(&text), text);
        }
    }

    #[test]
    fn texts_one_after_the_other_make_no_special_token() {
        let tokenizer = byte_level().escaping_special_tokens();
        for pieces in [["<|en", "d|>"], ["<", "|end|>"], ["a<|end|  ", "> b"]] {
            let marked = pieces.map(|piece| tokenizer.escape(piece).trim().to_owned());
            let ids = tokenizer.encode(&marked.concat(), false).unwrap();
            assert_eq!(special_ids(&tokenizer, &ids), [] as [u32; 0], "{pieces:?}");
        }
    }

    #[test]
    fn offsets_are_those_of_the_text_without_marks() {
        for (tokenizer, end) in [(byte_level(), "<|end|>"), (byte_fallback(), "</s>")] {
            let tokenizer = tokenizer.escaping_special_tokens();
            let text = format!("né {end} x");
            let marked = tokenizer.escape(&text);
            let ids = tokenizer.encode(&marked, false).unwrap();
            let tokens = tokenizer.encode_with_offsets(marked.into_owned(), false);
            let tokens: Vec<_> = tokens.unwrap().tokens(0, usize::MAX).collect();
            assert!(tokens.iter().map(|token| token.id).eq(ids));
            for token in &tokens {
                assert_eq!(text.get(token.start..token.stop), Some(&*token.text));
            }
            assert_eq!(tokens.last().map(|token| token.stop), Some(text.len()));
        }
    }
}
