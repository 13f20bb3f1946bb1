//! Log-probabilities of tokens in the two shapes of OpenAI.

use std::collections::HashSet;

use serde::Serialize as DeriveSerialize;
use serde::ser::{Serialize, Serializer};
use text_generation_core::infer::Infer;
use text_generation_core::types::{PrefillToken, Token};
use utoipa::ToSchema;

/// What OpenAI writes where a log-probability is not a finite number.
const NEVER: f32 = -9999.0;

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
    /// Its text; bytes that are no whole character show as U+FFFD.
    #[schema(example = "Hel")]
    pub token: String,
    #[schema(example = -0.34)]
    pub logprob: f32,
    /// The bytes that it adds to the text; of a special token those of its name.
    #[schema(example = json!([72, 101, 108]))]
    pub bytes: Vec<u8>,
}

impl Candidate {
    fn new(token: &Token, bytes: &impl TokenBytes) -> Self {
        let bytes = bytes.token_bytes(token.id);
        Self {
            token: text(bytes),
            logprob: token.logprob.unwrap_or(NEVER),
            bytes: bytes.to_vec(),
        }
    }
}

impl ChatLogprobs {
    /// Adds a token with its alternatives.
    pub fn push(&mut self, token: &Token, top: &[Token], bytes: &impl TokenBytes) {
        self.content.push(TokenLogprob {
            token: Candidate::new(token, bytes),
            top_logprobs: top
                .iter()
                .map(|token| Candidate::new(token, bytes))
                .collect(),
        });
    }
}

/// Log-probabilities of a completion: lists of the same length.
#[derive(Debug, Default, DeriveSerialize, ToSchema)]
pub struct CompletionLogprobs {
    #[schema(example = json!([" there"]))]
    pub tokens: Vec<String>,
    /// Null for the first token of a prompt, which nothing predicts.
    #[schema(example = json!([-0.34]))]
    pub token_logprobs: Vec<Option<f32>>,
    /// From texts to log-probabilities, the token itself included. Null where `logprobs` is 0, and for the first
    /// token of a prompt.
    #[schema(nullable = true, value_type = Option<Vec<Option<Object>>>)]
    pub top_logprobs: Option<Vec<Option<TopLogprobs>>>,
    /// Where each token begins, in characters of the text.
    #[schema(example = json!([0]))]
    pub text_offset: Vec<usize>,
}

/// An object in the order of the list.
#[derive(Debug)]
pub struct TopLogprobs(Vec<(String, f32)>);

impl TopLogprobs {
    /// The alternatives in one place, best first, and the token that is there.
    fn new(top: &[Token], id: u32, logprob: f32, bytes: &impl TokenBytes) -> Self {
        let alternatives = top
            .iter()
            .map(|token| (token.id, token.logprob.unwrap_or(NEVER)));
        let mut seen = HashSet::new();
        let entries = alternatives
            .chain([(id, logprob)])
            .map(|(id, logprob)| (text(bytes.token_bytes(id)), logprob))
            // Several tokens can have one text; the most likely of them comes first.
            .filter(|(text, _)| seen.insert(text.clone()));
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
    /// Whether alternatives were asked for.
    top: bool,
}

impl CompletionTokens {
    pub fn new(top: bool) -> Self {
        Self { offset: 0, top }
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
        self.add(list, token.id, Some(logprob), token.special, bytes);
        if let Some(tops) = &mut list.top_logprobs {
            tops.push(Some(TopLogprobs::new(top, token.id, logprob, bytes)));
        }
    }

    /// The tokens of a prompt.
    pub fn prompt(
        &mut self,
        prompt: &[PrefillToken],
        bytes: &impl TokenBytes,
    ) -> CompletionLogprobs {
        let mut list = self.list();
        for token in prompt {
            let special = bytes.is_special(token.id);
            self.add(&mut list, token.id, token.logprob, special, bytes);
        }
        if let Some(tops) = &mut list.top_logprobs {
            let top = |token: &PrefillToken| {
                // Nothing predicts the first token.
                let logprob = token.logprob?;
                Some(TopLogprobs::new(
                    &token.top_tokens,
                    token.id,
                    logprob,
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
        special: bool,
        bytes: &impl TokenBytes,
    ) {
        let bytes = bytes.token_bytes(id);
        list.tokens.push(text(bytes));
        list.token_logprobs.push(logprob);
        list.text_offset.push(self.offset);
        // Special tokens are not in the text. A character is counted with its first byte.
        if !special {
            self.offset += bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Ids are places in a list of byte strings.
    struct Table(&'static [&'static [u8]]);

    impl TokenBytes for Table {
        fn token_bytes(&self, id: u32) -> &[u8] {
            self.0[id as usize]
        }

        fn is_special(&self, id: u32) -> bool {
            id == 5
        }
    }

    const TABLE: Table = Table(&[
        b"a",
        b" b",
        "你".as_bytes(),
        b"\xe4\xbd",
        b"\xa0",
        b"<s>",
        b"a",
    ]);

    fn token(id: u32, logprob: Option<f32>) -> Token {
        Token {
            id,
            text: String::new(),
            logprob,
            special: id == 5,
        }
    }

    #[test]
    fn chat_tokens_have_text_and_bytes() {
        let mut logprobs = ChatLogprobs::default();
        logprobs.push(&token(1, Some(-0.5)), &[token(3, None)], &TABLE);
        let expected = json!({"content": [{
            "token": " b", "logprob": -0.5, "bytes": [32, 98],
            "top_logprobs": [{"token": "\u{fffd}", "logprob": -9999.0, "bytes": [0xe4, 0xbd]}]
        }]});
        assert_eq!(serde_json::to_value(logprobs).expect("JSON"), expected);
    }

    #[test]
    fn completion_tokens_have_offsets_in_characters() {
        let mut tokens = CompletionTokens::new(false);
        let first = PrefillToken {
            id: 5,
            text: String::new(),
            logprob: None,
            top_tokens: Vec::new(),
        };
        let mut list = tokens.prompt(&[first], &TABLE);
        for id in [2, 3, 4, 1, 5] {
            tokens.push(&mut list, &token(id, Some(-1.0)), &[], &TABLE);
        }
        assert_eq!(list.text_offset, [0, 0, 1, 2, 2, 4]);
        assert_eq!(list.token_logprobs[..2], [None, Some(-1.0)]);
        assert!(list.top_logprobs.is_none());
        // A later piece of the same text goes on counting.
        let mut list = tokens.list();
        tokens.push(&mut list, &token(0, None), &[], &TABLE);
        assert_eq!(
            (list.text_offset, list.token_logprobs),
            (vec![4], vec![Some(NEVER)])
        );
    }

    #[test]
    fn alternatives_are_an_object_with_the_token_itself() {
        let mut tokens = CompletionTokens::new(true);
        let mut list = tokens.list();
        let top = [token(0, Some(-0.1)), token(6, Some(-0.2))];
        tokens.push(&mut list, &token(1, Some(-3.0)), &top, &TABLE);
        let tops = serde_json::to_string(&list.top_logprobs).expect("JSON");
        assert_eq!(tops, r#"[{"a":-0.1," b":-3.0}]"#);
        // Of a prompt too, but for its first token.
        let prompt = [None, Some(-2.0)].map(|logprob| PrefillToken {
            id: 1,
            text: String::new(),
            logprob,
            top_tokens: top.to_vec(),
        });
        let tops = CompletionTokens::new(true).prompt(&prompt, &TABLE);
        let tops = serde_json::to_string(&tops.top_logprobs).expect("JSON");
        assert_eq!(tops, r#"[null,{"a":-0.1," b":-2.0}]"#);
    }
}
