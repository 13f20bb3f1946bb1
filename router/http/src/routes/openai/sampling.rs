//! The fields that chat and completions share, and what they mean for a generation.

use std::collections::BTreeMap;

use text_generation_core::error::{Given, ValidationError};
use text_generation_core::types::{EarlyStopping, GenerateParameters, field_of_beams};

use super::fields::{Seed, Stop};
use crate::bounds::MAX_CHOICES;
use crate::error::ApiError;
pub use crate::error::refused;
use crate::generation_config::SamplingDefaults;

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
    pub stop_token_ids: Option<Vec<u32>>,
    pub bad_words: Option<Vec<String>>,
    pub skip_special_tokens: Option<bool>,
    pub include_stop_str_in_output: Option<bool>,
    pub truncate_prompt_tokens: Option<i64>,
    pub truncation_side: Option<String>,
    pub priority: Option<i32>,
    pub cache_salt: Option<String>,
    /// The most probable texts are searched for, and nothing is drawn.
    pub use_beam_search: bool,
    pub length_penalty: Option<f32>,
    pub early_stopping: Option<EarlyStopping>,
}

/// Where an answer holds ids of tokens.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenIds {
    /// Those of the prompt and of the answer are in lists of their own.
    pub returned: bool,
    /// They stand for the tokens' texts in log-probabilities.
    pub as_names: bool,
}

impl Sampling {
    /// Fills what the request leaves open with the model's defaults, which are of no use to a beam search.
    pub fn or(self, defaults: &SamplingDefaults) -> Self {
        if self.use_beam_search {
            return self;
        }
        Self {
            temperature: self.temperature.or(defaults.temperature),
            top_p: self.top_p.or(defaults.top_p),
            top_k: self.top_k.or(defaults.top_k),
            min_p: self.min_p.or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty),
            ..self
        }
    }

    /// Samples at temperature 1 unless told otherwise, as OpenAI does, or a search is asked for, whose width is for the
    /// caller to say. Ranges that `core` checks in the same words are left to it; values that mean "off" there but are
    /// refused by it are taken out here.
    ///
    /// # Errors
    /// 422 that names the field.
    pub fn parameters(self, max_tokens: Option<u32>) -> Result<GenerateParameters, ApiError> {
        let temperature = self.temperature.unwrap_or(1.0);
        check(temperature >= 0.0, || {
            format!("`temperature` must be >= 0. Given: {}", Given(temperature))
        })?;
        check(temperature.is_finite(), || {
            let field = "temperature";
            ValidationError::TooLarge { field }.to_string()
        })?;
        check(self.top_k.is_none_or(|k| k >= -1), || {
            "`top_k` must be >= 1, or 0 or -1 for off".to_owned()
        })?;
        let truncate = truncate(self.truncate_prompt_tokens, self.truncation_side.as_deref())?;
        let top_p = fraction("top_p", self.top_p)?;
        let typical_p = fraction("typical_p", self.typical_p)?;
        // Of its own meaning at 1, and checked also where nothing is drawn.
        fraction("min_p", self.min_p)?;
        self.check_beams()?;
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
            stop_token_ids: self.stop_token_ids,
            bad_words: self.bad_words,
            skip_special_tokens: self.skip_special_tokens,
            include_stop_str_in_output: self.include_stop_str_in_output,
            truncate: truncate.flatten(),
            truncate_to_fit: truncate == Some(None),
            priority: self.priority,
            cache_salt: self.cache_salt,
            length_penalty: self.length_penalty,
            early_stopping: self.early_stopping,
            ..GenerateParameters::default()
        };
        if greedy {
            return Ok(shared);
        }
        Ok(GenerateParameters {
            // A search refuses what is given beside it, by its name.
            do_sample: !self.use_beam_search,
            temperature: Some(temperature),
            top_p,
            typical_p,
            top_k: self.top_k.filter(|&k| k > 0),
            min_p: self.min_p,
            ..shared
        })
    }

    /// What is said of a search, where there is none.
    fn check_beams(&self) -> Result<(), ApiError> {
        match field_of_beams(self.length_penalty, self.early_stopping) {
            Some(field) if !self.use_beam_search => Err(refused(format!(
                "`{field}` needs `use_beam_search` to be true"
            ))),
            _ => Ok(()),
        }
    }
}

/// A part of all probabilities; the whole of it is no limit.
fn fraction(field: &str, value: Option<f32>) -> Result<Option<f32>, ApiError> {
    let right = value.is_none_or(|value| (0.0..=1.0).contains(&value));
    check(right, || {
        let given = Given(value.unwrap_or_default());
        format!("`{field}` must be >= 0 and <= 1. Given: {given}")
    })?;
    Ok(value.filter(|&value| value < 1.0))
}

/// How many tokens at the end of the prompt are kept, if it is cut; `Some(None)`: as many as there is room for.
pub fn truncate(given: Option<i64>, side: Option<&str>) -> Result<Option<Option<usize>>, ApiError> {
    check(side.is_none_or(|side| side == "left"), || {
        "`truncation_side` other than \"left\" is not supported".to_owned()
    })?;
    match given {
        None => Ok(None),
        Some(-1) => Ok(Some(None)),
        Some(given) => match usize::try_from(given) {
            Ok(count) => Ok(Some(Some(count))),
            Err(_) => Err(refused(format_args!(
                "`truncate_prompt_tokens` must be -1, or at least 1. Given: {given}"
            ))),
        },
    }
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
    let most = MAX_CHOICES / prompts.max(1);
    check((1..=most).contains(&n), || match prompts {
        0 | 1 => format!("`n` must be >= 1 and <= {most}. Given: {n}"),
        _ => format!(
            "`n` must be >= 1 and <= {most}, which are {MAX_CHOICES} choices of all {prompts} prompts together. Given: {n}"
        ),
    })?;
    Ok(n)
}
