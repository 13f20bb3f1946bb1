//! Text to token ids and back.

mod escape;
mod growth;
mod ids;
mod pool;
mod scanner;
mod token_bytes;

use std::borrow::Cow;
use std::fmt;
use std::panic::catch_unwind;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use tokenizers::{NormalizerWrapper, Tokenizer};

use self::escape::Escape;
use self::ids::IdEncoder;
pub use self::pool::TokenizerPool;
use self::token_bytes::TokenBytes;
use crate::types::TokenizedText;

/// How the file begins that Git LFS has in the place of one that was not fetched.
const LFS_POINTER: &str = "version https://git-lfs.github.com/spec/";

/// Why a tokenizer could not be loaded or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    #[error("cannot load the tokenizer: {0}")]
    Load(String),
    /// With this decoder the text of a token depends on the tokens after it.
    #[error("cannot load the tokenizer, its decoder is not supported: {0}")]
    Decoder(String),
    #[error("cannot start the tokenizer threads: {0}")]
    Threads(String),
    #[error("{0}")]
    Encode(String),
    #[error("{0}")]
    Decode(String),
    #[error("the tokenizer threads have stopped")]
    Stopped,
}

/// A loaded `tokenizer.json`; clones share it.
#[derive(Clone)]
pub struct TextTokenizer {
    loaded: Arc<Loaded>,
    /// Set where special tokens in the texts of clients are to be text.
    escape: Option<Arc<Escape>>,
}

struct Loaded {
    tokenizer: Tokenizer,
    /// Nothing where only the library knows how to split a text.
    ids: Option<IdEncoder>,
    token_bytes: TokenBytes,
    longest: Option<usize>,
}

