//! Formats in which models write reasoning and tool calls.
//!
//! A [`Format`] is a declaration: the markers around reasoning and calls, how a call names its tool, how its arguments
//! are written. From it come an [`OutputParser`], which turns generated text into [`Delta`]s as it comes, and the
//! grammar that holds a model to the tools of a request.

mod builtin;
mod delta;
mod detect;
mod error;
mod format;
mod grammar;
mod ids;
mod json;
mod parser;
mod probe;
mod response_template;
mod schema;
mod text;
mod tool;
mod write;

pub use delta::Delta;
pub use detect::{Detected, Evidence, Found};
pub use error::FormatError;
pub use format::Format;
pub use grammar::{ANSWER, Constraint, SpecialTokens};
pub use ids::IdSource;
pub use parser::{OutputParser, ParserOptions};
pub use probe::{Probe, probes};
pub use tool::{
    CUSTOM_INPUT, CustomGrammar, MAX_TOOL_NAME, Tool, ToolChoice, ToolKind, is_tool_name,
};
