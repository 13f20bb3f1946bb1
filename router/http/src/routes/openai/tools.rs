//! `tools` and `tool_choice` of a chat.

use serde::Deserialize;
use serde_json::Value;
use text_generation_formats::{Tool, ToolChoice, ToolKind};
use utoipa::ToSchema;

use super::sampling::{check, refused};
use crate::conversation::{OfferedTool, ToolWishes, choice_of};
use crate::error::ApiError;
use crate::extract::from_value;

/// A tool that the model may call.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    }
}))]
pub struct ToolBody {
    /// `function`; custom tools are for `/v1/responses`.
    #[serde(default = "function")]
    pub r#type: String,
    #[schema(nullable = true)]
    pub function: Option<FunctionBody>,
}

fn function() -> String {
    "function".to_owned()
}

/// A function with named arguments.
#[derive(Debug, Deserialize, ToSchema)]
pub struct FunctionBody {
    /// Letters, digits and `_-.:/`.
    #[schema(min_length = 1, max_length = 240)]
    pub name: String,
    #[schema(nullable = true)]
    pub description: Option<String>,
    /// JSON schema of the arguments.
    #[serde(alias = "arguments")]
    #[schema(nullable = true, value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Whether the arguments must follow the schema; a schema that cannot be enforced is refused.
    #[schema(nullable = true)]
    pub strict: Option<bool>,
}

/// What may be done with the tools.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected `auto`, `none`, `required`, or an object that names tools"
)]
pub enum ToolChoiceBody {
    /// `auto`, `none`, `required`, or as in TGI the name of a function.
    Word(String),
    Object(ToolChoiceObject),
}

/// A choice of tools by name.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"type": "function", "function": {"name": "get_weather"}}))]
pub struct ToolChoiceObject {
    /// `function` or `allowed_tools`.
    #[serde(default = "function")]
    pub r#type: String,
    #[schema(nullable = true)]
    pub function: Option<ToolName>,
    #[schema(nullable = true)]
    pub allowed_tools: Option<AllowedTools>,
}

/// The name of a tool.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ToolName {
    pub name: String,
}

/// Those of the tools that may be called; the others are as good as absent.
#[derive(Debug, Deserialize, ToSchema)]
pub struct AllowedTools {
    /// `auto` or `required`.
    #[schema(example = "auto")]
    pub mode: String,
    pub tools: Vec<AllowedTool>,
}

/// A tool that may be called.
#[derive(Debug, Deserialize, ToSchema)]
pub struct AllowedTool {
    pub function: ToolName,
}

/// What a chat says of tools.
///
/// # Errors
/// 422 that names the field.
pub fn wishes(
    tools: Option<Vec<Value>>,
    choice: Option<ToolChoiceBody>,
    parallel: Option<bool>,
    prompt: Option<String>,
) -> Result<ToolWishes, ApiError> {
    let mut wishes = ToolWishes {
        parallel: parallel.unwrap_or(true),
        prompt,
        ..ToolWishes::default()
    };
    for (index, tool) in tools.unwrap_or_default().into_iter().enumerate() {
        let at = format!("tools[{index}]");
        wishes.offer(&format!("{at}.function"), "parameters", offered(&at, tool)?)?;
    }
    let choice = chosen(&mut wishes, choice)?;
    wishes.choose(choice)?;
    Ok(wishes)
}

fn offered(at: &str, json: Value) -> Result<OfferedTool, ApiError> {
    let body: ToolBody = from_value(&json, at)?;
    check(body.r#type == "function", || {
        format!("`{at}.type` must be `function`; custom tools are for `/v1/responses`")
    })?;
    let function = body
        .function
        .ok_or_else(|| refused(format!("`{at}.function` is missing")))?;
    Ok(OfferedTool::as_sent(function_tool(function, at)?, json))
}

fn function_tool(function: FunctionBody, at: &str) -> Result<Tool, ApiError> {
    let is_schema = |schema: &Value| schema.is_object() || schema.is_boolean();
    check(function.parameters.as_ref().is_none_or(is_schema), || {
        format!("`{at}.function.parameters` must be a JSON schema")
    })?;
    Ok(Tool {
        name: function.name,
        description: function.description,
        kind: ToolKind::Function {
            parameters: function.parameters,
        },
        strict: function.strict.unwrap_or(false),
    })
}

/// What `tool_choice` says; tools that it does not allow are dropped.
fn chosen(wishes: &mut ToolWishes, choice: Option<ToolChoiceBody>) -> Result<ToolChoice, ApiError> {
    let object = match choice {
        None => return Ok(ToolChoice::Auto),
        Some(ToolChoiceBody::Word(word)) => {
            return match choice_of(&word) {
                Some(choice) => Ok(choice),
                None => Ok(ToolChoice::Named(known(wishes, &word)?)),
            };
        }
        Some(ToolChoiceBody::Object(object)) => object,
    };
    match (object.allowed_tools, object.function) {
        (Some(allowed), _) => {
            allow(wishes, &allowed)?;
            let mode = choice_of(&allowed.mode).filter(|mode| *mode != ToolChoice::None);
            mode.ok_or_else(|| {
                refused("`tool_choice.allowed_tools.mode` must be `auto` or `required`")
            })
        }
        (None, Some(tool)) => Ok(ToolChoice::Named(known(wishes, &tool.name)?)),
        (None, None) => Err(refused("`tool_choice` names no tool")),
    }
}

/// Drops tools that may not be called.
fn allow(wishes: &mut ToolWishes, allowed: &AllowedTools) -> Result<(), ApiError> {
    let names = allowed.tools.iter();
    let names = names.map(|tool| known(wishes, &tool.function.name));
    let names = names.collect::<Result<Vec<_>, _>>()?;
    wishes
        .tools
        .retain(|offered| names.contains(&offered.tool.name));
    Ok(())
}

fn known(wishes: &ToolWishes, name: &str) -> Result<String, ApiError> {
    check(wishes.has(name), || {
        "`tool_choice` names a tool that is not among `tools`".to_owned()
    })?;
    Ok(name.to_owned())
}