impl TextTokenizer {
    /// Loads a `tokenizer.json` file. Its truncation and padding are switched off: the limits of a request decide.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let in_file = |reason: String| format!("{}: {reason}", path.display());
        let json = std::fs::read_to_string(path)
            .map_err(|error| TokenizerError::Load(in_file(error.to_string())))?;
        Self::from_json(&json).map_err(|error| match error {
            TokenizerError::Load(reason) => TokenizerError::Load(in_file(reason)),
            TokenizerError::Decoder(decoder) => TokenizerError::Decoder(in_file(decoder)),
            other => other,
        })
    }

    /// Loads the text of a `tokenizer.json`.
    pub fn from_json(json: &str) -> Result<Self, TokenizerError> {
        if json.starts_with(LFS_POINTER) {
            let reason = "this is only a pointer of Git LFS, not the file itself: run `git lfs pull` in the model folder, \
                          or download the model again";
            return Err(TokenizerError::Load(reason.to_owned()));
        }
        // The library panics over some parts of a damaged file.
        let damaged = |_| TokenizerError::Load("the file is damaged, or not complete".to_owned());
        catch_unwind(|| Self::read(json)).map_err(damaged)?
    }

    fn read(json: &str) -> Result<Self, TokenizerError> {
        growth::check(json)?;
        let load_error = |error: tokenizers::Error| TokenizerError::Load(error.to_string());
        let mut tokenizer = Tokenizer::from_str(json).map_err(load_error)?;
        tokenizer.with_truncation(None).map_err(load_error)?;
        tokenizer.with_padding(None);
        let token_bytes = TokenBytes::new(&tokenizer)?;
        let ids = IdEncoder::new(&tokenizer);
        let keeps_bytes = ids.is_some();
        let longest = keeps_bytes.then(|| longest_token(&tokenizer, &token_bytes));
        let loaded = Arc::new(Loaded {
            tokenizer,
            ids,
            token_bytes,
            longest: longest.flatten(),
        });
        Ok(Self {
            loaded,
            escape: None,
        })
    }

    /// The same tokenizer, whose [`escape`](Self::escape) makes text of special tokens.
    pub fn escaping_special_tokens(mut self) -> Self {
        self.escape = Some(Arc::new(Escape::new(&self.loaded.tokenizer, None)));
        self
    }

    /// The same for these tokens alone, where not all are escaped.
    pub fn escaping_tokens(mut self, names: &[&str]) -> Self {
        if self.escape.is_none() {
            self.escape = Some(Arc::new(Escape::new(&self.loaded.tokenizer, Some(names))));
        }
        self
    }

    /// Whether [`escape`](Self::escape) changes anything.
    pub fn escapes_special_tokens(&self) -> bool {
        self.escape.is_some()
    }

    /// `text` with marks, so that its special tokens are encoded as text wherever it is put. Without
    /// [`escaping_special_tokens`](Self::escaping_special_tokens) the text as it is.
    pub fn escape<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match &self.escape {
            Some(escape) => escape.mark(&self.loaded.tokenizer, text),
            None => Cow::Borrowed(text),
        }
    }

    /// `text` without the marks of [`escape`](Self::escape), as people should see it.
    pub fn unescape<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match &self.escape {
            Some(_) => escape::without_marks(text),
            None => Cow::Borrowed(text),
        }
    }

    /// Whether `text` has marks to be taken out.
    fn is_marked(&self, text: &str) -> bool {
        self.escape.is_some() && text.contains(escape::MARK)
    }

    /// The ids of `text`; `add_special_tokens` adds what the tokenizer puts around a text (BOS).
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let tokenizer = &self.loaded.tokenizer;
        let ids = match &self.loaded.ids {
            _ if self.is_marked(text) => escape::encode(tokenizer, text, add_special_tokens)
                .map(|encoding| encoding.get_ids().to_vec()),
            Some(ids) => ids.encode(tokenizer, text, add_special_tokens),
            None => tokenizer
                .encode_fast(text, add_special_tokens)
                .map(|encoding| encoding.get_ids().to_vec()),
        };
        ids.map_err(|error| TokenizerError::Encode(error.to_string()))
    }

    /// Like [`encode`](Self::encode), with the byte range of `text` that each token came from, widened to whole
    /// characters: tokens that share a character all show it. Added special tokens have the empty range `0..0`.
    ///
    /// # Errors
    /// Also when the text has 4 GiB or more.
    pub fn encode_with_offsets(
        &self,
        text: String,
        add_special_tokens: bool,
    ) -> Result<TokenizedText, TokenizerError> {
        let too_long = |_| TokenizerError::Encode("the text has 4 GiB or more".to_owned());
        u32::try_from(text.len()).map_err(too_long)?;
        let tokenizer = &self.loaded.tokenizer;
        let (encoding, marks) = if self.is_marked(&text) {
            let marks: Vec<usize> = text.match_indices(escape::MARK).map(|(at, _)| at).collect();
            (escape::encode(tokenizer, &text, add_special_tokens), marks)
        } else {
            (
                tokenizer.encode(text.as_str(), add_special_tokens),
                Vec::new(),
            )
        };
        let encoding = encoding.map_err(|error| TokenizerError::Encode(error.to_string()))?;
        let text = match marks.is_empty() {
            true => text,
            false => self.unescape(&text).into_owned(),
        };
        let unmarked = |offset| {
            offset - escape::MARK.len_utf8() * marks.partition_point(|&mark| mark < offset)
        };
        let places = encoding.get_offsets().iter().map(|&(start, stop)| {
            let (start, stop) = whole_characters(&text, unmarked(start), unmarked(stop));
            (start as u32, stop as u32)
        });
        let places = places.collect();
        let ids = encoding.get_ids().to_vec();
        Ok(TokenizedText::new(text, ids, places))
    }

    /// The text of `ids`, taken as a whole text.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        let text = self.loaded.tokenizer.decode(ids, skip_special_tokens);
        text.map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// Bytes of a text that one token can stand for at most; nothing where that cannot be told.
    pub fn longest_token(&self) -> Option<usize> {
        self.loaded.longest
    }

    /// Whether `id` is a special token, such as BOS or EOS.
    pub fn is_special(&self, id: u32) -> bool {
        self.loaded.token_bytes.is_special(id)
    }

    /// The ids of all special tokens, in order.
    pub fn special_ids(&self) -> impl Iterator<Item = u32> {
        self.loaded.token_bytes.special()
    }

    /// How the vocabulary writes `id`, such as `Ġworld`; nothing for an unknown one.
    /// The id of a token of its vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.loaded.tokenizer.token_to_id(token)
    }

    pub fn token(&self, id: u32) -> Option<String> {
        self.loaded.tokenizer.id_to_token(id)
    }

    /// The text of one token as it reads after other text (` world` keeps its space). Bytes that are no whole
    /// character show as U+FFFD; an unknown id has no text.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.bytes(id)).into_owned()
    }

    /// The bytes that `id` adds to a text; an unknown id has none.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.loaded.token_bytes.get(id)
    }
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TextTokenizer")
            .finish_non_exhaustive()
    }
}

/// The composed form of a character (NFC) may be shorter, but not more than this many times.
const NFC_SHRINKS: usize = 4;

/// Bytes of the longest text that a byte-level tokenizer makes one token of. Nothing where a normalizer, or an added
/// token that takes the spaces around it, may swallow any number of bytes.
fn longest_token(tokenizer: &Tokenizer, token_bytes: &TokenBytes) -> Option<usize> {
    let shrinks = match tokenizer.get_normalizer() {
        None => 1,
        Some(NormalizerWrapper::NFC(_)) => NFC_SHRINKS,
        Some(_) => return None,
    };
    let added = tokenizer.get_added_tokens_decoder();
    if added.values().any(|token| token.lstrip || token.rstrip) {
        return None;
    }
    let added = added.values().map(|token| token.content.len());
    Some(shrinks * token_bytes.longest().max(added.max().unwrap_or(0)))
}

/// The smallest range of whole characters that covers `start..stop`.
fn whole_characters(text: &str, start: usize, stop: usize) -> (usize, usize) {
    let mut start = start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut stop = stop.clamp(start, text.len());
    while !text.is_char_boundary(stop) {
        stop += 1;
    }
    (start, stop)
}

#[cfg(test)]
mod tests;
