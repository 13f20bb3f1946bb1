//! Bodies that clients send to `/v1/completions`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use text_generation_core::infer::Infer;
use text_generation_core::types::{EarlyStopping, Inputs};
use utoipa::ToSchema;

use super::choices_body::choices_body;
use super::fields::{Seed, Stop, StreamOptions};
use super::sampling::{Sampling, TokenIds, check};
use super::sampling_body::sampling_body;
use super::structured::{Forms, ResponseFormat, StructuredOutputs};
use crate::error::ApiError;
use crate::extract::whole;

choices_body! {
    /// Body of `/v1/completions`. Keys that no API knows are ignored.
    #[derive(Debug, Deserialize, ToSchema)]
    #[serde(remote = "Self")]
    #[schema(example = json!({"model": "tgi", "prompt": "Once upon a time", "max_tokens": 20}))]
    pub struct CompletionBody {
        /// A text, a list of texts, the token ids of one prompt, or a list of those; up to `--max-client-batch-size`.
        pub prompt: Prompt,
        /// Put the prompt before the text.
        #[schema(nullable = true, example = false)]
        pub echo: Option<bool>,
        /// Return the log-probabilities of the tokens, and of this many of the most likely ones of every step, up to
        /// `--max-logprobs`. With `echo` those of the prompt too.
        #[schema(nullable = true, minimum = 0, example = 1)]
        pub logprobs: Option<u32>,
        /// Generate so many texts for each prompt and return the `n` with the highest mean log-probability; with
        /// `use_beam_search` the number of beams.
        #[schema(nullable = true, minimum = 1, maximum = 128)]
        pub best_of: Option<u32>,
        /// Not supported: refused when it is not empty.
        #[schema(nullable = true)]
        pub suffix: Option<String>,
        /// With `false` the tokenizer adds no special tokens (BOS) to a text. Not in OpenAI's API.
        #[schema(nullable = true, example = json!(null))]
        pub add_special_tokens: Option<bool>,
        /// Generate the end of the prompt again, up to three tokens, so that it need not be the end of a token: their
        /// bytes are all that may come first. The text is what follows the prompt, as without it. Not in OpenAI's API.
        #[schema(nullable = true, example = false)]
        pub token_healing: Option<bool>,
    }
}

/// The prompts of a completion.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of such lists"
)]
pub enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Ids(#[serde(deserialize_with = "whole")] Vec<u32>),
    IdLists(#[serde(deserialize_with = "whole")] Vec<Vec<u32>>),
}

impl Prompt {
    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Ids(_) => 1,
            Self::Texts(list) => list.len(),
            Self::IdLists(list) => list.len(),
        }
    }

    /// Each of them.
    pub fn into_inputs(self) -> Vec<Inputs> {
        match self {
            Self::Text(text) => vec![Inputs::Text(text)],
            Self::Ids(ids) => vec![Inputs::Ids(ids)],
            Self::Texts(list) => list.into_iter().map(Inputs::Text).collect(),
            Self::IdLists(list) => list.into_iter().map(Inputs::Ids).collect(),
        }
    }
}

impl CompletionBody {
    /// Whether a field holds what a client sends as it is, such as a schema.
    pub fn holds_json(&self) -> bool {
        self.response_format.is_some()
            || self.structured_outputs.is_some()
            || self.guided_json.is_some()
    }

    /// What is wrong before any prompt is looked at.
    ///
    /// # Errors
    /// 422 that names the field.
    pub fn check_features(&self, max_prompts: u32) -> Result<(), ApiError> {
        if self
            .suffix
            .as_ref()
            .is_some_and(|suffix| !suffix.is_empty())
        {
            return Err(ApiError::suffix_not_supported());
        }
        let prompts = self.prompt.count();
        check(prompts > 0, || {
            "`prompt` must not be an empty list".to_owned()
        })?;
        if prompts > max_prompts as usize {
            return Err(ApiError::too_many_prompts(max_prompts));
        }
        check(self.max_tokens != Some(0) || self.scores_only(), || {
            "`max_tokens` must be >= 1; 0 only with `echo` and without `stream`".to_owned()
        })
    }

    /// Whether nothing but the prompt is wanted, as a rule for its log-probabilities.
    pub fn scores_only(&self) -> bool {
        self.max_tokens == Some(0) && self.echo.unwrap_or(false) && !self.stream.unwrap_or(false)
    }

    /// How many beams there are for each prompt, where there are any, and what says so.
    pub fn beams(&self, n: u32) -> Option<(&'static str, u32)> {
        let beams = match self.best_of {
            Some(best_of) => ("best_of", best_of),
            None => ("n", n),
        };
        self.use_beam_search.unwrap_or(false).then_some(beams)
    }

    /// How many texts to generate for each prompt, of which `n` are returned.
    ///
    /// # Errors
    /// 422 that names `best_of`.
    pub fn samples(&self, n: u32, infer: &Infer) -> Result<u32, ApiError> {
        let best_of = self.best_of.unwrap_or(n);
        check(best_of >= n, || {
            format!("`best_of` must be >= `n`, which is {n}. Given: {best_of}")
        })?;
        if self.use_beam_search == Some(true) {
            // Of the beams that many come back, in a stream too: all of it comes at the end.
            return Ok(n);
        }
        if best_of > n {
            infer.check_best_of(best_of)?;
        }
        check(best_of == n || self.stream != Some(true), || {
            "`best_of` above `n` cannot be streamed: which texts are best is known at the end"
                .to_owned()
        })?;
        Ok(best_of)
    }
}
