//! Bodies that clients send to `/v1/messages`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use text_generation_chat::{ChatInput, SystemMessages};
use text_generation_core::types::GenerateParameters;
use text_generation_formats::{Tool, ToolChoice, ToolKind};
use text_generation_grammar::GrammarSource;
use utoipa::ToSchema;

use super::{content, error};
use crate::conversation::{Conversation, OfferedTool, ReasoningWishes, ToolWishes};
use crate::error::ApiError;
use crate::extract::nullable_object;
use crate::generations::Names;
use crate::routes::openai::fields::{Seed, Stop, ThinkingBody};
use crate::routes::openai::sampling::{Sampling, check, refused};
use crate::routes::openai::sampling_body::sampling_body;
use crate::routes::openai::structured::schema;
use crate::state::AppState;

/// What the fields of `core` are called here.
pub const NAMES: &Names = &[
    ("inputs", "messages"),
    ("max_new_tokens", "max_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("truncate", "truncate_prompt_tokens"),
    ("stop", "stop_sequences"),
    ("grammar", "output_config.format"),
    (
        "chat_template_kwargs.reasoning_effort",
        "output_config.effort",
    ),
];

sampling_body! {
    /// Body of `/v1/messages` and of `/v1/messages/count_tokens`. Keys that no API knows are ignored.
    #[derive(Debug, Deserialize, ToSchema)]
    #[serde(remote = "Self")]
    #[schema(example = json!({
        "model": "tgi",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "What is deep learning?"}]
    }))]
    pub struct MessagesBody {
        /// The conversation so far. A last message of the assistant is gone on with.
        #[schema(value_type = Vec<Object>, min_items = 1, max_items = 4096)]
        pub messages: Vec<Map<String, Value>>,
        /// Most tokens to generate; what the context has no room for is left out. Needed but for counting.
        #[serde(default, deserialize_with = "crate::extract::token_limit")]
        #[schema(nullable = true, minimum = 1, example = 64)]
        pub max_tokens: Option<u32>,
        /// A text or blocks of text, before the conversation.
        #[schema(nullable = true, value_type = Option<Object>)]
        pub system: Option<Value>,
        /// The answer ends before one of these.
        #[schema(nullable = true)]
        pub stop_sequences: Option<Stop>,
        /// Tools that the client runs. Those that Anthropic's servers run are left out.
        #[schema(nullable = true, value_type = Option<Vec<Object>>)]
        pub tools: Option<Vec<Value>>,
        #[serde(default, deserialize_with = "nullable_object")]
        #[schema(nullable = true)]
        pub tool_choice: Option<ToolChoiceBody>,
        #[serde(default, deserialize_with = "nullable_object")]
        #[schema(nullable = true)]
        pub thinking: Option<ThinkingBody>,
        #[serde(default, deserialize_with = "nullable_object")]
        #[schema(nullable = true)]
        pub output_config: Option<OutputConfig>,
        /// The older place of `output_config.format`.
        #[serde(default, deserialize_with = "nullable_object")]
        #[schema(nullable = true)]
        pub output_format: Option<OutputFormat>,
        /// Variables for the template, of those that it may be given. Not in Anthropic's API.
        #[schema(nullable = true, value_type = Option<Object>)]
        pub chat_template_kwargs: Option<Map<String, Value>>,
        /// A conversation that the server would store.
        #[schema(ignore)]
        pub thread: Option<Value>,
    }
}

/// What may be done with the tools.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ToolChoiceBody {
    /// `auto`, `any`, `tool` or `none`.
    #[schema(example = "auto")]
    pub r#type: String,
    #[schema(nullable = true)]
    pub name: Option<String>,
    /// At most one call.
    #[schema(nullable = true)]
    pub disable_parallel_tool_use: Option<bool>,
}

/// What the answer looks like.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct OutputConfig {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`, for templates that read `reasoning_effort`.
    #[schema(nullable = true, example = "low")]
    pub effort: Option<String>,
    #[serde(default, deserialize_with = "nullable_object")]
    #[schema(nullable = true)]
    pub format: Option<OutputFormat>,
}

/// `{"type": "json_schema", "schema": ...}`.
#[derive(Debug, PartialEq, Deserialize, ToSchema)]
pub struct OutputFormat {
    #[schema(example = "json_schema")]
    pub r#type: String,
    #[schema(nullable = true, value_type = Option<Object>)]
    pub schema: Option<Value>,
}

impl MessagesBody {
    /// The conversation. `counting`: of which only the prompt is wanted.
    ///
    /// # Errors
    /// 422 that names the field.
    pub fn read(mut self, counting: bool, state: &AppState) -> Result<Conversation, ApiError> {
        if self.thread.is_some() {
            return Err(error::no_threads());
        }
        check(counting || self.max_tokens.is_some(), || {
            "`max_tokens` is missing: say how many tokens to generate at most".to_owned()
        })?;
        check(self.max_tokens != Some(0), || {
            "`max_tokens` must be >= 1. Given: 0".to_owned()
        })?;
        let messages = content::messages(
            self.system.as_ref(),
            &self.messages,
            state.infer.vision().is_some(),
        )?;
        let last = self.messages.last().and_then(|message| message.get("role"));
        let continues = last.is_some_and(|role| role == "assistant")
            && messages
                .last()
                .is_some_and(|message| !message.contains_key("tool_calls"));
        let tools = wishes(self.tools.take(), self.tool_choice.take())?;
        let input = ChatInput {
            messages: messages.into_iter().map(Value::Object).collect(),
            add_generation_prompt: !continues,
            continue_final_message: continues,
            chat_template_kwargs: self.chat_template_kwargs.take().unwrap_or_default(),
            system_messages: SystemMessages::Adapted,
            ..ChatInput::default()
        };
        Ok(Conversation {
            input,
            tools,
            reasoning: self.reasoning()?,
            separate_reasoning: Some(true),
            parameters: self.parameters(state)?,
            n: 1,
            names: NAMES.into(),
        })
    }

