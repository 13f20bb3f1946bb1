//! Random prompts of an exact number of tokens.

use std::path::{Path, PathBuf};

use rand::RngExt;
use tokenizers::Tokenizer;

use crate::error::{BenchmarkError, Result};

/// Texts are corrected so often until the tokenizer counts what was asked for.
const MAX_CORRECTIONS: usize = 32;
/// Fewer distinct words than this make prompts that look alike.
const MIN_WORDS: usize = 16;

/// Draws prompts. Two prompts have nothing in common but chance.
#[derive(Debug)]
pub struct PromptMaker {
    tokenizer: Option<Tokenizer>,
    /// Ids to draw from: whole words where a tokenizer is known, so that they stay what they are in a text.
    ids: Vec<u32>,
}

impl PromptMaker {
    /// `path`: `tokenizer.json` or the folder that holds it.
    pub fn from_tokenizer(path: &Path) -> Result<Self> {
        let file = tokenizer_file(path);
        let mut tokenizer = Tokenizer::from_file(&file).map_err(|error| {
            BenchmarkError::file(
                &file,
                format!("not a tokenizer (--tokenizer-path): {error}"),
            )
        })?;
        // Lengths are ours to decide.
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(None)
            .map_err(|error| BenchmarkError::file(&file, error))?;
        let ids = words(&tokenizer);
        if ids.len() < MIN_WORDS {
            return Err(BenchmarkError::file(
                &file,
                "the vocabulary has too few words of letters to draw prompts from",
            ));
        }
        Ok(Self {
            tokenizer: Some(tokenizer),
            ids,
        })
    }

    /// Ids without knowing their texts: the middle of the vocabulary, away from special tokens at both ends.
    pub fn from_vocabulary(size: u32) -> Result<Self> {
        let ids: Vec<u32> = (size / 8..size / 2).collect();
        if ids.len() < MIN_WORDS {
            return Err(BenchmarkError::argument(
                "--vocab-size",
                format!("{size} is too small to draw prompts from"),
            ));
        }
        Ok(Self {
            tokenizer: None,
            ids,
        })
    }

    /// `length` token ids.
    pub fn ids(&self, rng: &mut impl RngExt, length: u32) -> Vec<u32> {
        (0..length)
            .map(|_| self.ids[rng.random_range(0..self.ids.len())])
            .collect()
    }

    /// A text that starts with `prefix` and has `length` tokens, those that the tokenizer adds to every text included
    /// when `special` is set.
    pub fn text(
        &self,
        rng: &mut impl RngExt,
        prefix: &str,
        length: u32,
        special: bool,
    ) -> Result<String> {
        let tokenizer = self.tokenizer.as_ref().ok_or_else(|| {
            BenchmarkError::argument(
                "--tokenizer-path",
                "prompts as text need the model's tokenizer; pass the folder with its tokenizer.json",
            )
        })?;
        let unusable = |error| BenchmarkError::argument("--tokenizer-path", format!("{error}"));
        let target = length as usize;
        let mut count = length
            - tokens(tokenizer, prefix, special)
                .map_err(unusable)?
                .min(target) as u32;
        for _ in 0..MAX_CORRECTIONS {
            let words = self.ids(rng, count);
            let own = tokenizer.decode(&words, false).map_err(unusable)?;
            let text = join(prefix, &own);
            let has = tokens(tokenizer, &text, special).map_err(unusable)?;
            if has == target {
                return Ok(text);
            }
            count = (i64::from(count) + target as i64 - has as i64).max(0) as u32;
        }
        Err(BenchmarkError::argument(
            "--input-length",
            format!(
                "no text of exactly {length} tokens was found with this tokenizer; try a larger length, or --prompts ids where the API takes token ids"
            ),
        ))
    }
}

/// Words that are joined must not grow together with the prefix.
fn join(prefix: &str, own: &str) -> String {
    let space = if prefix.is_empty() || own.is_empty() || own.starts_with(' ') {
        ""
    } else {
        " "
    };
    format!("{prefix}{space}{own}")
}

