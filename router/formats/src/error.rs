//! Reasons why there is no grammar for a request.

use thiserror::Error;

/// What a request asks for and cannot have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FormatError {
    /// `tool_choice` names a tool that is not among the tools.
    #[error(
        "`tool_choice` names the tool `{name}`, which is not in `tools`; add it or choose another one"
    )]
    UnknownTool { name: String },
    /// A call is required and there is nothing to call.
    #[error("`tool_choice` requires a call, but `tools` is empty; give tools or choose `auto`")]
    NoTools,
    /// The model's format has no calls.
    #[error(
        "the format `{format}` of this model has no tool calls; name another one with --tool-call-parser"
    )]
    NoCalls { format: String },
    /// The format writes the input of custom tools in a way that this cannot be enforced in.
    #[error(
        "{part} of the tool `{tool}` cannot be enforced in the format `{format}` of this model; leave it out"
    )]
    NotEnforceable {
        tool: String,
        part: String,
        format: String,
    },
    /// The grammar of the tools is larger than any that is compiled.
    #[error(
        "`tools` make a grammar of more than {limit} bytes in the format `{format}` of this model; use fewer or smaller tools"
    )]
    TooLarge { format: String, limit: usize },
}
