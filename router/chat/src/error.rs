//! Errors of a chat that could not be turned into a prompt.

use super::limits::Limit;

/// Every one of these belongs to the request or to the model's files; none of them harms another request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChatTemplateError {
    #[error(
        "this model has no chat template: send plain text to `/generate` or `/v1/completions`, \
         or start the server with `--tokenizer-config-path`"
    )]
    Missing,
    /// A file of the model, or the one of `--tokenizer-config-path`, cannot be used.
    #[error("{file}: {reason}")]
    File { file: String, reason: String },
    /// The template is not a template.
    #[error("the chat template `{name}` of this model cannot be compiled: {reason}")]
    Syntax { name: String, reason: String },
    /// The template itself refused the conversation, by `raise_exception`.
    #[error("the chat template refused the conversation: {0}")]
    Raised(String),
    #[error("the chat template failed: {0}")]
    Render(String),
    #[error("the chat template {0}")]
    Limit(Limit),
    /// A field of the request.
    #[error("`{field}` {reason}")]
    Input { field: String, reason: String },
}

impl ChatTemplateError {
    /// The `error_type` of the TGI contract.
    pub fn error_type(&self) -> &'static str {
        "template_error"
    }

    pub(super) fn input(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Input {
            field: field.into(),
            reason: reason.into(),
        }
    }
}
