mod accepted;
mod refused;

use super::*;
use crate::test_tokenizers::byte_level;

const LIMITS: ValidationLimits = ValidationLimits {
    max_best_of: 2,
    max_beam_width: 8,
    max_stop_sequences: 4,
    max_top_n_tokens: 5,
    max_logprobs: 20,
    max_input_tokens: 8,
    max_total_tokens: 12,
    vocab_size: 1000,
    prefill_logprobs: true,
    grammar_support: true,
};

fn validator(limits: ValidationLimits) -> Validator {
    Validator::new(TokenizerPool::new(byte_level(), 1).unwrap(), limits)
}

/// `~` is one token for each character.
fn tildes(count: usize) -> String {
    "~".repeat(count)
}

fn parameters(change: impl FnOnce(&mut GenerateParameters)) -> GenerateParameters {
    let mut parameters = GenerateParameters {
        max_new_tokens: Some(4),
        ..Default::default()
    };
    change(&mut parameters);
    parameters
}

fn request(inputs: &str, parameters: GenerateParameters) -> GenerateRequest {
    GenerateRequest {
        inputs: inputs.into(),
        parameters,
        add_special_tokens: true,
        dialect: Dialect::Tgi,
        images: Vec::new(),
    }
}

async fn valid(change: impl FnOnce(&mut GenerateParameters)) -> ValidRequest {
    validator(LIMITS)
        .validate(request(&tildes(3), parameters(change)))
        .await
        .unwrap()
}

async fn message(inputs: &str, change: impl FnOnce(&mut GenerateParameters)) -> String {
    let result = validator(LIMITS)
        .validate(request(inputs, parameters(change)))
        .await;
    result.unwrap_err().to_string()
}

type Change = fn(&mut GenerateParameters);
