//! Log-probabilities of tokens in the two shapes of OpenAI.

use std::collections::{HashMap, HashSet};

use serde::Serialize as DeriveSerialize;
use serde::ser::{Serialize, Serializer};
use text_generation_core::infer::Infer;
use text_generation_core::types::{PrefillToken, Token};
use utoipa::ToSchema;

/// What OpenAI writes where a log-probability is not a finite number.
pub const NEVER: f32 = -9999.0;

/// What a token adds to a text.
pub trait TokenBytes {
    fn token_bytes(&self, id: u32) -> &[u8];
    /// Special tokens add nothing: their bytes are their name.
    fn is_special(&self, id: u32) -> bool;
}

impl TokenBytes for Infer {
    fn token_bytes(&self, id: u32) -> &[u8] {
        Infer::token_bytes(self, id)
    }

    fn is_special(&self, id: u32) -> bool {
        Infer::is_special(self, id)
    }
}

/// Log-probabilities of a chat's answer.
#[derive(Debug, Default, DeriveSerialize, ToSchema)]
pub struct ChatLogprobs {
    pub content: Vec<TokenLogprob>,
}

/// A token of an answer.
#[derive(Debug, DeriveSerialize, ToSchema)]
pub struct TokenLogprob {
    #[serde(flatten)]
    pub token: Candidate,
    /// The most likely tokens at this place.
    pub top_logprobs: Vec<Candidate>,
}

/// A token that could stand at a place.
#[derive(Debug, DeriveSerialize, ToSchema)]
pub struct Candidate {
    /// Its text; bytes that are no whole character show as U+FFFD. With `return_tokens_as_token_ids` its id.
    #[schema(example = "Hel")]
    pub token: String,
    #[schema(example = -0.34)]
    pub logprob: f32,
    /// The bytes that it adds to the text; of a special token those of its name.
    #[schema(example = json!([72, 101, 108]))]
    pub bytes: Vec<u8>,
}

impl Candidate {
    fn new(token: &Token, as_ids: bool, bytes: &impl TokenBytes) -> Self {
        let bytes = bytes.token_bytes(token.id);
        Self {
            token: if as_ids {
                numbered(token.id)
            } else {
                String::from_utf8_lossy(bytes).into_owned()
            },
            logprob: token.logprob.unwrap_or(NEVER),
            bytes: bytes.to_vec(),
        }
    }
}

impl ChatLogprobs {
    /// Adds a token with its alternatives. `as_ids`: they are named by their ids.
    pub fn push(&mut self, token: &Token, top: &[Token], as_ids: bool, bytes: &impl TokenBytes) {
        let candidate = |token| Candidate::new(token, as_ids, bytes);
        self.content.push(TokenLogprob {
            token: candidate(token),
            top_logprobs: top.iter().map(candidate).collect(),
        });
    }
}

/// Log-probabilities of a completion: lists of the same length.
#[derive(Debug, Default, DeriveSerialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Their texts. One whose bytes are no whole characters is written as `bytes:\xf0\x9f`; with
    /// `return_tokens_as_token_ids` all are written as `token_id:1234`.
    #[schema(example = json!([" there"]))]
    pub tokens: Vec<String>,
    /// Null for the first token of a prompt, which nothing predicts.
    #[schema(example = json!([-0.34]))]
    pub token_logprobs: Vec<Option<f32>>,
    /// From tokens, written as in `tokens`, to log-probabilities, the token itself included. Of several with one text
    /// the others are written as `token_id:1234`. Null where `logprobs` is 0, and for the first token of a prompt.
    #[schema(nullable = true, value_type = Option<Vec<Option<Object>>>)]
    pub top_logprobs: Option<Vec<Option<TopLogprobs>>>,
    /// Where each token begins, in characters of the text; 0 for one that begins before it (`token_healing`).
    #[schema(example = json!([0]))]
    pub text_offset: Vec<usize>,
}

/// An object in the order of the list.
#[derive(Debug)]
pub struct TopLogprobs(Vec<(String, f32)>);

impl TopLogprobs {
    /// The alternatives in one place, best first, and the token that is there.
    fn new(top: &[Token], id: u32, logprob: f32, as_ids: bool, bytes: &impl TokenBytes) -> Self {
        let alternatives = top
            .iter()
            .map(|token| (token.id, token.logprob.unwrap_or(NEVER)));
        let own = name(id, as_ids, bytes);
        let (mut ids, mut names) = (HashSet::new(), HashSet::from([own.clone()]));
        let entries = alternatives
            .chain([(id, logprob)])
            .filter(|&(id, _)| ids.insert(id))
            .map(|(other, logprob)| {
                if other == id {
                    return (own.clone(), logprob);
                }
                let name = name(other, as_ids, bytes);
                // Several tokens can have one text; it stays that of the token that is there.
                if names.insert(name.clone()) {
                    (name, logprob)
                } else {
                    (numbered(other), logprob)
                }
            });
        Self(entries.collect())
    }
}