    fn reasoning(&self) -> Result<ReasoningWishes, ApiError> {
        let mut wishes = ReasoningWishes::default();
        let effort = self.output_config.as_ref();
        let effort = effort.and_then(|config| config.effort.as_deref());
        wishes.effort("output_config.effort", effort)?;
        if let Some(thinking) = &self.thinking {
            wishes.thinking("thinking", &thinking.r#type)?;
        }
        Ok(wishes)
    }

    fn parameters(&mut self, state: &AppState) -> Result<GenerateParameters, ApiError> {
        let sampling = Sampling {
            stop: self.stop_sequences.take(),
            ..self.take_shared()
        };
        let config = self.output_config.as_mut();
        let format = one_format(
            config.and_then(|config| config.format.take()),
            self.output_format.take(),
        )?;
        Ok(GenerateParameters {
            grammar: format.map(grammar).transpose()?,
            // Agents ask for as much as the largest models of Anthropic can write.
            clamp_max_new_tokens: true,
            ..sampling
                .or(&state.sampling_defaults)
                .parameters(self.max_tokens)?
        })
    }
}

fn grammar(format: OutputFormat) -> Result<GrammarSource, ApiError> {
    match (format.r#type.as_str(), format.schema) {
        ("json_schema", Some(given)) => schema("output_config.format.schema", given, false),
        _ => Err(refused(
            "`output_config.format` must be of the type `json_schema` and have a `schema`",
        )),
    }
}

/// What both places of the form of the answer ask for.
fn one_format(
    format: Option<OutputFormat>,
    older: Option<OutputFormat>,
) -> Result<Option<OutputFormat>, ApiError> {
    check(
        format.is_none() || older.is_none() || format == older,
        || {
            "`output_format` and `output_config.format` ask for different forms of the answer: send one of them"
            .to_owned()
        },
    )?;
    Ok(format.or(older))
}

/// Reads the tools of a request.
fn wishes(
    tools: Option<Vec<Value>>,
    choice: Option<ToolChoiceBody>,
) -> Result<ToolWishes, ApiError> {
    let mut wishes = ToolWishes::default();
    for (index, tool) in tools.unwrap_or_default().iter().enumerate() {
        let field = format!("tools[{index}]");
        if let Some(tool) = own_tool(&field, tool)? {
            wishes.offer(&field, "input_schema", OfferedTool::new(tool))?;
        }
    }
    let Some(choice) = choice else {
        return Ok(wishes);
    };
    wishes.parallel = choice.disable_parallel_tool_use != Some(true);
    let choice = match (choice.r#type.as_str(), choice.name) {
        ("auto", _) => ToolChoice::Auto,
        ("none", _) => ToolChoice::None,
        ("any", _) => ToolChoice::Required,
        ("tool", Some(name)) if wishes.has(&name) => ToolChoice::Named(name),
        ("tool", _) => {
            return Err(refused(
                "`tool_choice.name` must be the name of one of the `tools`",
            ));
        }
        (kind, _) => {
            return Err(refused(format_args!(
                "`tool_choice.type` must be `auto`, `any`, `tool` or `none`. Given: `{kind}`"
            )));
        }
    };
    wishes.choose(choice)?;
    Ok(wishes)
}

/// A tool that the client runs; None for one of Anthropic's, which has a type of its own and no schema.
fn own_tool(field: &str, tool: &Value) -> Result<Option<Tool>, ApiError> {
    let text = |key: &str| tool.get(key).and_then(Value::as_str);
    let schema = tool.get("input_schema").filter(|schema| !schema.is_null());
    check(text("type") != Some("function"), || {
        format!(
            "`{field}.type` must not be `function`, which is OpenAI's: a tool has a `name`, a `description` and an \
             `input_schema` here"
        )
    })?;
    let openai = tool.get("parameters").filter(|schema| !schema.is_null());
    check(openai.is_none(), || {
        format!("`{field}.parameters` is OpenAI's: send the schema as `input_schema`")
    })?;
    if schema.is_none() && text("type").is_some_and(|kind| kind != "custom") {
        return Ok(None);
    }
    let name = text("name");
    let name = name.ok_or_else(|| refused(format_args!("`{field}.name` must be a string")))?;
    check(schema.is_none_or(Value::is_object), || {
        format!("`{field}.input_schema` must be an object")
    })?;
    Ok(Some(Tool {
        name: name.to_owned(),
        description: text("description").map(str::to_owned),
        kind: ToolKind::Function {
            parameters: Some(schema.cloned().unwrap_or_else(|| json!({"type": "object"}))),
        },
        strict: tool.get("strict").and_then(Value::as_bool).unwrap_or(false),
    }))
}
