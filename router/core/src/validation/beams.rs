//! The rules on beam search: it looks for the texts that the model finds most probable, so what would choose among tokens
//! in another way is refused.

use crate::error::ValidationError;
use crate::types::{Beams, GenerateParameters, ValidationLimits, field_of_beams};

/// Outside of these a score of a long text is not finite.
const MOST_LENGTH_PENALTY: f32 = 10.0;

/// How a request is searched for, where it asks for a search.
pub(super) fn check(
    parameters: &GenerateParameters,
    limits: &ValidationLimits,
) -> Result<Option<Beams>, ValidationError> {
    let Some(width) = parameters.beam_width else {
        return match field_of_beams(parameters.length_penalty, parameters.early_stopping) {
            Some(field) => Err(ValidationError::NoBeams { field }),
            None => Ok(None),
        };
    };
    check_width(width, limits)?;
    if let Some(field) = excluded(parameters) {
        return Err(ValidationError::NotWithBeams { field });
    }
    let length_penalty = parameters.length_penalty.unwrap_or(1.0);
    let max = MOST_LENGTH_PENALTY;
    if !(-max..=max).contains(&length_penalty) {
        return Err(ValidationError::LengthPenalty { max });
    }
    Ok(Some(Beams {
        width,
        length_penalty,
        early_stopping: parameters.early_stopping.unwrap_or_default(),
    }))
}

/// Whether a search may have so many beams.
pub(super) fn check_width(given: u32, limits: &ValidationLimits) -> Result<(), ValidationError> {
    match limits.max_beam_width {
        0 => Err(ValidationError::BeamsDisabled),
        max if !(1..=max).contains(&given) => Err(ValidationError::BeamWidth { max, given }),
        _ => Ok(()),
    }
}

/// The first field that asks for what a search does not do. Values that ask for nothing are taken.
fn excluded(parameters: &GenerateParameters) -> Option<&'static str> {
    let given = |value: Option<f32>, neutral: f32| value.is_some_and(|value| value != neutral);
    let bias = parameters.logit_bias.as_ref();
    let words = parameters.bad_words.as_ref();
    let fields = [
        (parameters.best_of.is_some_and(|n| n != 1), "best_of"),
        (parameters.do_sample, "do_sample"),
        (given(parameters.temperature, 1.0), "temperature"),
        (parameters.top_k.is_some(), "top_k"),
        (parameters.top_p.is_some(), "top_p"),
        (parameters.typical_p.is_some(), "typical_p"),
        (given(parameters.min_p, 0.0), "min_p"),
        (parameters.seed.is_some(), "seed"),
        (
            given(parameters.repetition_penalty, 1.0),
            "repetition_penalty",
        ),
        (
            given(parameters.frequency_penalty, 0.0),
            "frequency_penalty",
        ),
        (given(parameters.presence_penalty, 0.0), "presence_penalty"),
        (parameters.watermark, "watermark"),
        (bias.is_some_and(|bias| !bias.is_empty()), "logit_bias"),
        (words.is_some_and(|words| !words.is_empty()), "bad_words"),
        (parameters.grammar.is_some(), "grammar"),
        (parameters.token_healing, "token_healing"),
        (parameters.prediction.is_some(), "prediction"),
    ];
    let asked = fields.into_iter().find(|(asked, _)| *asked);
    asked.map(|(_, field)| field)
}
