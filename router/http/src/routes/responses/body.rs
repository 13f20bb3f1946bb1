//! Bodies that clients send to `/v1/responses`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use text_generation_chat::{ChatInput, SystemMessages};
use text_generation_core::types::GenerateParameters;
use utoipa::ToSchema;

use super::format::{TextBody, TextFormat};
use super::items::{self, Input};
use super::tools::{ToolNames, Tools};
use crate::conversation::{Conversation, ReasoningWishes};
use crate::error::ApiError;
use crate::extract::nullable_object;
use crate::generations::Names;
use crate::routes::openai::fields::{Seed, Stop};
use crate::routes::openai::sampling::{Sampling, check, refused};
use crate::routes::openai::sampling_body::sampling_body;
use crate::seal::Seal;
use crate::state::AppState;

/// What the fields of `core` are called here.
pub const NAMES: &Names = &[
    ("inputs", "input"),
    ("max_new_tokens", "max_output_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("truncate", "truncate_prompt_tokens"),
    ("messages", "input"),
    ("grammar", "text.format"),
    ("chat_template_kwargs.reasoning_effort", "reasoning.effort"),
];

/// Asks for reasoning that can be sent back without being read.
const SEALED_REASONING: &str = "reasoning.encrypted_content";

/// Asks for what is not returned here.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Of these there is nothing: they belong to images, and to tools that OpenAI's servers run.
const NEVER_INCLUDED: [&str; 6] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
];

/// They are repeated; the model is not told.
const VERBOSITIES: [&str; 3] = ["low", "medium", "high"];

sampling_body! {
    /// Body of `/v1/responses`. Keys that no API knows are ignored.
    #[derive(Debug, Deserialize, ToSchema)]
    #[serde(remote = "Self")]
    #[schema(example = json!({"model": "tgi", "input": "What is deep learning?", "max_output_tokens": 64}))]
    pub struct ResponsesBody {
        /// A text of the user, or the whole conversation as items: messages, reasoning, calls and their outputs.
        #[serde(default)]
        pub input: Input,
        /// Goes before the conversation.
        #[schema(nullable = true)]
        pub instructions: Option<String>,
        /// Most tokens to generate, reasoning included.
        #[serde(default, deserialize_with = "crate::extract::token_limit")]
        #[schema(nullable = true, minimum = 1)]
        pub max_output_tokens: Option<u32>,
        /// Functions, custom tools and namespaces of them. Tools of other kinds are left out.
        #[schema(nullable = true, value_type = Option<Vec<Object>>)]
        pub tools: Option<Vec<Value>>,
        /// `auto`, `none`, `required`, or an object that names tools.
        #[schema(nullable = true, value_type = Option<Object>)]
        pub tool_choice: Option<Value>,
        #[schema(nullable = true, example = true)]
        pub parallel_tool_calls: Option<bool>,
        #[serde(default, deserialize_with = "nullable_object")]
        #[schema(nullable = true)]
        pub reasoning: Option<ReasoningBody>,
        #[serde(default, deserialize_with = "nullable_object")]
        #[schema(nullable = true)]
        pub text: Option<TextBody>,
        /// Whether the output is remembered for a while, for `item_reference` of later requests, as is the default.
        #[schema(nullable = true)]
        pub store: Option<bool>,
        /// `reasoning.encrypted_content` counts.
        #[schema(nullable = true)]
        pub include: Option<Vec<String>>,
        /// Repeated in the answer. Prefixes are found without it.
        #[schema(nullable = true)]
        pub prompt_cache_key: Option<String>,
        /// Repeated in the answer.
        #[schema(nullable = true, value_type = Option<Object>)]
        pub metadata: Option<Map<String, Value>>,
        /// Repeated in the answer.
        #[schema(nullable = true)]
        pub user: Option<String>,
        /// Repeated in the answer.
        #[schema(nullable = true)]
        pub safety_identifier: Option<String>,
        /// Text ends before one of these strings. Not in OpenAI's API.
        #[schema(nullable = true)]
        pub stop: Option<Stop>,
        /// Variables for the template, of those that it may be given. Not in OpenAI's API.
        #[schema(nullable = true, value_type = Option<Object>)]
        pub chat_template_kwargs: Option<Map<String, Value>>,
        #[schema(ignore)]
        pub previous_response_id: Option<Value>,
        #[schema(ignore)]
        pub conversation: Option<Value>,
    }
}

