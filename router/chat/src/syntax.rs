//! The syntax of chat templates, as transformers has it.

use minijinja::syntax::SyntaxConfig;

/// Blocks take their line with them, as in transformers.
pub(super) fn syntax() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    // Only custom delimiters can be wrong.
    builder.build().unwrap_or_default()
}
