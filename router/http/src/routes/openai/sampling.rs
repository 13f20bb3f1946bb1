//! The fields that chat and completions share, and what they mean for a generation.

use std::collections::BTreeMap;
use std::fmt;

use text_generation_core::types::GenerateParameters;

use super::fields::{Seed, Stop};
use crate::bounds::{MAX_CHOICES, MAX_MODEL_BYTES};
use crate::error::ApiError;
use crate::generation_config::SamplingDefaults;

/// A body with the fields that both endpoints read, beside its own ones. Written out, not flattened: serde's `flatten`
/// would lose the path of a wrong value.
macro_rules! sampling_body {
    ($(#[$meta:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$meta])*
        pub struct $name {
            $($own)*
            /// Any name; the answer repeats it. Without one, or with `tgi`, the answer names the served model.
            #[schema(nullable = true, max_length = 256, example = "tgi")]
            pub model: Option<String>,
            /// Divides the logits; 0 takes the most likely token.
            #[schema(nullable = true, minimum = 0.0, example = 1.0)]
            pub temperature: Option<f32>,
            /// Keep the smallest set of tokens whose probabilities add up to p; 1 is off.
            #[schema(nullable = true, minimum = 0.0, maximum = 1.0, example = 0.95)]
            pub top_p: Option<f32>,
            /// Keep the k most likely tokens; 0 and -1 are off. Not in OpenAI's API.
            #[schema(nullable = true, minimum = -1)]
            pub top_k: Option<i32>,
            /// Keep tokens at least this many times as likely as the most likely one. Not in OpenAI's API.
            #[schema(nullable = true, minimum = 0.0, maximum = 1.0)]
            pub min_p: Option<f32>,
            /// Keep the tokens whose information is closest to the entropy, up to mass p. Not in OpenAI's API.
            #[schema(nullable = true, minimum = 0.0, maximum = 1.0)]
            pub typical_p: Option<f32>,
            /// Penalty on every token that occurred, in the prompt too; 1 is off. Not in OpenAI's API.
            #[schema(nullable = true, minimum = 1e-30, maximum = 1e30)]
            pub repetition_penalty: Option<f32>,
            /// Subtracted from the logit of a token for each time it was generated.
            #[schema(nullable = true, minimum = -2.0, maximum = 2.0)]
            pub frequency_penalty: Option<f32>,
            /// Subtracted from the logits of tokens that were generated.
            #[schema(nullable = true, minimum = -2.0, maximum = 2.0)]
            pub presence_penalty: Option<f32>,
            /// From token ids to what is added to their logits, -100 to 100; at most 1024.
            #[serde(default, deserialize_with = "text_generation_core::types::logit_bias")]
            #[schema(nullable = true, value_type = Option<Object>, example = json!({"50256": -100}))]
            pub logit_bias: Option<BTreeMap<u32, f32>>,
            /// Requests of a lower number run first; each step counts as much as ten seconds of waiting. Not in OpenAI's
            /// API.
            #[schema(nullable = true, example = 0)]
            pub priority: Option<i32>,
            /// Only requests with the same salt share cached prefixes. Not in OpenAI's API.
            #[schema(nullable = true, max_length = 256, example = json!(null))]
            pub cache_salt: Option<String>,
            /// Seed of the random numbers; unset, a random one.
            #[schema(nullable = true, value_type = Option<i64>)]
            pub seed: Option<Seed>,
            /// Text ends before one of these strings: one, or a list up to `--max-stop-sequences`.
            #[schema(nullable = true)]
            pub stop: Option<Stop>,
            /// Choices for each prompt.
            #[schema(nullable = true, minimum = 1, maximum = 128, example = 1)]
            pub n: Option<u32>,
            /// Most tokens to generate; unset, up to the total token limit.
            #[schema(nullable = true, minimum = 1, example = 32)]
            pub max_tokens: Option<u32>,
            /// No end-of-sequence token before so many tokens. Not in OpenAI's API.
            #[schema(nullable = true, minimum = 0)]
            pub min_tokens: Option<u32>,
            /// Go on after an end-of-sequence token. Not in OpenAI's API.
            #[schema(nullable = true)]
            pub ignore_eos: Option<bool>,
            /// Answer with a stream of events.
            #[schema(nullable = true, example = false)]
            pub stream: Option<bool>,
            #[serde(default, deserialize_with = "crate::extract::nullable_object")]
            #[schema(nullable = true)]
            pub stream_options: Option<StreamOptions>,
            /// The form that the answer must have.
            #[serde(default, deserialize_with = "crate::extract::nullable_object")]
            #[schema(nullable = true)]
            pub response_format: Option<ResponseFormat>,
            /// The same in vLLM's words.
            #[serde(default, deserialize_with = "crate::extract::nullable_object")]
            #[schema(nullable = true)]
            pub structured_outputs: Option<StructuredOutputs>,
            /// `structured_outputs.json` by its older name.
            #[schema(nullable = true, value_type = Option<Object>)]
            pub guided_json: Option<Value>,
            /// `structured_outputs.regex` by its older name.
            #[schema(nullable = true)]
            pub guided_regex: Option<String>,
            /// `structured_outputs.choice` by its older name.
            #[schema(nullable = true)]
            pub guided_choice: Option<Vec<String>>,
            /// `structured_outputs.grammar` by its older name.
            #[schema(nullable = true)]
            pub guided_grammar: Option<String>,
            #[serde(default)]
            #[schema(ignore)]
            pub json_schema: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub regex: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub ebnf: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub grammar: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub logits_processors: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub allowed_token_ids: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub bad_words: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub stop_token_ids: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub use_beam_search: Unsupported,
        }

        impl $name {
            /// Moves out what says the form of the answer.
            pub fn take_forms(&mut self) -> Forms {
                Forms {
                    response_format: self.response_format.take(),
                    structured_outputs: self.structured_outputs.take(),
                    guided_json: self.guided_json.take(),
                    guided_regex: self.guided_regex.take(),
                    guided_choice: self.guided_choice.take(),
                    guided_grammar: self.guided_grammar.take(),
                }
            }

            /// Moves the shared fields out.
            pub fn take_sampling(&mut self) -> Sampling {
                Sampling {
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    typical_p: self.typical_p,
                    repetition_penalty: self.repetition_penalty,
                    frequency_penalty: self.frequency_penalty,
                    presence_penalty: self.presence_penalty,
                    logit_bias: self.logit_bias.take(),
                    seed: self.seed,
                    stop: self.stop.take(),
                    min_tokens: self.min_tokens,
                    ignore_eos: self.ignore_eos,
                    priority: self.priority,
                    cache_salt: self.cache_salt.take(),
                }
            }
        }
    };
}
pub(super) use sampling_body;

/// How tokens are chosen and when a text ends, as clients say it.
#[derive(Debug, Default)]
pub struct Sampling {
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<i32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub logit_bias: Option<BTreeMap<u32, f32>>,
    pub seed: Option<Seed>,
    pub stop: Option<Stop>,
    pub min_tokens: Option<u32>,
    pub ignore_eos: Option<bool>,
    pub priority: Option<i32>,
    pub cache_salt: Option<String>,
}

impl Sampling {
    /// Fills what the request leaves open with the model's defaults.
    pub fn or(self, defaults: &SamplingDefaults) -> Self {
        Self {
            temperature: self.temperature.or(defaults.temperature),
            top_p: self.top_p.or(defaults.top_p),
            top_k: self.top_k.or(defaults.top_k),
            min_p: self.min_p.or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty),
            ..self
        }
    }

    /// Samples at temperature 1 unless told otherwise, as OpenAI does. Ranges that `core` checks in the same words are
    /// left to it; values that mean "off" there but are refused by it are taken out here.
    ///
    /// # Errors
    /// 422 that names the field.
    pub fn parameters(self, max_tokens: Option<u32>) -> Result<GenerateParameters, ApiError> {
        let fraction = |field, value: Option<f32>| match value {
            Some(value) if !(0.0..=1.0).contains(&value) => Err(refused(format!(
                "`{field}` must be >= 0 and <= 1. Given: {value}"
            ))),
            value => Ok(value.filter(|&value| value < 1.0)),
        };
        let temperature = self.temperature.unwrap_or(1.0);
        check(temperature >= 0.0 && temperature.is_finite(), || {
            format!("`temperature` must be >= 0. Given: {temperature}")
        })?;
        check(self.top_k.is_none_or(|k| k >= -1), || {
            "`top_k` must be >= 1, or 0 or -1 for off".to_owned()
        })?;
        let top_p = fraction("top_p", self.top_p)?;
        let typical_p = fraction("typical_p", self.typical_p)?;
        // Nothing but the most likely token is left of a probability mass of 0.
        let greedy = temperature == 0.0 || top_p == Some(0.0);
        let shared = GenerateParameters {
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias,
            seed: self.seed.map(Seed::bits),
            stop: self.stop.map(Stop::into_list).unwrap_or_default(),
            max_new_tokens: max_tokens,
            min_new_tokens: self.min_tokens,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            priority: self.priority,
            cache_salt: self.cache_salt,
            ..GenerateParameters::default()
        };
        if greedy {
            return Ok(shared);
        }
        Ok(GenerateParameters {
            do_sample: true,
            temperature: Some(temperature),
            top_p,
            typical_p,
            top_k: self.top_k.filter(|&k| k > 0),
            min_p: self.min_p,
            ..shared
        })
    }
}

