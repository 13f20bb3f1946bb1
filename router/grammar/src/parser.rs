//! What is asked of the library's parser beyond masks: whether a text ends, and what must follow.

use llguidance::TokenParser;
use toktrie::{Recognizer, TokenId};

/// Whether the text can only end here.
pub(crate) fn advance(parser: &mut TokenParser) -> Result<bool, String> {
    if parser.check_stop().map_err(|error| error.to_string())? {
        return Ok(true);
    }
    // A lexeme that could be longer as far as the library knows, but for which no byte is left.
    Ok(parser.is_accepting()
        && !parser
            .parser
            .with_recognizer(|recognizer| any_byte(recognizer)))
}

/// Whether any byte, the mark of special tokens among them, may come next.
fn any_byte(recognizer: &mut impl Recognizer) -> bool {
    recognizer.trie_started("any_byte");
    let any = (0..=u8::MAX).any(|byte| recognizer.byte_allowed(byte));
    recognizer.trie_finished();
    any
}

/// The tokens that must come next, as a tokenizer that takes the longest tokens writes them.
pub(crate) fn forced(parser: &mut TokenParser) -> Vec<TokenId> {
    let bytes = parser.force_bytes();
    if bytes.is_empty() {
        return Vec::new();
    }
    let env = parser.token_env.clone();
    let (mut tokens, fixed) = env.tokenize_bytes_marker(&bytes);
    // Without those at the end that could be the beginning of a longer token.
    let (open, _) = parser
        .parser
        .with_recognizer(|recognizer| env.tok_trie().chop_tokens(recognizer, &tokens[fixed..]));
    tokens.truncate(tokens.len() - open);
    tokens
}
