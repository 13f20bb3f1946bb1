//! The text side of one running request: ids in, tokens with text, stop strings and the whole answer out.

use std::sync::Arc;

use text_generation_client::types::TokenId;

use crate::detokenize::Detokenizer;
use crate::queue::PromptToken;
use crate::stop::StopMatcher;
use crate::stop_buffer::StopBuffer;
use crate::tokenize::TextTokenizer;
use crate::types::{Dialect, PrefillToken, Token};

/// A generated token, and whether a stop string ended in it.
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
    hidden: Hidden,
    /// Tokens that are not in the text where they end it.
    ends: Arc<[u32]>,
    /// Whether the text of a hidden token is in its [`Token`].
    tells_hidden: bool,
    stop: Stop,
    /// So many tokens must come before a stop string may end the text.
    min_tokens: u32,
    tokens: u32,
    stopped: bool,
    /// So far, without hidden tokens.
    text: String,
}

/// Which tokens are not in the text.
#[derive(Debug, Clone)]
enum Hidden {
    /// All special ones.
    Special,
    /// These alone.
    Only(Arc<[u32]>),
    Nothing,
}

/// What becomes of a stop string.
#[derive(Debug, Clone)]
enum Stop {
    /// It stays in the text.
    Kept(StopMatcher),
    /// The text ends before it.
    Cut(StopBuffer),
}

impl Stop {
    /// See [`StopMatcher::hold`].
    fn hold(&mut self, held: bool) {
        match self {
            Self::Kept(stop) => stop.hold(held),
            Self::Cut(buffer) => buffer.hold(held),
        }
    }
}

