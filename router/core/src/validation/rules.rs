//! The rules on parameters and lengths, each in the words of the TGI contract.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use text_generation_client::types::NextTokenChooser;

use crate::error::ValidationError;
use crate::types::{
    Dialect, GenerateParameters, Inputs, SpecialTokens, TextContent, ValidationLimits,
};

/// Outside of these, the scores of a token with a large logit (65,504 is the largest of float16) are not finite in
/// float32: positive ones are divided by the penalty, negative ones multiplied.
const REPETITION_PENALTIES: RangeInclusive<f32> = 1e-30..=1e30;
/// Entries of `logit_bias`.
const MAX_LOGIT_BIAS: usize = 1024;

/// A step is worth ten seconds of waiting, so nobody is held up by others for much longer than a quarter of an hour.
const PRIORITIES: RangeInclusive<i32> = -100..=100;

/// Bytes of `cache_salt`.
const MAX_CACHE_SALT: usize = 256;

/// Bytes of one stop string. Longer ones would be kept, and text held back for them, for no use.
const MAX_STOP_BYTES: usize = 4096;

/// Entries of `stop_token_ids`: each generated token is compared with all of them.
const MAX_STOP_TOKENS: usize = 1024;

/// Entries of `bad_words`, each of at most [`MAX_STOP_BYTES`].
const MAX_BAD_WORDS: usize = 256;

/// Everything that needs no text, in the order of the contract.
pub(super) fn check(
    parameters: &GenerateParameters,
    dialect: Dialect,
    limits: &ValidationLimits,
) -> Result<(), ValidationError> {
    let best_of = parameters.best_of.unwrap_or(1);
    refuse(
        best_of > 1 && !(samples(parameters) || parameters.temperature.is_some()),
        ValidationError::BestOfSampling,
    )?;
    refuse(
        !all(parameters.temperature, |x| x > 0.0),
        ValidationError::Temperature,
    )?;
    refuse(
        !all(parameters.temperature, f32::is_finite),
        ValidationError::TooLarge {
            field: "temperature",
        },
    )?;
    check_repetition_penalty(parameters.repetition_penalty)?;
    refuse(
        !all(parameters.frequency_penalty, |x| (-2.0..=2.0).contains(&x)),
        ValidationError::FrequencyPenalty,
    )?;
    refuse(
        !all(parameters.presence_penalty, |x| (-2.0..=2.0).contains(&x)),
        ValidationError::PresencePenalty,
    )?;
    refuse(
        !all(parameters.top_p, is_inner_fraction),
        ValidationError::TopP,
    )?;
    refuse(
        !all(parameters.typical_p, is_inner_fraction),
        ValidationError::TypicalP,
    )?;
    refuse(
        parameters.top_k.is_some_and(|k| k <= 0),
        ValidationError::TopK,
    )?;
    refuse(
        !all(parameters.min_p, |x| (0.0..=1.0).contains(&x)),
        ValidationError::MinP,
    )?;
    check_logit_bias(parameters.logit_bias.as_ref(), limits.vocab_size)?;
    refuse(
        parameters.max_new_tokens == Some(0),
        ValidationError::NegativeMaxNewTokens,
    )?;
    check_stop(&parameters.stop, limits.max_stop_sequences)?;
    check_tokens(parameters)?;
    let priority = parameters.priority.unwrap_or(0);
    refuse(
        !PRIORITIES.contains(&priority),
        ValidationError::Priority {
            max: *PRIORITIES.end(),
            given: priority,
        },
    )?;
    let salt = parameters.cache_salt.as_ref().map_or(0, String::len);
    refuse(
        salt > MAX_CACHE_SALT,
        ValidationError::CacheSalt {
            max: MAX_CACHE_SALT,
            given: salt,
        },
    )?;
    refuse(
        best_of > 1 && parameters.seed.is_some(),
        ValidationError::BestOfSeed,
    )?;
    check_top_n_tokens(parameters.top_n_tokens.unwrap_or(0), dialect, limits)
}

