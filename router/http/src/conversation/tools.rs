//! What a request says of tools.

use serde_json::{Value, json};
use text_generation_formats::{Tool, ToolChoice, ToolKind};

/// The tools of a request and what may be done with them.
#[derive(Debug, Clone)]
pub struct ToolWishes {
    /// Those that may be called.
    pub tools: Vec<OfferedTool>,
    pub choice: ToolChoice,
    /// Whether one answer may have several calls.
    pub parallel: bool,
    /// What the model is told of tools where its template cannot do so; TGI's words when unset.
    pub prompt: Option<String>,
}

impl Default for ToolWishes {
    fn default() -> Self {
        Self {
            tools: Vec::new(),
            choice: ToolChoice::Auto,
            parallel: true,
            prompt: None,
        }
    }
}

impl ToolWishes {
    /// Whether the model may call anything.
    pub fn wanted(&self) -> bool {
        !self.tools.is_empty() && self.choice != ToolChoice::None
    }
}

/// A tool, and how the template is shown it.
#[derive(Debug, Clone)]
pub struct OfferedTool {
    pub tool: Tool,
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`, the form that templates read.
    pub json: Value,
}

impl OfferedTool {
    /// Shows the template what it reads of any tool. A custom tool looks like a function of one text, its input.
    pub fn new(tool: Tool) -> Self {
        let parameters = match &tool.kind {
            ToolKind::Function { parameters } => parameters.clone(),
            ToolKind::Custom { .. } => Some(json!({
                "type": "object",
                "properties": {"input": {"type": "string"}},
                "required": ["input"],
            })),
        };
        let mut function = json!({"name": tool.name});
        if let Some(description) = &tool.description {
            function["description"] = description.as_str().into();
        }
        if let Some(parameters) = parameters {
            function["parameters"] = parameters;
        }
        Self {
            json: json!({"type": "function", "function": function}),
            tool,
        }
    }

    /// A tool that the client has described in the form that templates read; the template gets it as it is.
    pub fn as_sent(tool: Tool, json: Value) -> Self {
        Self { tool, json }
    }
}