/// How much the model reasons.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ReasoningBody {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`, for templates that read it.
    #[schema(nullable = true, example = "low")]
    pub effort: Option<String>,
    /// Accepted; reasoning is given as it is.
    #[schema(nullable = true)]
    pub summary: Option<String>,
}

/// What the answer needs of the body, beside the conversation.
#[derive(Debug)]
pub struct AnswerFields {
    pub names: ToolNames,
    /// Set when reasoning is to be sent back by the client.
    pub seal: Option<Seal>,
    /// The keys of the response that repeat the request.
    pub repeated: Map<String, Value>,
}

impl ResponsesBody {
    /// Whether the output may be remembered.
    pub fn stores(&self) -> bool {
        self.store != Some(false)
    }

    /// The conversation, and what the answer needs beside it. `stored`: whether the output will be remembered.
    ///
    /// # Errors
    /// 422 that names the field.
    pub fn read(
        mut self,
        state: &AppState,
        stored: bool,
    ) -> Result<(Conversation, AnswerFields), ApiError> {
        self.check()?;
        let repeated = self.repeated(&state.sampling_defaults, stored);
        let mut tools = Tools::read(self.tools.take(), self.tool_choice.take())?;
        tools.wishes.parallel = self.parallel_tool_calls.unwrap_or(true);
        let messages = items::messages(
            self.instructions.take(),
            std::mem::take(&mut self.input),
            &tools.names,
            &state.seal,
            state.infer.vision().is_some(),
        )?;
        let include = self.include.as_deref().unwrap_or_default();
        let sealed = include.iter().any(|key| key == SEALED_REASONING);
        let conversation = Conversation {
            input: ChatInput {
                messages: messages.into_iter().map(Value::Object).collect(),
                add_generation_prompt: true,
                chat_template_kwargs: self.chat_template_kwargs.take().unwrap_or_default(),
                system_messages: SystemMessages::Adapted,
                ..ChatInput::default()
            },
            tools: tools.wishes,
            reasoning: self.reasoning()?,
            separate_reasoning: Some(true),
            parameters: self.parameters(state)?,
            n: 1,
            names: NAMES.into(),
        };
        let fields = AnswerFields {
            names: tools.names,
            seal: sealed.then(|| state.seal.clone()),
            repeated,
        };
        Ok((conversation, fields))
    }

    fn reasoning(&self) -> Result<ReasoningWishes, ApiError> {
        let mut wishes = ReasoningWishes::default();
        let effort = self.reasoning.as_ref();
        let effort = effort.and_then(|reasoning| reasoning.effort.as_deref());
        wishes.effort("reasoning.effort", effort)?;
        Ok(wishes)
    }

    fn check(&self) -> Result<(), ApiError> {
        for (field, given) in [
            ("previous_response_id", &self.previous_response_id),
            ("conversation", &self.conversation),
        ] {
            check(given.as_ref().is_none_or(|given| given == ""), || {
                format!(
                    "`{field}` is not supported: this server stores no conversations. Send the conversation so far in \
                     `input`, with the output of earlier responses"
                )
            })?;
        }
        check(self.max_output_tokens != Some(0), || {
            "`max_output_tokens` must be >= 1. Given: 0".to_owned()
        })?;
        let verbosity = self
            .text
            .as_ref()
            .and_then(|text| text.verbosity.as_deref());
        check(
            verbosity.is_none_or(|given| VERBOSITIES.contains(&given)),
            || format!("`text.verbosity` must be one of {VERBOSITIES:?}"),
        )?;
        let include = self.include.iter().flatten();
        include.map(String::as_str).try_for_each(check_include)
    }

    fn parameters(&mut self, state: &AppState) -> Result<GenerateParameters, ApiError> {
        let sampling = Sampling {
            stop: self.stop.take(),
            ..self.take_shared()
        };
        let format = self.text.take().and_then(|text| text.format);
        Ok(GenerateParameters {
            grammar: format.map(TextFormat::grammar).transpose()?.flatten(),
            ..sampling
                .or(&state.sampling_defaults)
                .parameters(self.max_output_tokens)?
        })
    }
}

fn check_include(key: &str) -> Result<(), ApiError> {
    match key {
        SEALED_REASONING => Ok(()),
        LOGPROBS => Err(refused(format_args!(
            "`include` must not have `{LOGPROBS}`: `/v1/chat/completions` has log-probabilities"
        ))),
        key if NEVER_INCLUDED.contains(&key) => Ok(()),
        key => Err(refused(format_args!(
            "`include` has `{key}`, which this server does not know: remove it"
        ))),
    }
}