fn tokens(tokenizer: &Tokenizer, text: &str, special: bool) -> tokenizers::Result<usize> {
    Ok(tokenizer.encode_fast(text, special)?.len())
}

pub fn tokenizer_file(path: &Path) -> PathBuf {
    if path.is_dir() {
        path.join("tokenizer.json")
    } else {
        path.to_owned()
    }
}

/// Ids of a space and letters: such a token stays one token between others of its kind.
fn words(tokenizer: &Tokenizer) -> Vec<u32> {
    let is_word = |token: &str| {
        ["Ġ", "▁"].iter().any(|space| {
            token.strip_prefix(space).is_some_and(|word| {
                word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_lowercase())
            })
        })
    };
    let mut ids: Vec<u32> = tokenizer
        .get_vocab(false)
        .into_iter()
        .filter(|(token, _)| is_word(token))
        .map(|(_, id)| id)
        .collect();
    // The vocabulary is a hash map: sort, so that a seed means the same prompts everywhere.
    ids.sort_unstable();
    ids
}

#[cfg(test)]
pub(crate) mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use serde_json::json;

    use super::*;

    /// Words of two letters; `<s>` before every text.
    pub(crate) fn maker() -> PromptMaker {
        let letters: Vec<char> = ('a'..='z').collect();
        let words = letters
            .iter()
            .flat_map(|a| letters.iter().map(move |b| format!("Ġ{a}{b}")));
        let singles = letters.iter().map(char::to_string);
        let vocab: serde_json::Map<String, serde_json::Value> = ["<s>".to_owned(), "Ġ".to_owned()]
            .into_iter()
            .chain(singles)
            .chain(words)
            .enumerate()
            .map(|(id, token)| (token, json!(id)))
            .collect();
        let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
        let begin = json!({ "id": "<s>", "ids": [0], "tokens": ["<s>"] });
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "added_tokens": [{ "id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true }],
            "pre_tokenizer": byte_level, "decoder": byte_level,
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
                "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
                "special_tokens": { "<s>": begin },
            },
            "model": { "type": "BPE", "vocab": vocab, "merges": [], "ignore_merges": true },
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        PromptMaker::from_tokenizer(folder.path()).unwrap()
    }

    pub(crate) fn count(maker: &PromptMaker, text: &str, special: bool) -> usize {
        tokens(maker.tokenizer.as_ref().unwrap(), text, special).unwrap()
    }

    #[test]
    fn a_text_has_the_tokens_that_were_asked_for() {
        let (maker, mut rng) = (maker(), StdRng::seed_from_u64(1));
        for length in [2, 7, 300] {
            for special in [false, true] {
                let text = maker.text(&mut rng, "", length, special).unwrap();
                assert_eq!(count(&maker, &text, special), length as usize);
            }
        }
        let prefix = maker.text(&mut rng, "", 20, true).unwrap();
        let text = maker.text(&mut rng, &prefix, 50, true).unwrap();
        assert!(text.starts_with(&prefix));
        assert_eq!(count(&maker, &text, true), 50);
    }

    #[test]
    fn a_length_that_no_text_has_is_refused() {
        let (maker, mut rng) = (maker(), StdRng::seed_from_u64(1));
        // `<s>` alone is already more.
        let error = maker.text(&mut rng, "", 0, true).unwrap_err();
        assert!(error.to_string().contains("--input-length"));
    }

    #[test]
    fn texts_need_a_tokenizer_and_ids_do_not() {
        let (maker, mut rng) = (
            PromptMaker::from_vocabulary(1000).unwrap(),
            StdRng::seed_from_u64(1),
        );
        let ids = maker.ids(&mut rng, 100);
        assert!(ids.len() == 100 && ids.iter().all(|id| (125..500).contains(id)));
        let error = maker.text(&mut rng, "", 5, false).unwrap_err();
        assert!(error.to_string().contains("--tokenizer-path"));
        assert!(PromptMaker::from_vocabulary(8).is_err());
    }
}
