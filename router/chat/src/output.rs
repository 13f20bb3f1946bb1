//! A prompt as it grows, up to a limit.

use std::io::{Error, Result, Write};

use super::ChatTemplateError;

/// Takes what a template writes.
#[derive(Debug)]
pub(super) struct Output {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl Output {
    /// For at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
            full: false,
        }
    }

    /// Whether the template wrote more than the limit.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    pub(super) fn into_text(self) -> std::result::Result<String, ChatTemplateError> {
        String::from_utf8(self.bytes).map_err(|error| ChatTemplateError::Render(error.to_string()))
    }
}

impl Write for Output {
    fn write(&mut self, text: &[u8]) -> Result<usize> {
        if text.len() > self.limit - self.bytes.len() {
            self.full = true;
            return Err(Error::other("the prompt is too long"));
        }
        self.bytes.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