/// A 422 with this text, which names the field first.
pub fn refused(message: impl fmt::Display) -> ApiError {
    ApiError::invalid_body(format!("Input validation error: {message}"))
}

/// 422 with the text of `message` unless `right`.
pub fn check(right: bool, message: impl FnOnce() -> String) -> Result<(), ApiError> {
    if right {
        Ok(())
    } else {
        Err(refused(message()))
    }
}

/// The number of choices for each of `prompts` prompts.
pub fn check_n(n: Option<u32>, prompts: usize) -> Result<u32, ApiError> {
    let n = n.unwrap_or(1);
    let prompts = u32::try_from(prompts).unwrap_or(u32::MAX);
    check(n > 0 && n.saturating_mul(prompts) <= MAX_CHOICES, || {
        format!(
            "`n` must be >= 1, and <= {MAX_CHOICES} for all prompts together. Given: {n} for {prompts} prompts"
        )
    })?;
    Ok(n)
}

/// What the answer calls the model.
pub fn model_name(given: Option<String>, served: &str) -> Result<String, ApiError> {
    let given = given.unwrap_or_default();
    check(given.len() <= MAX_MODEL_BYTES, || {
        format!("`model` must have at most {MAX_MODEL_BYTES} bytes")
    })?;
    Ok(match given.as_str() {
        "" | "tgi" => served.to_owned(),
        _ => given,
    })
}
