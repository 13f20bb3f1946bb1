//! Texts of the library, as messages of ours repeat them, and texts as the library reads them.

use serde_json::Value;

/// The library adds its state, source lines and backtraces on further lines, and whole sources to some messages.
pub(crate) fn first_line(message: &str) -> String {
    const LONGEST: usize = 300;
    let line = message.lines().next().unwrap_or_default();
    line.chars().take(LONGEST).collect()
}

/// A text as a string of Lark, which are those of JSON but without the character 127.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\x7f', "\\u007f")
}
