//! The text side of one running request: ids in, tokens with text, stop strings and the whole answer out.

use text_generation_client::types::TokenId;

use crate::detokenize::Detokenizer;
use crate::stop::StopMatcher;
use crate::tokenize::TextTokenizer;
use crate::types::{PrefillToken, Token};

/// A generated token, and whether a stop string ended in it. Then its text ends with the stop string.
#[derive(Debug, Clone, PartialEq)]
pub struct Assembled {
    pub token: Token,
    pub stopped: bool,
}

/// Assembles the text of one request. Stop strings are looked for in the text of all tokens, the special ones too.
#[derive(Debug, Clone)]
pub struct TextAssembler {
    tokenizer: TextTokenizer,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    stopped: bool,
    /// So far, without special tokens.
    text: String,
}

impl TextAssembler {
    pub fn new(tokenizer: TextTokenizer, stop: &[String]) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer.clone()),
            tokenizer,
            stop: StopMatcher::new(stop),
            stopped: false,
            text: String::new(),
        }
    }

    /// The next token. Its text is empty while a character is incomplete; the token that completes it carries it.
    /// After a stop string nothing adds text any more.
    pub fn push(&mut self, token: TokenId) -> Assembled {
        let special = self.tokenizer.is_special(token.id);
        let mut text = String::new();
        if !self.stopped {
            let mut shown;
            if special {
                text = self.detokenizer.flush();
                shown = text.len();
                text.push_str(&self.tokenizer.token_text(token.id));
            } else {
                text = self.detokenizer.push(token.id);
                shown = text.len();
            }
            if let Some(end) = self.stop.push(&text) {
                self.stopped = true;
                text.truncate(end);
                shown = shown.min(end);
            }
            self.text.push_str(&text[..shown]);
        }
        Assembled {
            token: Token {
                id: token.id,
                text,
                logprob: finite(token.logprob),
                special,
            },
            stopped: self.stopped,
        }
    }

    /// Text of a character that the generation left incomplete, U+FFFD or nothing. It belongs to the last token.
    pub fn flush(&mut self) -> String {
        let text = if self.stopped {
            String::new()
        } else {
            self.detokenizer.flush()
        };
        self.text.push_str(&text);
        text
    }

    /// The whole generated text: the joined texts of the tokens without the special ones. When a stop string was
    /// found, nothing follows it; it is there unless it was part of a special token. Call it once, at the end.
    pub fn finish(&mut self) -> String {
        self.flush();
        std::mem::take(&mut self.text)
    }

    /// Alternatives for a token, each with the text that it has after other text; bytes that are no whole character
    /// show as U+FFFD.
    pub fn top(&self, tokens: &[TokenId]) -> Vec<Token> {
        let token = |token: &TokenId| Token {
            id: token.id,
            text: self.tokenizer.token_text(token.id),
            logprob: finite(token.logprob),
            special: self.tokenizer.is_special(token.id),
        };
        tokens.iter().map(token).collect()
    }

    /// The tokens of the prompt, with texts as in [`top`](Self::top).
    pub fn prefill(&self, tokens: &[TokenId]) -> Vec<PrefillToken> {
        let token = |token: &TokenId| PrefillToken {
            id: token.id,
            text: self.tokenizer.token_text(token.id),
            logprob: finite(token.logprob),
        };
        tokens.iter().map(token).collect()
    }
}

fn finite(logprob: f32) -> Option<f32> {
    logprob.is_finite().then_some(logprob)
}