impl Serialize for TopLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

/// Makes the log-probabilities of one text, piece by piece.
#[derive(Debug)]
pub struct CompletionTokens {
    /// Characters before the next token.
    offset: usize,
    /// Those of them that the text does not have.
    before: usize,
    /// Whether alternatives were asked for.
    top: bool,
    /// Tokens are named by their ids.
    as_ids: bool,
    /// Special tokens that are generated are in the text.
    shows_special: bool,
}

impl CompletionTokens {
    /// `top`: with alternatives. `as_ids`: tokens are named by their ids.
    pub fn new(top: bool, as_ids: bool) -> Self {
        Self {
            offset: 0,
            before: 0,
            top,
            as_ids,
            shows_special: false,
        }
    }

    /// Special tokens that are generated are in the text, or they are not.
    #[must_use]
    pub fn showing_special(mut self, shown: bool) -> Self {
        self.shows_special = shown;
        self
    }

    /// The first token begins so many characters before the text.
    #[must_use]
    pub fn beginning_before(mut self, characters: usize) -> Self {
        self.before = characters;
        self
    }

    /// An empty list to add to.
    pub fn list(&self) -> CompletionLogprobs {
        CompletionLogprobs {
            top_logprobs: self.top.then(Vec::new),
            ..CompletionLogprobs::default()
        }
    }

    /// Adds a generated token.
    pub fn push(
        &mut self,
        list: &mut CompletionLogprobs,
        token: &Token,
        top: &[Token],
        bytes: &impl TokenBytes,
    ) {
        let logprob = token.logprob.unwrap_or(NEVER);
        let hidden = token.special && !self.shows_special;
        self.add(list, token.id, Some(logprob), hidden, bytes);
        if let Some(tops) = &mut list.top_logprobs {
            let top = TopLogprobs::new(top, token.id, logprob, self.as_ids, bytes);
            tops.push(Some(top));
        }
    }

    /// The tokens of a prompt, of which `text` is what is returned.
    pub fn prompt(
        &mut self,
        prompt: &[PrefillToken],
        text: &str,
        bytes: &impl TokenBytes,
    ) -> CompletionLogprobs {
        let mut list = self.list();
        let mut added = added_tokens(prompt, text, bytes);
        for token in prompt {
            let added = added.get_mut(&token.id).filter(|count| **count > 0);
            let hidden = added.map(|count| *count -= 1).is_some();
            self.add(&mut list, token.id, token.logprob, hidden, bytes);
        }
        if let Some(tops) = &mut list.top_logprobs {
            let top = |token: &PrefillToken| {
                // Nothing predicts the first token.
                let logprob = token.logprob?;
                Some(TopLogprobs::new(
                    &token.top_tokens,
                    token.id,
                    logprob,
                    self.as_ids,
                    bytes,
                ))
            };
            tops.extend(prompt.iter().map(top));
        }
        list
    }

    fn add(
        &mut self,
        list: &mut CompletionLogprobs,
        id: u32,
        logprob: Option<f32>,
        hidden: bool,
        bytes: &impl TokenBytes,
    ) {
        list.tokens.push(name(id, self.as_ids, bytes));
        let bytes = bytes.token_bytes(id);
        list.token_logprobs.push(logprob);
        list.text_offset
            .push(self.offset.saturating_sub(self.before));
        // A character is counted with its first byte.
        if !hidden {
            self.offset += bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        }
    }
}

/// How many of each special token of a prompt its `text` does not have: a BOS token that the tokenizer has put before
/// it, or all of a prompt of ids. The first ones are these.
fn added_tokens(
    prompt: &[PrefillToken],
    text: &str,
    bytes: &impl TokenBytes,
) -> HashMap<u32, usize> {
    let mut added: HashMap<u32, usize> = HashMap::new();
    for token in prompt.iter().filter(|token| bytes.is_special(token.id)) {
        *added.entry(token.id).or_default() += 1;
    }
    for (&id, count) in &mut added {
        if let Ok(name) = std::str::from_utf8(bytes.token_bytes(id)) {
            let written = text.matches(name).count();
            *count -= written.min(*count);
        }
    }
    added
}

/// How a completion names a token: as its text, or as its bytes where they are no whole characters.
fn name(id: u32, as_ids: bool, bytes: &impl TokenBytes) -> String {
    if as_ids {
        return numbered(id);
    }
    let bytes = bytes.token_bytes(id);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| {
            format!("{name}\\x{byte:02x}")
        }),
    }
}

fn numbered(id: u32) -> String {
    format!("token_id:{id}")
}

#[cfg(test)]
mod tests;
