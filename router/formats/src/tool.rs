//! Tools of a request, and the choice among them.

use serde_json::Value;

/// Longest name of a tool, in bytes. The parsers take 256 for a name, with what some formats write around it.
pub const MAX_TOOL_NAME: usize = 240;

/// Whether calls can be read whose tool has this name, in whichever format: there are letters, digits and `_-.:/` in it,
/// and not too many.
pub fn is_tool_name(name: &str) -> bool {
    (1..=MAX_TOOL_NAME).contains(&name.len()) && name.chars().all(is_in_name)
}

pub(crate) fn is_in_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | '/' | ':')
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    pub kind: ToolKind,
    /// Arguments are held to the schema while they are sampled, also where the model is free to call or not.
    pub strict: bool,
}

/// What a tool takes.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolKind {
    /// A JSON object that fits a JSON schema; without one, any object.
    Function { parameters: Option<Value> },
    /// Free text. Formats write it as the argument `input` of type string.
    Custom { grammar: Option<CustomGrammar> },
}

/// What the text of a custom tool must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CustomGrammar {
    Lark(String),
    Regex(String),
}

/// Whether and what the model has to call. `allowed_tools` is a shorter list of tools.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

impl ToolChoice {
    /// Whether the answer has to be a call.
    pub fn demands_call(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_))
    }
}

/// The argument that carries the text of a custom tool.
pub const CUSTOM_INPUT: &str = "input";

impl Tool {
    /// The JSON schema of the arguments, if there is one.
    pub fn parameters(&self) -> Option<&Value> {
        match &self.kind {
            ToolKind::Function { parameters } => parameters.as_ref(),
            ToolKind::Custom { .. } => None,
        }
    }
}
