//! The fields of a generation that the bodies of OpenAI's and Anthropic's APIs share.

/// A body with the fields that all of them read, beside its own ones. Written out, not flattened: serde's `flatten` would
/// lose the path of a wrong value. Needs `#[serde(remote = "Self")]`: fields of other APIs are refused.
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
            /// Answer with a stream of events.
            #[schema(nullable = true, example = false)]
            pub stream: Option<bool>,
        }

        $crate::fields::own_fields!($name);

        impl $name {
            /// Moves the shared fields out; `stop` has another name in each API.
            fn take_shared(&mut self) -> Sampling {
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
                    stop: None,
                    use_beam_search: false,
                    length_penalty: None,
                    early_stopping: None,
                }
            }
        }
    };
}
pub(in crate::routes) use sampling_body;
