//! The fields that chats and completions share beside those of all generations.

/// A [`sampling_body`](super::sampling_body) of an API whose answers are choices.
macro_rules! choices_body {
    ($(#[$meta:meta])* pub struct $name:ident { $($own:tt)* }) => {
        sampling_body! {
            $(#[$meta])*
            pub struct $name {
                $($own)*
                /// Text ends before one of these strings: one, or a list up to `--max-stop-sequences`.
                #[schema(nullable = true)]
                pub stop: Option<Stop>,
                /// Choices for each prompt.
                #[schema(nullable = true, minimum = 1, maximum = 128, example = 1)]
                pub n: Option<u32>,
                /// Search for the most probable texts with as many beams as `best_of` says, or `n`, up to
                /// `--max-beam-width`, instead of choosing one token after the other. The choices are the best of them,
                /// the best first. Not in OpenAI's API.
                #[schema(nullable = true, example = json!(null))]
                pub use_beam_search: Option<bool>,
                /// With `use_beam_search`: the score of a text is the sum of its log-probabilities divided by its length
                /// to this power, 1 unless set. Not in OpenAI's API.
                #[schema(nullable = true, minimum = -10.0, maximum = 10.0, example = json!(null))]
                pub length_penalty: Option<f32>,
                /// With `use_beam_search`, when the search ends: `true` as soon as as many texts have ended as there are
                /// beams; `false`, as is the default, when none that goes on scores higher, as long as it is, than the
                /// worst of these; `"never"` when none could at any length. Not in OpenAI's API.
                #[schema(nullable = true, example = json!(null))]
                pub early_stopping: Option<EarlyStopping>,
                /// Most tokens to generate; unset, up to the total token limit.
                #[serde(default, deserialize_with = "crate::extract::token_limit")]
        #[schema(nullable = true, minimum = 1, example = 32)]
                pub max_tokens: Option<u32>,
                /// Return the ids of the tokens of the prompt and of the answer. Not in OpenAI's API.
                #[schema(nullable = true, example = json!(null))]
                pub return_token_ids: Option<bool>,
                /// Where log-probabilities name tokens, write `token_id:` and the id. Not in OpenAI's API.
                #[schema(nullable = true, example = json!(null))]
                pub return_tokens_as_token_ids: Option<bool>,
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
            }
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

            /// Moves out how tokens are chosen and where texts end.
            pub fn take_sampling(&mut self) -> Sampling {
                Sampling {
                    stop: self.stop.take(),
                    use_beam_search: self.use_beam_search.unwrap_or(false),
                    length_penalty: self.length_penalty,
                    early_stopping: self.early_stopping,
                    ..self.take_shared()
                }
            }
        }
    };
}
pub(super) use choices_body;