fn refuse(wrong: bool, error: ValidationError) -> Result<(), ValidationError> {
    if wrong { Err(error) } else { Ok(()) }
}

/// Whether a value that may be missing satisfies the rule. Comparisons with NaN are false, so NaN satisfies none.
fn all(value: Option<f32>, rule: impl Fn(f32) -> bool) -> bool {
    value.is_none_or(rule)
}

fn is_inner_fraction(value: f32) -> bool {
    value > 0.0 && value < 1.0
}

fn check_repetition_penalty(penalty: Option<f32>) -> Result<(), ValidationError> {
    let Some(given) = penalty else { return Ok(()) };
    // NaN is not greater either.
    let positive = given > 0.0;
    refuse(!positive, ValidationError::RepetitionPenalty)?;
    let (&min, &max) = (REPETITION_PENALTIES.start(), REPETITION_PENALTIES.end());
    refuse(
        !REPETITION_PENALTIES.contains(&given),
        ValidationError::RepetitionPenaltyRange { min, max, given },
    )
}

fn check_top_n_tokens(
    given: u32,
    dialect: Dialect,
    limits: &ValidationLimits,
) -> Result<(), ValidationError> {
    let (max, error) = match dialect {
        Dialect::Tgi => {
            let max = limits.max_top_n_tokens;
            (max, ValidationError::TopNTokens { max, given })
        }
        Dialect::OpenAi => {
            let max = limits.max_logprobs;
            (max, ValidationError::Logprobs { max, given })
        }
    };
    refuse(given > max, error)
}

fn check_stop(stop: &[String], max: usize) -> Result<(), ValidationError> {
    let given = stop.len();
    refuse(given > max, ValidationError::StopSequences { max, given })?;
    refuse(
        stop.iter().any(String::is_empty),
        ValidationError::EmptyStopSequence,
    )?;
    let (given, max) = (stop.iter().map(String::len).max(), MAX_STOP_BYTES);
    let given = given.unwrap_or(0);
    refuse(given > max, ValidationError::StopLength { max, given })
}

/// What is said of single tokens and words, as far as no tokenizer is needed.
fn check_tokens(parameters: &GenerateParameters) -> Result<(), ValidationError> {
    let given = parameters.stop_token_ids.as_ref().map_or(0, Vec::len);
    let max = MAX_STOP_TOKENS;
    refuse(given > max, ValidationError::StopTokens { max, given })?;
    let words = parameters.bad_words.as_deref().unwrap_or_default();
    let (given, max) = (words.len(), MAX_BAD_WORDS);
    refuse(given > max, ValidationError::BadWords { max, given })?;
    refuse(
        words.iter().any(|word| word.trim_start().is_empty()),
        ValidationError::EmptyBadWord,
    )?;
    let given = words.iter().map(String::len).max().unwrap_or(0);
    let max = MAX_STOP_BYTES;
    refuse(given > max, ValidationError::BadWordLength { max, given })
}

/// The token sequences that may not be generated, of pairs of a word and the same after a space. The second says nothing
/// new where it is the first after other tokens.
pub(super) fn bad_sequences(pairs: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut sequences = Vec::new();
    for pair in pairs.chunks(2) {
        let [plain, spaced] = pair else { continue };
        sequences.push(plain.clone());
        if !spaced.ends_with(plain) {
            sequences.push(spaced.clone());
        }
    }
    sequences
}

/// What is in the text, where the request leaves it to the dialect too.
pub(super) fn text_content(parameters: &GenerateParameters, dialect: Dialect) -> TextContent {
    let includes_stop = parameters.include_stop_str_in_output;
    TextContent {
        includes_stop: includes_stop.unwrap_or_else(|| dialect.includes_stop()),
        special_tokens: match parameters.skip_special_tokens {
            Some(false) => SpecialTokens::Shown,
            _ if parameters.keep_special_tokens => SpecialTokens::Parsed,
            _ => SpecialTokens::Hidden,
        },
    }
}