impl TextAssembler {
    pub fn new(tokenizer: TextTokenizer, stop: &[String], dialect: Dialect) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer.clone()),
            tokenizer,
            hidden: Hidden::Special,
            ends: Arc::default(),
            tells_hidden: dialect == Dialect::Tgi,
            min_tokens: 0,
            tokens: 0,
            stop: match dialect {
                Dialect::Tgi => Stop::Kept(StopMatcher::new(stop)),
                Dialect::OpenAi => Stop::Cut(StopBuffer::new(stop)),
            },
            stopped: false,
            text: String::new(),
        }
    }

    /// Special tokens are in the text as any other, but for `ends`, which only end it: whoever reads tool calls out of
    /// the text looks for the markers around them.
    pub fn keeping_special_tokens(mut self, ends: Arc<[u32]>) -> Self {
        self.hidden = Hidden::Only(ends);
        self
    }

    /// Special tokens are in the text as any other.
    pub fn showing_special_tokens(mut self) -> Self {
        self.hidden = Hidden::Nothing;
        self
    }

    /// A stop string stays in the text, or it does not, whatever the dialect says.
    pub fn including_stop(mut self, stop: &[String], included: bool) -> Self {
        self.stop = if included {
            Stop::Kept(StopMatcher::new(stop))
        } else {
            Stop::Cut(StopBuffer::new(stop))
        };
        self
    }

    /// These tokens are not in the text where they end it.
    pub fn without_ends(mut self, ends: Arc<[u32]>) -> Self {
        self.ends = ends;
        self
    }

    /// Stop strings that end within the first `min_tokens` tokens do not end the text.
    pub fn after(mut self, min_tokens: u32) -> Self {
        self.min_tokens = min_tokens;
        self
    }

    /// The text is without its beginning `text`: the tokens begin within the prompt.
    pub fn skipping(mut self, text: &str) -> Self {
        self.detokenizer = self.detokenizer.skipping(text);
        self
    }

    fn is_hidden(&self, id: u32) -> bool {
        match &self.hidden {
            Hidden::Special => self.tokenizer.is_special(id),
            Hidden::Only(ends) => ends.contains(&id),
            Hidden::Nothing => false,
        }
    }

    /// The next token. Its text is empty while a character is incomplete; the token that completes it carries it. In
    /// the dialect of OpenAI the text that follows is empty too while it may be the beginning of a stop string, and
    /// hidden tokens have no text. After a stop string nothing adds text any more.
    pub fn push(&mut self, token: TokenId) -> Assembled {
        self.assemble(token, self.is_hidden(token.id))
    }

    /// The token that ends the text by itself, as an end-of-sequence token does.
    pub fn push_end(&mut self, token: TokenId) -> Assembled {
        let hidden = self.is_hidden(token.id) || self.ends.contains(&token.id);
        self.assemble(token, hidden)
    }

    fn assemble(&mut self, token: TokenId, hidden: bool) -> Assembled {
        self.tokens = self.tokens.saturating_add(1);
        self.stop.hold(self.tokens <= self.min_tokens);
        let text = if self.stopped {
            String::new()
        } else {
            self.advance(token.id, hidden)
        };
        Assembled {
            token: Token {
                id: token.id,
                text,
                logprob: finite(token.logprob),
                special: self.tokenizer.is_special(token.id),
            },
            stopped: self.stopped,
        }
    }

    /// The text that a token adds, while no stop string was found.
    fn advance(&mut self, id: u32, hidden: bool) -> String {
        // A hidden token ends a character that is incomplete.
        let (mut text, hidden) = if hidden {
            let hidden = self.tokenizer.token_text(id);
            (self.detokenizer.flush(), Some(hidden))
        } else {
            (self.detokenizer.push(id), None)
        };
        match &mut self.stop {
            Stop::Kept(stop) => {
                let mut shown = text.len();
                text.push_str(hidden.as_deref().unwrap_or_default());
                if let Some(found) = stop.push(&text) {
                    self.stopped = true;
                    text.truncate(found.end);
                    shown = shown.min(found.end);
                }
                self.text.push_str(&text[..shown]);
                if !self.tells_hidden {
                    text.truncate(shown);
                }
                text
            }
            Stop::Cut(buffer) => {
                let mut out = String::new();
                let told = hidden.clone().filter(|_| self.tells_hidden);
                self.stopped = buffer.push(text, true, &mut out)
                    || hidden.is_some_and(|hidden| buffer.push(hidden, false, &mut out));
                self.text.push_str(&out);
                out + &told.unwrap_or_default()
            }
        }
    }

    /// Text of a character that the generation left incomplete, U+FFFD or nothing, and text that waited for a stop
    /// string. It belongs to the last token.
    pub fn flush(&mut self) -> String {
        let mut text = String::new();
        if !self.stopped {
            if let Stop::Cut(buffer) = &mut self.stop {
                buffer.flush(&mut text);
            }
            text.push_str(&self.detokenizer.flush());
        }
        self.text.push_str(&text);
        text
    }

    /// The stop string that ended the text.
    pub fn stop_sequence(&self) -> Option<&str> {
        match &self.stop {
            Stop::Kept(stop) => stop.found(),
            Stop::Cut(buffer) => buffer.found(),
        }
    }

    /// The whole generated text: the joined texts of the tokens without the hidden ones. Nothing follows a stop string
    /// that was found; whether it is there itself, the dialect says, but it is not where it was part of a hidden
    /// token. Call it once, at the end.
    pub fn finish(&mut self) -> String {
        self.flush();
        std::mem::take(&mut self.text)
    }

    /// Alternatives for the next token, each with the text that it would have in its place; bytes that are no whole
    /// character show as U+FFFD.
    pub fn top(&self, tokens: &[TokenId]) -> Vec<Token> {
        self.named(tokens, |id| self.detokenizer.alternative(id))
    }

    /// The tokens of the prompt, with the texts that they have after other text.
    pub(crate) fn prefill(&self, prompt: &[PromptToken]) -> Vec<PrefillToken> {
        let text = |id| self.tokenizer.token_text(id);
        let token = |PromptToken { token, top_tokens }: &PromptToken| PrefillToken {
            id: token.id,
            text: text(token.id),
            logprob: finite(token.logprob),
            top_tokens: self.named(top_tokens, text),
        };
        prompt.iter().map(token).collect()
    }

    fn named(&self, tokens: &[TokenId], text: impl Fn(u32) -> String) -> Vec<Token> {
        let token = |token: &TokenId| Token {
            id: token.id,
            text: text(token.id),
            logprob: finite(token.logprob),
            special: self.tokenizer.is_special(token.id),
        };
        tokens.iter().map(token).collect()
    }
}

fn finite(logprob: f32) -> Option<f32> {
    logprob.is_finite().then_some(logprob)
}

#[cfg(test)]
mod tests;
