//! Tools of a request.

use serde_json::{Value, json};
use text_generation_formats::{MAX_TOOL_NAME, Tool, ToolChoice, ToolKind, is_tool_name};
use text_generation_grammar::check_types;

use crate::bounds::MAX_TOOLS;
use crate::error::{ApiError, refused};

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
    /// Adds a tool, which `field` of the request describes with `parameters` as the key of its schema.
    ///
    /// # Errors
    /// 422 when there is one of this name, calls by this name could not be read, or there are too many.
    pub fn offer(
        &mut self,
        field: &str,
        parameters: &str,
        mut tool: OfferedTool,
    ) -> Result<(), ApiError> {
        if self.tools.len() == MAX_TOOLS {
            return Err(refused(format_args!(
                "`tools` must hold at most {MAX_TOOLS} tools"
            )));
        }
        let name = &tool.tool.name;
        if !is_tool_name(name) {
            return Err(refused(format_args!(
                "`{field}.name` must be 1 to {MAX_TOOL_NAME} bytes of letters, digits and `_-.:/`"
            )));
        }
        if self.has(name) {
            return Err(refused(format_args!(
                "`{field}.name`: there are two tools `{name}`"
            )));
        }
        tool.parameters_field = format!("{field}.{parameters}");
        self.tools.push(tool);
        Ok(())
    }

    /// Whether there is a tool of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tools.iter().any(|offered| offered.tool.name == name)
    }

    /// Takes the value of `tool_choice`, after the tools are known.
    ///
    /// # Errors
    /// 422 when it demands a call and there is nothing to call.
    pub fn choose(&mut self, choice: ToolChoice) -> Result<(), ApiError> {
        if choice.demands_call() && self.tools.is_empty() {
            return Err(refused(
                "`tool_choice` demands a call, and `tools` has none that this server can let a model call",
            ));
        }
        self.choice = choice;
        Ok(())
    }

    /// Refuses parameters that calls cannot be held to, where they are: the call is demanded, the tool is strict, or the
    /// answer has a form (`has_form`).
    ///
    /// # Errors
    /// 422 that names the tool's field.
    pub fn check_parameters(&self, has_form: bool) -> Result<(), ApiError> {
        let is_held = |offered: &&OfferedTool| match &self.choice {
            ToolChoice::None => false,
            ToolChoice::Named(name) => offered.tool.name == *name,
            ToolChoice::Required => true,
            ToolChoice::Auto => has_form || offered.tool.strict,
        };
        self.tools
            .iter()
            .filter(is_held)
            .try_for_each(OfferedTool::check_parameters)
    }

    /// Whether the model may call anything.
    pub fn wanted(&self) -> bool {
        !self.tools.is_empty() && self.choice != ToolChoice::None
    }
}

/// The choice that one of the words `auto`, `none` and `required` stands for.
pub fn choice_of(word: &str) -> Option<ToolChoice> {
    match word {
        "auto" => Some(ToolChoice::Auto),
        "none" => Some(ToolChoice::None),
        "required" => Some(ToolChoice::Required),
        _ => None,
    }
}

/// A tool, and how the template is shown it.
#[derive(Debug, Clone)]
pub struct OfferedTool {
    pub tool: Tool,
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`, the form that templates read.
    pub json: Value,
    /// Where the request has the schema of its arguments; known once it is offered.
    parameters_field: String,
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
            parameters_field: String::new(),
        }
    }

    /// A tool that the client has described in the form that templates read; the template gets it as it is.
    pub fn as_sent(tool: Tool, json: Value) -> Self {
        Self {
            tool,
            json,
            parameters_field: String::new(),
        }
    }

    fn check_parameters(&self) -> Result<(), ApiError> {
        let ToolKind::Function {
            parameters: Some(schema),
        } = &self.tool.kind
        else {
            return Ok(());
        };
        let field = &self.parameters_field;
        check_types(schema)
            .map_err(|error| refused(format_args!("`{field}` is not valid: {error}")))?;
        let is_object = match schema.get("type") {
            None => true,
            Some(Value::Array(types)) => types.iter().any(|name| name == "object"),
            Some(name) => name == "object",
        };
        match is_object {
            true => Ok(()),
            false => Err(refused(format_args!(
                "`{field}.type` must be `object`: the arguments of a call are one"
            ))),
        }
    }
}
