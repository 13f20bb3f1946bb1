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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tokenizers::{byte_fallback, byte_level};

    const EOS: u32 = 2;

    fn assembler(tokenizer: &TextTokenizer, stop: &[&str]) -> TextAssembler {
        let stop: Vec<String> = stop.iter().map(|&stop| stop.to_owned()).collect();
        TextAssembler::new(tokenizer.clone(), &stop)
    }

    fn token(id: u32) -> TokenId {
        TokenId { id, logprob: -0.5 }
    }

    /// Pushes until a stop string is found; the texts of the tokens and the whole text.
    fn generate(assembler: &mut TextAssembler, ids: &[u32]) -> (Vec<String>, bool, String) {
        let (mut texts, mut stopped) = (Vec::new(), false);
        for &id in ids {
            let assembled = assembler.push(token(id));
            texts.push(assembled.token.text);
            stopped = assembled.stopped;
            if stopped {
                break;
            }
        }
        if let Some(last) = texts.last_mut() {
            last.push_str(&assembler.flush());
        }
        (texts, stopped, assembler.finish())
    }

    #[test]
    fn stop_strings_end_the_text_in_and_across_tokens() {
        let tokenizer = byte_fallback();
        let ids = tokenizer.encode("hello the hello 你好!", false).unwrap();
        let texts = [
            " hello", " the", " hello", " ", "", "", "你", "", "", "好", "!",
        ];
        let cases: [(&[&str], usize, &str); 9] = [
            (&[], 11, " hello the hello 你好!"),
            (&["never"], 11, " hello the hello 你好!"),
            (&["ell"], 1, " hell"),
            (&["o t"], 2, " hello t"),
            (&["the hello"], 3, " hello the hello"),
            (&["hello the"], 2, " hello the"),
            (&["好", "!"], 10, " hello the hello 你好"),
            (&["你好!", "e h"], 3, " hello the h"),
            (&["lo", "hell"], 1, " hell"),
        ];
        for (stop, tokens, expected) in cases {
            let (streamed, stopped, text) = generate(&mut assembler(&tokenizer, stop), &ids);
            assert_eq!(text, expected, "{stop:?}");
            assert_eq!(streamed.concat(), expected, "{stop:?}");
            assert_eq!(stopped, tokens < texts.len(), "{stop:?}");
            assert_eq!(streamed.len(), tokens, "{stop:?}");
            assert_eq!(streamed[..tokens - 1], texts[..tokens - 1], "{stop:?}");
        }
    }

    #[test]
    fn nothing_follows_a_stop_string() {
        let tokenizer = byte_fallback();
        let mut assembler = assembler(&tokenizer, &["ell"]);
        let ids = tokenizer.encode("hello the 你", false).unwrap();
        assert!(assembler.push(token(ids[0])).stopped);
        for &id in &ids[1..ids.len() - 1] {
            let assembled = assembler.push(token(id));
            assert!(assembled.stopped);
            assert_eq!(assembled.token.text, "");
        }
        assert_eq!(
            (assembler.flush(), assembler.finish()),
            (String::new(), " hell".to_owned())
        );
    }

    #[test]
    fn special_tokens_are_streamed_and_not_in_the_text() {
        let tokenizer = byte_fallback();
        let mut assembler = assembler(&tokenizer, &[]);
        let ids = tokenizer.encode("hello", false).unwrap();
        let assembled = assembler.push(token(ids[0]));
        assert!(!assembled.token.special);
        let eos = assembler.push(token(EOS)).token;
        assert_eq!((eos.text.as_str(), eos.special), ("</s>", true));
        assert_eq!(assembler.push(token(ids[0])).token.text, " hello");
        assert_eq!(assembler.finish(), " hello hello");
    }

    #[test]
    fn stop_strings_match_the_text_of_special_tokens() {
        let tokenizer = byte_fallback();
        let mut ids = tokenizer.encode("hello", false).unwrap();
        ids.extend([EOS, ids[0]]);
        let cases = [
            ("</s>", " hello</s>"),
            ("</s", " hello</s"),
            ("o<", " hello<"),
        ];
        for (stop, expected) in cases {
            let (streamed, stopped, text) = generate(&mut assembler(&tokenizer, &[stop]), &ids);
            assert!(stopped);
            assert_eq!(
                (streamed.concat().as_str(), text.as_str()),
                (expected, " hello"),
                "{stop}"
            );
        }
    }

    #[test]
    fn an_incomplete_character_is_not_lost() {
        let tokenizer = byte_fallback();
        let ids = tokenizer.encode("hello你", false).unwrap();
        let (incomplete, _) = ids.split_at(ids.len() - 1);
        let (streamed, _, text) = generate(&mut assembler(&tokenizer, &[]), incomplete);
        assert_eq!(
            (streamed.concat().as_str(), text.as_str()),
            (" hello\u{fffd}", " hello\u{fffd}")
        );
        // Before a special token it ends there.
        let (streamed, _, text) = generate(
            &mut assembler(&tokenizer, &[]),
            &[incomplete, &[EOS]].concat(),
        );
        assert_eq!(streamed.last().unwrap(), "\u{fffd}</s>");
        assert_eq!(text, " hello\u{fffd}");
        // `finish` alone loses nothing either.
        let mut assembler = assembler(&tokenizer, &[]);
        for &id in incomplete {
            assembler.push(token(id));
        }
        assert_eq!(assembler.finish(), " hello\u{fffd}");
    }

    #[test]
    fn logprobs_that_are_not_finite_are_none() {
        let tokenizer = byte_level();
        let mut assembler = assembler(&tokenizer, &[]);
        let given = [-0.5, f32::NAN, f32::NEG_INFINITY];
        let tokens = given.map(|logprob| TokenId { id: 40, logprob });
        let expected = [Some(-0.5), None, None];
        assert_eq!(
            tokens.map(|token| assembler.push(token).token.logprob),
            expected
        );
        let top: Vec<_> = assembler
            .top(&tokens)
            .iter()
            .map(|token| token.logprob)
            .collect();
        let prefill: Vec<_> = assembler
            .prefill(&tokens)
            .iter()
            .map(|token| token.logprob)
            .collect();
        assert_eq!(
            (top.as_slice(), prefill.as_slice()),
            (&expected[..], &expected[..])
        );
    }

    #[test]
    fn alternatives_and_prompt_tokens_read_as_in_the_middle_of_a_text() {
        let tokenizer = byte_fallback();
        let assembler = assembler(&tokenizer, &[]);
        let mut ids = tokenizer.encode("hello 你", true).unwrap();
        ids.truncate(4);
        let tokens: Vec<TokenId> = ids.iter().copied().map(token).collect();
        let expected = ["<s>", " hello", " ", "\u{fffd}"];
        let top = assembler.top(&tokens);
        assert_eq!(
            top.iter()
                .map(|token| token.text.as_str())
                .collect::<Vec<_>>(),
            expected
        );
        assert_eq!(
            top.iter().map(|token| token.special).collect::<Vec<_>>(),
            [true, false, false, false]
        );
        let prefill = assembler.prefill(&tokens);
        assert_eq!(
            prefill
                .iter()
                .map(|token| token.text.as_str())
                .collect::<Vec<_>>(),
            expected
        );
        assert_eq!(
            prefill.iter().map(|token| token.id).collect::<Vec<_>>(),
            ids
        );
    }
}