/// How many of the `tokens` of a prompt are kept, at its end.
pub(super) fn kept(
    tokens: usize,
    parameters: &GenerateParameters,
    limits: &ValidationLimits,
) -> usize {
    let most = if parameters.truncate_to_fit {
        let new = parameters.max_new_tokens.unwrap_or(1);
        let room = limits.max_total_tokens.saturating_sub(new);
        Some(room.clamp(1, limits.max_input_tokens.max(1)) as usize)
    } else {
        parameters.truncate
    };
    most.map_or(tokens, |most| most.min(tokens))
}

fn check_logit_bias(
    logit_bias: Option<&BTreeMap<u32, f32>>,
    vocab_size: u32,
) -> Result<(), ValidationError> {
    let Some(logit_bias) = logit_bias else {
        return Ok(());
    };
    let (given, max) = (logit_bias.len(), MAX_LOGIT_BIAS);
    refuse(given > max, ValidationError::LogitBiasLength { max, given })?;
    for (&id, &bias) in logit_bias {
        let (field, max) = ("logit_bias", vocab_size);
        refuse(id >= max, ValidationError::TokenId { field, id, max })?;
        refuse(
            !(-100.0..=100.0).contains(&bias),
            ValidationError::LogitBias { id, bias },
        )?;
    }
    Ok(())
}

pub(super) fn check_inputs(inputs: &Inputs) -> Result<(), ValidationError> {
    let empty = match inputs {
        Inputs::Text(text) => text.is_empty(),
        Inputs::Ids(ids) => ids.is_empty(),
    };
    refuse(empty, ValidationError::EmptyInput)
}

/// Refuses a text that has too many tokens whatever they are, before it is tokenised: that would take seconds, and others
/// would wait. `longest` is the number of bytes of the longest token, where it tells.
pub(super) fn check_bytes(
    inputs: &Inputs,
    longest: Option<usize>,
    limits: &ValidationLimits,
) -> Result<(), ValidationError> {
    let (Inputs::Text(text), Some(longest)) = (inputs, longest) else {
        return Ok(());
    };
    let (bytes, max) = (text.len(), limits.max_input_tokens);
    let least = bytes.div_ceil(longest.max(1));
    refuse(
        least > max as usize,
        ValidationError::InputBytes {
            max,
            bytes,
            least,
            total: limits.max_total_tokens,
        },
    )
}

/// How many tokens `inputs` have at least.
pub(super) fn least_tokens(inputs: &Inputs, longest: Option<usize>) -> usize {
    match (inputs, longest) {
        (Inputs::Ids(ids), _) => ids.len(),
        (Inputs::Text(text), Some(longest)) => text.len().div_ceil(longest.max(1)),
        (Inputs::Text(_), None) => 0,
    }
}

/// Whether a prediction of at least so many tokens is no longer than a prompt may be.
pub(super) fn check_prediction(
    tokens: usize,
    limits: &ValidationLimits,
) -> Result<(), ValidationError> {
    let max = limits.max_input_tokens;
    refuse(
        tokens > max as usize,
        ValidationError::PredictionLength { max, given: tokens },
    )
}

pub(super) fn check_truncate(
    truncate: Option<usize>,
    dialect: Dialect,
    limits: &ValidationLimits,
) -> Result<(), ValidationError> {
    let max = limits.max_input_tokens;
    match truncate {
        Some(given) if given == 0 || given > max as usize => Err(match dialect {
            Dialect::Tgi => ValidationError::Truncate { max, given },
            Dialect::OpenAi => ValidationError::TruncatePrompt { max, given },
        }),
        _ => Ok(()),
    }
}

