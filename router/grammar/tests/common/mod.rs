//! A vocabulary of bytes with some longer tokens, and a model that writes what it is told.
#![allow(dead_code)]

use std::sync::Arc;

use text_generation_grammar::{
    Compiler, CompilerLimits, Grammar, GrammarError, GrammarSource, Matcher, TokenEntry, Vocabulary,
};

pub const WORDS: [&str; 12] = [
    "  ", "{\"", "\":", "\": ", "\",", "\"}", "true", "null", "ab", "name", "12", "é",
];
pub const END: u32 = 268;
pub const OTHER_END: u32 = 269;
pub const CALL: u32 = 270;
pub const TOOL_CALLS: u32 = 271;

pub fn entries() -> Vec<TokenEntry> {
    let entry = |bytes: &[u8], special| TokenEntry {
        bytes: bytes.to_vec(),
        special,
    };
    let mut entries: Vec<TokenEntry> = (0..=u8::MAX).map(|byte| entry(&[byte], false)).collect();
    entries.extend(WORDS.iter().map(|word| entry(word.as_bytes(), false)));
    entries.extend(
        ["</s>", "<|end|>", "<|call|>", "[TOOL_CALLS]"].map(|name| entry(name.as_bytes(), true)),
    );
    entries
}

pub fn vocabulary() -> Vocabulary {
    Vocabulary::new(entries(), &[END, OTHER_END]).unwrap()
}

pub fn compiler() -> Compiler {
    Compiler::new(vocabulary(), CompilerLimits::default())
}

pub async fn compile(source: GrammarSource) -> Result<Arc<Grammar>, GrammarError> {
    compiler().compile(source).await
}

/// Feeds a text byte by byte; every byte is in its mask exactly if it is accepted.
pub fn feed(matcher: &mut Matcher, text: &str) -> bool {
    text.bytes().all(|byte| {
        let allowed = matcher.mask().is_ok_and(|mask| mask.allows(byte.into()));
        let mut copy_fails = false;
        if allowed {
            copy_fails = matcher.accept(byte.into()).is_err();
        }
        allowed && !copy_fails
    })
}

/// Whether the grammar allows the whole text and then its end.
pub fn matches(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    feed(&mut matcher, text)
        && matcher
            .mask()
            .is_ok_and(|mask| mask.allows(END) && mask.allows(OTHER_END))
}
