//! Bodies that clients send to `/v1/responses`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use text_generation_chat::{ChatInput, SystemMessages};
use text_generation_core::types::GenerateParameters;
use utoipa::ToSchema;

use super::format::{TextBody, TextFormat};
use super::items::{self, Input};
use super::sealed::Seal;
use super::tools::{ToolNames, Tools};
use crate::conversation::{Conversation, ReasoningWishes};
use crate::error::ApiError;
use crate::extract::nullable_object;
use crate::generation_config::SamplingDefaults;
use crate::generations::Names;
use crate::routes::openai::fields::{Only, Seed, Stop, Unsupported};
use crate::routes::openai::sampling::{Sampling, check};
use crate::state::AppState;

/// What the fields of `core` are called here.
pub const NAMES: &Names = &[
    ("inputs", "input"),
    ("max_new_tokens", "max_output_tokens"),
    ("min_new_tokens", "min_tokens"),
    ("messages", "input"),
    ("grammar", "text.format"),
    ("chat_template_kwargs.reasoning_effort", "reasoning.effort"),
];

/// Asks for reasoning that can be sent back without being read.
const SEALED_REASONING: &str = "reasoning.encrypted_content";

/// Asks for what is not returned here.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Body of `/v1/responses`. Unknown keys are ignored.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"model": "tgi", "input": "What is deep learning?", "max_output_tokens": 64}))]
pub struct ResponsesBody {
    /// Any name; the answer repeats it.
    #[schema(nullable = true, max_length = 256, example = "tgi")]
    pub model: Option<String>,
    /// A text of the user, or the whole conversation as items: messages, reasoning, calls and their outputs.
    #[serde(default)]
    pub input: Input,
    /// Goes before the conversation.
    #[schema(nullable = true)]
    pub instructions: Option<String>,
    /// Most tokens to generate, reasoning included.
    #[schema(nullable = true, minimum = 1)]
    pub max_output_tokens: Option<u32>,
    /// Divides the logits; 0 takes the most likely token.
    #[schema(nullable = true, minimum = 0.0, example = 1.0)]
    pub temperature: Option<f32>,
    /// Keep the smallest set of tokens whose probabilities add up to p; 1 is off.
    #[schema(nullable = true, minimum = 0.0, maximum = 1.0)]
    pub top_p: Option<f32>,
    /// Answer with a stream of events.
    #[schema(nullable = true, example = false)]
    pub stream: Option<bool>,
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
    /// `disabled`; the server cuts no conversation.
    #[schema(nullable = true, example = "disabled")]
    pub truncation: Option<String>,
    /// Repeated in the answer.
    #[schema(nullable = true)]
    pub safety_identifier: Option<String>,
    /// Seed of the random numbers. Not in OpenAI's API.
    #[schema(nullable = true, value_type = Option<i64>)]
    pub seed: Option<Seed>,
    /// Keep the k most likely tokens; 0 and -1 are off. Not in OpenAI's API.
    #[schema(nullable = true, minimum = -1)]
    pub top_k: Option<i32>,
    /// Keep tokens at least this many times as likely as the most likely one. Not in OpenAI's API.
    #[schema(nullable = true, minimum = 0.0, maximum = 1.0)]
    pub min_p: Option<f32>,
    /// Penalty on every token that occurred, in the prompt too; 1 is off. Not in OpenAI's API.
    #[schema(nullable = true, minimum = 1e-30, maximum = 1e30)]
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logit of a token for each time it was generated. Not in OpenAI's API.
    #[schema(nullable = true, minimum = -2.0, maximum = 2.0)]
    pub frequency_penalty: Option<f32>,
    /// Subtracted from the logits of tokens that were generated. Not in OpenAI's API.
    #[schema(nullable = true, minimum = -2.0, maximum = 2.0)]
    pub presence_penalty: Option<f32>,
    /// From token ids to what is added to their logits. Not in OpenAI's API.
    #[serde(default, deserialize_with = "text_generation_core::types::logit_bias")]
    #[schema(nullable = true, value_type = Option<Object>)]
    pub logit_bias: Option<BTreeMap<u32, f32>>,
    /// Text ends before one of these strings. Not in OpenAI's API.
    #[schema(nullable = true)]
    pub stop: Option<Stop>,
    /// These tokens end the text, which is without them. Not in OpenAI's API.
    #[schema(nullable = true)]
    pub stop_token_ids: Option<Vec<u32>>,
    /// Words that the text does not contain. Not in OpenAI's API.
    #[schema(nullable = true)]
    pub bad_words: Option<Vec<String>>,
    /// Nothing but the limit ends the text before so many tokens. Not in OpenAI's API.
    #[schema(nullable = true, minimum = 0)]
    pub min_tokens: Option<u32>,
    /// Go on after an end-of-sequence token. Not in OpenAI's API.
    #[schema(nullable = true)]
    pub ignore_eos: Option<bool>,
    /// With `false` special tokens are in the text. Not in OpenAI's API.
    #[schema(nullable = true)]
    pub skip_special_tokens: Option<bool>,
    /// The text ends with the stop string that ended it. Not in OpenAI's API.
    #[schema(nullable = true)]
    pub include_stop_str_in_output: Option<bool>,
    /// Requests of a lower number run first. Not in OpenAI's API.
    #[schema(nullable = true, example = 0)]
    pub priority: Option<i32>,
    /// Only requests with the same salt share cached prefixes. Not in OpenAI's API.
    #[schema(nullable = true, max_length = 256)]
    pub cache_salt: Option<String>,
    /// Variables for the template, of those that it may be given. Not in OpenAI's API.
    #[schema(nullable = true, value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    #[schema(ignore)]
    pub previous_response_id: Option<Value>,
    #[schema(ignore)]
    pub conversation: Option<Value>,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub background: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub prompt: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub n: Only<1>,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub max_tokens: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub max_completion_tokens: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub response_format: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub structured_outputs: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub kv_transfer_params: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub vllm_xargs: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub previous_input_messages: Unsupported,
    #[serde(default)]
    #[schema(ignore)]
    #[expect(dead_code, reason = "refused while it is read")]
    pub enable_response_messages: Unsupported,
    #[schema(nullable = true)]
    pub top_logprobs: Option<u32>,
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
        check(self.top_logprobs.unwrap_or(0) == 0, || {
            "`top_logprobs` is not supported here: `/v1/chat/completions` has log-probabilities"
                .to_owned()
        })?;
        let mut include = self.include.iter().flatten();
        check(include.all(|key| key != LOGPROBS), || {
            format!(
                "`include` must not have `{LOGPROBS}`: `/v1/chat/completions` has log-probabilities"
            )
        })?;
        let truncation = self.truncation.as_deref().unwrap_or("disabled");
        check(truncation == "disabled", || {
            "`truncation` other than \"disabled\" is not supported: send a shorter `input`"
                .to_owned()
        })
    }

    fn parameters(&mut self, state: &AppState) -> Result<GenerateParameters, ApiError> {
        let sampling = Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias.take(),
            stop: self.stop.take(),
            stop_token_ids: self.stop_token_ids.take(),
            bad_words: self.bad_words.take(),
            min_tokens: self.min_tokens,
            ignore_eos: self.ignore_eos,
            skip_special_tokens: self.skip_special_tokens,
            include_stop_str_in_output: self.include_stop_str_in_output,
            seed: self.seed,
            priority: self.priority,
            cache_salt: self.cache_salt.take(),
            ..Sampling::default()
        };
        let format = self.text.take().and_then(|text| text.format);
        Ok(GenerateParameters {
            grammar: format.map(TextFormat::grammar).transpose()?.flatten(),
            ..sampling
                .or(&state.sampling_defaults)
                .parameters(self.max_output_tokens)?
        })
    }

    /// What the response repeats, in OpenAI's order; how tokens are chosen as it is used.
    fn repeated(&self, defaults: &SamplingDefaults, stored: bool) -> Map<String, Value> {
        let text = self.text.as_ref();
        let format = text.and_then(|text| text.format.as_ref());
        let format = format.map_or_else(|| json!({"type": "text"}), TextFormat::repeated);
        let verbosity = text.and_then(|text| text.verbosity.as_deref());
        let reasoning = self.reasoning.as_ref();
        let repeated = json!({
            "background": false,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": null,
            "metadata": self.metadata.clone().unwrap_or_default(),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": null,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {
                "effort": reasoning.and_then(|reasoning| reasoning.effort.as_deref()),
                "summary": reasoning.and_then(|reasoning| reasoning.summary.as_deref()),
            },
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "store": stored,
            "temperature": used(self.temperature, defaults.temperature),
            "text": {"format": format, "verbosity": verbosity.unwrap_or("medium")},
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": self.tools.clone().unwrap_or_default(),
            "top_logprobs": 0,
            "top_p": used(self.top_p, defaults.top_p),
            "truncation": "disabled",
            "user": self.user,
        });
        match repeated {
            Value::Object(repeated) => repeated,
            _ => Map::new(),
        }
    }
}

/// What a field of the request, or else the model's default, stands for, with the digits of the text that it was read
/// from.
fn used(given: Option<f32>, default: Option<f32>) -> Value {
    let value = given.or(default).unwrap_or(1.0);
    serde_json::from_str(&value.to_string()).unwrap_or_else(|_| value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_says_how_tokens_were_chosen() {
        let said = |body: Value, defaults: SamplingDefaults| {
            let body: ResponsesBody = serde_json::from_value(body).unwrap();
            let repeated = body.repeated(&defaults, false);
            format!("{} {}", repeated["temperature"], repeated["top_p"])
        };
        let none = SamplingDefaults::default();
        let given = json!({"temperature": 0.7, "top_p": 0.95});
        assert_eq!(said(given, none), "0.7 0.95");
        assert_eq!(said(json!({"temperature": 2}), none), "2 1");
        let model = SamplingDefaults {
            temperature: Some(0.6),
            top_p: Some(0.8),
            ..none
        };
        assert_eq!(said(json!({"top_p": 0.9}), model), "0.6 0.9");
    }
}
