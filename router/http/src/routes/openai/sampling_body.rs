//! The fields of the bodies of both endpoints.

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
            #[serde(default, deserialize_with = "crate::extract::token_limit")]
            #[schema(nullable = true, minimum = 1, example = 32)]
            pub max_tokens: Option<u32>,
            /// Nothing but the limit ends the text before so many tokens. Not in OpenAI's API.
            #[schema(nullable = true, minimum = 0)]
            pub min_tokens: Option<u32>,
            /// Go on after an end-of-sequence token. Not in OpenAI's API.
            #[schema(nullable = true)]
            pub ignore_eos: Option<bool>,
            /// These tokens end the text, which is without them; at most 1024. Not in OpenAI's API.
            #[schema(nullable = true, example = json!(null))]
            pub stop_token_ids: Option<Vec<u32>>,
            /// Words that the text does not contain, at most 256. Not in OpenAI's API.
            #[schema(nullable = true, example = json!(null))]
            pub bad_words: Option<Vec<String>>,
            /// With `false` special tokens are in the text. Not in OpenAI's API.
            #[schema(nullable = true, example = json!(null))]
            pub skip_special_tokens: Option<bool>,
            /// The text ends with the stop string, or the stop token, that ended it. Not in OpenAI's API.
            #[schema(nullable = true, example = json!(null))]
            pub include_stop_str_in_output: Option<bool>,
            /// Keep so many tokens at the end of the prompt; -1 as many as there is room for. Not in OpenAI's API.
            #[schema(nullable = true, minimum = -1, example = json!(null))]
            pub truncate_prompt_tokens: Option<i64>,
            /// `left`: what `truncate_prompt_tokens` takes away is at the beginning.
            #[schema(nullable = true, example = json!(null))]
            pub truncation_side: Option<String>,
            /// Return the ids of the tokens of the prompt and of the answer. Not in OpenAI's API.
            #[schema(nullable = true, example = json!(null))]
            pub return_token_ids: Option<bool>,
            /// Where log-probabilities name tokens, write `token_id:` and the id. Not in OpenAI's API.
            #[schema(nullable = true, example = json!(null))]
            pub return_tokens_as_token_ids: Option<bool>,
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
            pub structural_tag: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub guided_whitespace_pattern: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub logits_processors: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub allowed_token_ids: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub use_beam_search: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub early_stopping: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub prompt_logprobs: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub logprob_token_ids: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub watermarking: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub repetition_detection: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub return_token_offsets: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub kv_transfer_params: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub ec_transfer_params: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub vllm_xargs: Unsupported,
            #[serde(default)]
            #[schema(ignore)]
            pub length_penalty: Only<1>,
            #[serde(default)]
            #[schema(ignore)]
            pub thinking_token_budget: Only<-1>,
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

            /// How the answer names tokens beside its text.
            pub fn token_ids(&self) -> TokenIds {
                TokenIds {
                    returned: self.return_token_ids.unwrap_or(false),
                    as_names: self.return_tokens_as_token_ids.unwrap_or(false),
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
                    stop_token_ids: self.stop_token_ids.take(),
                    bad_words: self.bad_words.take(),
                    skip_special_tokens: self.skip_special_tokens,
                    include_stop_str_in_output: self.include_stop_str_in_output,
                    truncate_prompt_tokens: self.truncate_prompt_tokens,
                    truncation_side: self.truncation_side.take(),
                    priority: self.priority,
                    cache_salt: self.cache_salt.take(),
                }
            }
        }
    };
}
pub(super) use sampling_body;
