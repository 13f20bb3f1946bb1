//! A small vocabulary under llguidance: a token for every byte, for words of the formats, and for special tokens.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use text_generation_formats::SpecialTokens;

use crate::common::SPECIAL;

const WORDS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "</parameter>",
    "\n</parameter>",
    "</arg_value>",
    "</",
    "parameter>",
    "{\"",
    "\":",
    " \"",
    "\"}",
    "}}",
    "ing",
    "weather",
    "get",
    "<function",
    "functools[",
    "</function>",
    "analysis",
    "final",
    "commentary",
    "city",
    "\n\n",
];

pub struct Vocabulary {
    factory: ParserFactory,
    words: Vec<Vec<u8>>,
    pub special: SpecialTokens,
    pub eos: u32,
}

impl Vocabulary {
    pub fn new() -> Self {
        let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        // No UTF-8 text has this byte, which marks special tokens.
        words[255] = Vec::new();
        words.extend(WORDS.iter().map(|word| word.as_bytes().to_vec()));
        let first = words.len() as u32;
        words.extend(
            SPECIAL
                .iter()
                .map(|name| [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()),
        );
        let special = SPECIAL
            .iter()
            .zip(first..)
            .map(|(name, id)| ((*name).to_owned(), id))
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, first), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory =
            ParserFactory::new(&env, InferenceCapabilities::default(), &[]).expect("the factory");
        factory.quiet();
        Self {
            factory,
            words,
            special,
            eos: first,
        }
    }

    pub fn matcher(&self, grammar: &str) -> Matcher {
        self.compiled(TopLevelGrammar::from_lark(grammar.to_owned()))
    }

    fn compiled(&self, grammar: TopLevelGrammar) -> Matcher {
        let text = format!("{:?}", grammar.grammars[0].lark_grammar);
        let mut matcher = Matcher::new(self.factory.create_parser(grammar));
        assert!(!matcher.is_error(), "{:?}\n{text}", matcher.get_error());
        let warnings = matcher.grammar_warnings();
        assert!(warnings.is_empty(), "{warnings:?}\n{text}");
        matcher
    }

    /// Special tokens as such, everything else by the longest words.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let token = (0..self.words.len())
                .filter(|&id| {
                    let word = &self.words[id];
                    let word = word
                        .strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER])
                        .unwrap_or(word);
                    !word.is_empty() && rest.as_bytes().starts_with(word)
                })
                .max_by_key(|&id| self.words[id].len());
            let id = token.expect("every byte has a token");
            if self.words[id].len() == 1 {
                let character = rest.chars().next().expect("the text goes on");
                ids.extend(
                    rest.as_bytes()[..character.len_utf8()]
                        .iter()
                        .map(|byte| u32::from(*byte)),
                );
                rest = &rest[character.len_utf8()..];
            } else {
                ids.push(id as u32);
                rest = &rest[self.bytes(id as u32).len()..];
            }
        }
        ids
    }

    pub fn bytes(&self, id: u32) -> &[u8] {
        let word = &self.words[id as usize];
        word.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER])
            .unwrap_or(word)
    }

    /// Whether the grammar takes the whole text, token by token, and may end there.
    pub fn accepts(&self, grammar: &str, text: &str) -> bool {
        self.takes(self.matcher(grammar), text)
    }

    /// The same with another grammar, which `grammar` refers to by its name.
    pub fn accepts_around(&self, grammar: &str, (name, inner): (&str, &str), text: &str) -> bool {
        let mut all = TopLevelGrammar::from_lark(grammar.to_owned());
        let mut inner = GrammarWithLexer::from_lark(inner.to_owned());
        inner.name = Some(name.to_owned());
        all.grammars.push(inner);
        self.takes(self.compiled(all), text)
    }

    fn takes(&self, mut matcher: Matcher, text: &str) -> bool {
        for id in self.encode(text) {
            if matcher.is_stopped() || !matcher.compute_mask().expect("a mask").is_allowed(id) {
                return false;
            }
            matcher.consume_token(id).expect("an allowed token");
        }
        matcher.is_stopped() || matcher.is_accepting().expect("no error")
    }
}
