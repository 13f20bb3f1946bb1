//! The tokens of a model as a grammar sees them: the bytes of each id.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::GrammarError;

/// The library stores a token's length in ten bits.
const LONGEST_TOKEN: usize = 1000;

/// One id of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEntry {
    /// What the token adds to a text, or the name of a special token. Empty: the id is never generated under a grammar.
    pub bytes: Vec<u8>,
    /// Special tokens are allowed only where a grammar names them.
    pub special: bool,
}

/// The bytes of every token id, which ids are special, and which end a text. Cheap to clone.
#[derive(Clone)]
pub struct Vocabulary {
    inner: Arc<Inner>,
}

struct Inner {
    factory: ParserFactory,
    special: HashMap<String, u32>,
    size: usize,
}

impl Vocabulary {
    /// `tokens[id]` describes token `id`; there is one entry for each id that a mask has a bit for.
    /// Takes about a second for 130,000 tokens, so it belongs on a thread that may block.
    ///
    /// # Errors
    /// `Vocabulary`, if no id ends a text, an id does not exist, or there are too many tokens.
    pub fn new(tokens: Vec<TokenEntry>, eos_ids: &[u32]) -> Result<Self, GrammarError> {
        let size = tokens.len();
        check(size, eos_ids)?;
        let mut special = HashMap::new();
        let words: Vec<Vec<u8>> = tokens
            .into_iter()
            .enumerate()
            .map(|(id, token)| {
                let is_special = token.special || eos_ids.contains(&(id as u32));
                if is_special && !token.bytes.is_empty() {
                    let name = String::from_utf8_lossy(&token.bytes).into_owned();
                    special.entry(name).or_insert(id as u32);
                }
                word(token.bytes, is_special)
            })
            .collect();
        let eos_ids = eos_ids.to_vec();
        let factory = catch_unwind(AssertUnwindSafe(|| factory(&words, &eos_ids)))
            .map_err(|_| vocabulary_error("its tokens are too many or too long"))?
            .map_err(|error| vocabulary_error(&error))?;
        let inner = Inner {
            factory,
            special,
            size,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// How many ids there are: the bits of a mask.
    pub fn size(&self) -> usize {
        self.inner.size
    }

    /// The id of a special token.
    pub fn special_id(&self, name: &str) -> Option<u32> {
        self.inner.special.get(name).copied()
    }

    pub(crate) fn factory(&self) -> &ParserFactory {
        &self.inner.factory
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Vocabulary")
            .field("size", &self.inner.size)
            .field("special", &self.inner.special.len())
            .finish()
    }
}

fn check(size: usize, eos_ids: &[u32]) -> Result<(), GrammarError> {
    if eos_ids.is_empty() {
        return Err(vocabulary_error("no token ends a text"));
    }
    if let Some(id) = eos_ids.iter().find(|&&id| id as usize >= size) {
        return Err(vocabulary_error(&format!(
            "token {id}, which ends a text, is not one of its {size} tokens"
        )));
    }
    Ok(())
}

fn vocabulary_error(reason: &str) -> GrammarError {
    GrammarError::Vocabulary {
        reason: reason.to_owned(),
    }
}

/// The form in which the library knows a token: special ones begin with a byte that no UTF-8 text has.
/// A token that begins with this byte but is not special can be part of no text either, and is never allowed.
fn word(bytes: Vec<u8>, special: bool) -> Vec<u8> {
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    if bytes.len() > LONGEST_TOKEN {
        return Vec::new();
    }
    match (special, bytes.first()) {
        (_, None) => bytes,
        (true, _) => [&[marker], bytes.as_slice()].concat(),
        (false, Some(&first)) if first == marker => Vec::new(),
        (false, _) => bytes,
    }
}

fn factory(words: &[Vec<u8>], eos_ids: &[u32]) -> Result<ParserFactory, String> {
    let info = TokRxInfo::new(words.len() as u32, eos_ids[0]);
    let trie = TokTrie::from(&info, words).with_eos_tokens(eos_ids);
    let env: TokEnv = Arc::new(TrieTokenizer { trie });
    let slices = SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        .map_err(|error| error.to_string())?;
    factory.quiet();
    Ok(factory)
}

/// Cuts a text into the longest tokens, from left to right.
///
/// The model's own tokenizer may cut it otherwise, so nothing is forced by it: masks allow every way to write a text,
/// and forced tokens are proposals, which the mask of their position verifies like any other token.
struct TrieTokenizer {
    trie: TokTrie,
}

impl TokenizerEnv for TrieTokenizer {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