/// Checks the length of the prompt, in tokens, and returns how many tokens may be generated, at least one.
pub(super) fn check_lengths(
    inputs: usize,
    parameters: &GenerateParameters,
    limits: &ValidationLimits,
) -> Result<u32, ValidationError> {
    // A text can encode to no token at all when the normalizer removes everything.
    refuse(inputs == 0, ValidationError::EmptyInput)?;
    let inputs = u32::try_from(inputs).unwrap_or(u32::MAX);
    let max = limits.max_total_tokens;
    let room = max.saturating_sub(inputs);
    let asked = parameters.max_new_tokens;
    let new = match asked {
        Some(new) if parameters.clamp_max_new_tokens => new.min(room),
        Some(new) => new,
        // A shard gives a token with the logits of classes.
        None if parameters.classify => room.min(1),
        None => room,
    };
    if parameters.truncate_to_fit {
        refuse(new >= max, ValidationError::NoRoom { max, new })?;
    }
    let too_many = |new| ValidationError::MaxTotalTokens {
        max,
        inputs,
        new: asked.unwrap_or(new),
        asked: asked.is_some(),
    };
    refuse(
        inputs.checked_add(new).is_none_or(|total| total > max),
        too_many(new),
    )?;
    let max_input = limits.max_input_tokens;
    refuse(
        inputs > max_input,
        ValidationError::InputLength {
            max: max_input,
            given: inputs,
            total: max,
        },
    )?;
    // Only where the input limit equals the total limit.
    refuse(new == 0, too_many(1))?;
    Ok(new)
}

/// `max` is what the request may generate, whether it said so or not.
pub(super) fn check_min_new_tokens(
    min_new_tokens: Option<u32>,
    max: u32,
) -> Result<(), ValidationError> {
    let given = min_new_tokens.unwrap_or(0);
    refuse(given > max, ValidationError::MinNewTokens { max, given })
}

/// Ids come from clients, and a tokenizer may know more tokens than the model.
pub(super) fn check_ids(
    field: &'static str,
    ids: &[u32],
    vocab_size: u32,
) -> Result<(), ValidationError> {
    let max = vocab_size;
    match ids.iter().find(|&&id| id >= max) {
        Some(&id) => Err(ValidationError::TokenId { field, id, max }),
        None => Ok(()),
    }
}

/// Whether tokens are drawn at random. As in TGI, a temperature of exactly 1 alone does not ask for it.
fn samples(parameters: &GenerateParameters) -> bool {
    parameters.do_sample
        || parameters
            .temperature
            .is_some_and(|temperature| temperature != 1.0)
        || parameters.top_k.is_some()
        || parameters.top_p.is_some()
        || parameters.typical_p.is_some()
        || parameters.min_p.is_some_and(|min_p| min_p > 0.0)
}

/// Missing parameters become the neutral values of the shard contract.
pub(super) fn chooser(parameters: &GenerateParameters, dialect: Dialect) -> NextTokenChooser {
    let do_sample = samples(parameters);
    let seed = match parameters.seed {
        Some(seed) => seed,
        None if do_sample => rand::random(),
        None => 0,
    };
    NextTokenChooser {
        temperature: parameters.temperature.unwrap_or(1.0),
        top_k: parameters
            .top_k
            .and_then(|k| u32::try_from(k).ok())
            .unwrap_or(0),
        top_p: parameters.top_p.unwrap_or(1.0),
        typical_p: parameters.typical_p.unwrap_or(1.0),
        do_sample,
        seed,
        repetition_penalty: parameters.repetition_penalty.unwrap_or(1.0),
        frequency_penalty: parameters.frequency_penalty.unwrap_or(0.0),
        watermark: parameters.watermark,
        presence_penalty: parameters.presence_penalty.unwrap_or(0.0),
        penalize_output_only: dialect == Dialect::OpenAi,
        min_p: parameters.min_p.unwrap_or(0.0),
        logit_bias: parameters
            .logit_bias
            .iter()
            .flatten()
            .map(|(&id, &bias)| (id, bias))
            .collect(),
        min_new_tokens: parameters.min_new_tokens.unwrap_or(0),
    }
}
