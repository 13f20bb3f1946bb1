//! Changes to the text of a template before it is compiled.

use minijinja::machinery::{Span, Token, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::limits::Limit;

/// Tokens of tags that no text separates, and `elif`s of a template.
const MOST_PARTS: usize = 4096;

/// A variable that is 1.
pub(super) const ONE: &str = "_1";

/// Rewrites what the engine lacks or does without limits:
///
/// - `{% generation %}`, which marks what to train on, becomes a block that does nothing.
/// - Lines end with a line feed alone.
/// - `a * b` becomes `a * _1 * b`, so that products of constants are not computed, without limits, by the compiler.
///
/// A template that cannot be tokenised stays as it is: the compiler will say why.
///
/// # Errors
/// A tag, or an `if` with its `elif`s, of so many parts that the compiler, which recurses, would overflow its stack.
pub(super) fn rewritten(source: &str, syntax: SyntaxConfig) -> Result<String, Limit> {
    let source = &source.replace("\r\n", "\n").replace('\r', "\n");
    let tokens: Vec<_> = tokenize(source, false, syntax)
        .map_while(Result::ok)
        .collect();
    let is_elif = |(token, _): &&(Token<'_>, Span)| matches!(token, Token::Ident("elif"));
    let is_text = |(token, _): &(Token<'_>, Span)| matches!(token, Token::TemplateData(_));
    let longest = tokens.split(is_text).map(<[_]>::len).max().unwrap_or(0);
    if longest > MOST_PARTS || tokens.iter().filter(is_elif).count() > MOST_PARTS {
        return Err(Limit::Parts(MOST_PARTS));
    }
    let mut text = String::with_capacity(source.len() + 64);
    let mut copied = 0;
    for (index, (token, span)) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|before| tokens.get(before));
        let new = match (before.map(|(token, _)| token), token) {
            (Some(Token::BlockStart), Token::Ident("generation")) => "with",
            (Some(Token::BlockStart), Token::Ident("endgeneration")) => "endwith",
            // Not a product: the list of arguments in `f(*list)`.
            (Some(Token::ParenOpen | Token::Comma), Token::Mul) => continue,
            (_, Token::Mul) => "*_1*",
            _ => continue,
        };
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        text.push_str(source.get(copied..start).unwrap_or_default());
        text.push_str(new);
        copied = end;
    }
    text.push_str(source.get(copied..).unwrap_or_default());
    Ok(text)
}
