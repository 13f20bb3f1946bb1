//! Requests that break a rule, and the message each gets.

use super::*;
use crate::error::PromptTokens;

#[tokio::test]
async fn every_rule_on_parameters_has_its_message() {
    let strictly_positive_temperature = "`temperature` must be strictly positive";
    let strictly_positive_repetition = "`repetition_penalty` must be strictly positive";
    let frequency = "`frequency_penalty` must be >= -2.0 and <= 2.0";
    let presence = "`presence_penalty` must be >= -2.0 and <= 2.0";
    let min_p = "`min_p` must be >= 0.0 and <= 1.0";
    let top_p = "`top_p` must be > 0.0 and < 1.0";
    let typical_p = "`typical_p` must be > 0.0 and < 1.0";
    let cases: Vec<(Change, &str)> = vec![
        (
            |p| p.best_of = Some(2),
            "you must use sampling when `best_of` is > 1",
        ),
        (|p| p.temperature = Some(0.0), strictly_positive_temperature),
        (
            |p| p.temperature = Some(-1.0),
            strictly_positive_temperature,
        ),
        (
            |p| p.temperature = Some(f32::NAN),
            strictly_positive_temperature,
        ),
        (
            |p| p.temperature = Some(f32::INFINITY),
            "`temperature` must be <= 3.4028235e38",
        ),
        (
            |p| p.repetition_penalty = Some(0.0),
            strictly_positive_repetition,
        ),
        (
            |p| p.repetition_penalty = Some(f32::NAN),
            strictly_positive_repetition,
        ),
        (
            |p| p.repetition_penalty = Some(f32::INFINITY),
            "`repetition_penalty` must be >= 1e-30 and <= 1e30. Given: more than 3.4028235e38",
        ),
        (
            |p| p.repetition_penalty = Some(1e-45),
            "`repetition_penalty` must be >= 1e-30 and <= 1e30. Given: 1e-45",
        ),
        (
            |p| p.repetition_penalty = Some(2e30),
            "`repetition_penalty` must be >= 1e-30 and <= 1e30. Given: 2e30",
        ),
        (|p| p.frequency_penalty = Some(-2.1), frequency),
        (|p| p.frequency_penalty = Some(2.1), frequency),
        (|p| p.frequency_penalty = Some(f32::NAN), frequency),
        (|p| p.frequency_penalty = Some(f32::NEG_INFINITY), frequency),
        (|p| p.presence_penalty = Some(-2.1), presence),
        (|p| p.presence_penalty = Some(2.1), presence),
        (|p| p.presence_penalty = Some(f32::NAN), presence),
        (|p| p.min_p = Some(-0.1), min_p),
        (|p| p.min_p = Some(1.1), min_p),
        (|p| p.min_p = Some(f32::NAN), min_p),
        (
            |p| p.logit_bias = Some([(1000, 1.0)].into()),
            "`logit_bias` contains the token id 1000, but the model knows only ids below 1000",
        ),
        (
            |p| p.logit_bias = Some([(1, 0.0), (7, 100.5)].into()),
            "`logit_bias` must be >= -100.0 and <= 100.0. Given: 100.5 for the token id 7",
        ),
        (
            |p| p.logit_bias = Some([(7, f32::NAN)].into()),
            "`logit_bias` must be >= -100.0 and <= 100.0. Given: NaN for the token id 7",
        ),
        (
            |p| p.logit_bias = Some((0..1025).map(|id| (id, 0.0)).collect()),
            "`logit_bias` supports up to 1024 token ids. Given: 1025",
        ),
        (
            |p| p.min_new_tokens = Some(5),
            "`min_new_tokens` must be <= `max_new_tokens`, which is 4. Given: 5",
        ),
        (|p| p.top_p = Some(0.0), top_p),
        (|p| p.top_p = Some(1.0), top_p),
        (|p| p.top_p = Some(f32::NAN), top_p),
        (|p| p.top_p = Some(f32::INFINITY), top_p),
        (|p| p.typical_p = Some(0.0), typical_p),
        (|p| p.typical_p = Some(1.0), typical_p),
        (|p| p.typical_p = Some(f32::NAN), typical_p),
        (|p| p.typical_p = Some(f32::NEG_INFINITY), typical_p),
        (|p| p.top_k = Some(0), "`top_k` must be strictly positive"),
        (|p| p.top_k = Some(-1), "`top_k` must be strictly positive"),
        (
            |p| p.max_new_tokens = Some(0),
            "`max_new_tokens` must be strictly positive",
        ),
        (
            |p| p.stop = vec!["x".into(); 5],
            "`stop` supports up to 4 stop sequences. Given: 5",
        ),
        (
            |p| p.stop = vec!["x".into(), String::new()],
            "`stop` must not contain an empty string",
        ),
        (
            |p| p.stop = vec!["x".repeat(4096), "x".repeat(4097)],
            "`stop` must not contain a string of more than 4096 bytes. Given: 4097",
        ),
        (
            |p| (p.best_of, p.do_sample, p.seed) = (Some(2), true, Some(1)),
            "`seed` must not be set when `best_of` > 1",
        ),
        (
            |p| p.top_n_tokens = Some(6),
            "`top_n_tokens` must be >= 0 and <= 5. Given: 6",
        ),
        (
            |p| p.truncate = Some(0),
            "`truncate` must be strictly positive and less than 8. Given: 0",
        ),
        (
            |p| p.truncate = Some(9),
            "`truncate` must be strictly positive and less than 8. Given: 9",
        ),
        (
            |p| p.grammar = Some(GrammarSource::JsonObject),
            "grammar is not supported",
        ),
        (
            |p| p.adapter_id = Some("lora".into()),
            "`adapter_id` is not supported: this server was started without LoRA adapters (`--lora-adapters`)",
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(message("~", change).await, expected);
    }
}

#[tokio::test]
async fn what_is_too_long_whatever_its_tokens_are_is_not_tokenised() {
    let longest = byte_level().longest_token().unwrap();
    let text = "~".repeat(8 * longest + 1);
    let expected = format!(
        "`inputs` must have less than 8 tokens. Given: {} bytes, which are at least 9 tokens",
        text.len()
    );
    assert_eq!(message(&text, |_| {}).await, expected);
    let fits = message(&text[1..], |_| {}).await;
    assert!(fits.contains("tokens and 4 `max_new_tokens`"), "{fits}");
    let cut = request(&text, parameters(|p| p.truncate = Some(3)));
    let valid = validator(LIMITS).validate(cut).await.unwrap();
    assert_eq!(valid.input_ids.len(), 3);
}

#[tokio::test]
async fn lengths_are_checked_in_tokens() {
    let total = "`inputs` tokens + `max_new_tokens` must be <= 12. Given:";
    let cases = [
        (0, Some(1), "`inputs` cannot be empty".to_owned()),
        (
            8,
            Some(5),
            format!("{total} 8 `inputs` tokens and 5 `max_new_tokens`"),
        ),
        (
            1,
            Some(u32::MAX),
            format!(
                "{total} 1 `inputs` tokens and {} `max_new_tokens`",
                u32::MAX
            ),
        ),
        // The total comes first.
        (
            10,
            Some(3),
            format!("{total} 10 `inputs` tokens and 3 `max_new_tokens`"),
        ),
        (
            13,
            None,
            format!("{total} 13 `inputs` tokens and 0 `max_new_tokens`"),
        ),
        (
            9,
            Some(3),
            "`inputs` must have less than 8 tokens. Given: 9".to_owned(),
        ),
        (
            9,
            None,
            "`inputs` must have less than 8 tokens. Given: 9".to_owned(),
        ),
        (
            12,
            None,
            "`inputs` must have less than 8 tokens. Given: 12".to_owned(),
        ),
    ];
    for (inputs, max_new_tokens, expected) in cases {
        assert_eq!(
            message(&tildes(inputs), |p| p.max_new_tokens = max_new_tokens).await,
            expected
        );
    }
}

#[tokio::test]
async fn the_first_rule_that_fails_gives_the_error() {
    // Each step breaks one rule earlier in the order than all before it.
    let steps: [(Change, &str); 16] = [
        (|p| p.adapter_id = Some("lora".into()), "adapter_id"),
        (|p| p.grammar = Some(GrammarSource::JsonObject), "grammar"),
        (
            |p| p.max_new_tokens = Some(100),
            "`inputs` tokens + `max_new_tokens`",
        ),
        (|p| p.truncate = Some(9), "truncate"),
        (|p| p.top_n_tokens = Some(6), "top_n_tokens"),
        (|p| p.seed = Some(1), "seed"),
        (|p| p.stop = vec![String::new()], "empty string"),
        (|p| p.stop = vec![String::new(); 5], "stop sequences"),
        (|p| p.max_new_tokens = Some(0), "max_new_tokens"),
        (|p| p.top_k = Some(0), "top_k"),
        (|p| p.typical_p = Some(1.0), "typical_p"),
        (|p| p.top_p = Some(1.0), "top_p"),
        (|p| p.frequency_penalty = Some(3.0), "frequency_penalty"),
        (|p| p.repetition_penalty = Some(0.0), "repetition_penalty"),
        (|p| p.temperature = Some(0.0), "temperature"),
        (
            |p| {
                (p.do_sample, p.top_p, p.top_k, p.typical_p, p.temperature) =
                    (false, None, None, None, None);
            },
            "sampling",
        ),
    ];
    let mut broken = parameters(|p| (p.best_of, p.do_sample) = (Some(2), true));
    for (change, expected) in steps {
        change(&mut broken);
        let error = validator(LIMITS)
            .validate(request("~", broken.clone()))
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains(expected),
            "{error} instead of {expected}"
        );
    }
    // Empty inputs stand between `top_n_tokens` and `truncate`, the input length before the grammar.
    assert!(
        message("", |p| p.top_n_tokens = Some(6))
            .await
            .contains("top_n_tokens")
    );
    assert!(
        message("", |p| p.truncate = Some(9))
            .await
            .contains("cannot be empty")
    );
    let grammar: Change =
        |p| (p.grammar, p.max_new_tokens) = (Some(GrammarSource::JsonObject), Some(1));
    assert!(
        message(&tildes(9), grammar)
            .await
            .contains("less than 8 tokens")
    );
}

#[tokio::test]
async fn ids_that_the_model_does_not_know_are_named() {
    let id = byte_level().encode("~", true).unwrap()[0];
    let limits = ValidationLimits {
        vocab_size: id,
        ..LIMITS
    };
    let error = validator(limits)
        .validate(request("~", parameters(|_| ())))
        .await
        .unwrap_err();
    let expected =
        format!("`inputs` contains the token id {id}, but the model knows only ids below {id}");
    assert_eq!(error.to_string(), expected);
    let limits = ValidationLimits {
        vocab_size: id + 1,
        ..LIMITS
    };
    assert!(
        validator(limits)
            .validate(request("~", parameters(|_| ())))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn prompts_of_ids_keep_the_rules_of_texts() {
    let message = async |ids: Vec<u32>| {
        let mut request = request("", parameters(|_| ()));
        request.inputs = Inputs::Ids(ids);
        let refused = validator(LIMITS).validate(request).await;
        refused.unwrap_err().to_string()
    };
    assert_eq!(message(vec![]).await, "`inputs` cannot be empty");
    assert_eq!(
        message(vec![1, 1000]).await,
        "`inputs` contains the token id 1000, but the model knows only ids below 1000"
    );
    let total = "`inputs` tokens + `max_new_tokens` must be <= 12. Given: 9 `inputs` tokens and 4";
    assert!(message(vec![1; 9]).await.starts_with(total));
}

#[tokio::test]
async fn a_prompt_always_leaves_room_for_a_token() {
    let limits = ValidationLimits {
        max_input_tokens: 12,
        ..LIMITS
    };
    let no_limit = parameters(|p| p.max_new_tokens = None);
    let error = validator(limits)
        .validate(request(&tildes(12), no_limit))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        ValidationError::MaxTotalTokens {
            max: 12,
            inputs: 12,
            new: 1,
            asked: false,
        }
    );
}

#[tokio::test]
async fn a_limit_that_is_clamped_is_told_as_it_was_sent() {
    let clamped = parameters(|p| {
        p.max_new_tokens = Some(5);
        p.clamp_max_new_tokens = true;
    });
    let error = validator(LIMITS)
        .validate(request(&tildes(20), clamped))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("20 `inputs` tokens and 5 `max_new_tokens`"),
        "{error}"
    );
    let overflow = error.overflow().unwrap();
    assert_eq!(
        (overflow.inputs, overflow.new),
        (PromptTokens::Exactly(20), Some(5))
    );
}

#[tokio::test]
async fn openai_has_a_limit_of_its_own_on_alternatives() {
    let refused = async |dialect, top| {
        let request = GenerateRequest {
            dialect,
            ..request("~", parameters(|p| p.top_n_tokens = Some(top)))
        };
        let result = validator(LIMITS).validate(request).await;
        result.err().map(|error| error.to_string())
    };
    assert_eq!(refused(Dialect::Tgi, 5).await, None);
    let message = "`top_n_tokens` must be >= 0 and <= 5. Given: 6";
    assert_eq!(refused(Dialect::Tgi, 6).await.as_deref(), Some(message));
    assert_eq!(refused(Dialect::OpenAi, 20).await, None);
    let message = "`top_n_tokens` must be >= 0 and <= 20 (`--max-logprobs`). Given: 21";
    assert_eq!(refused(Dialect::OpenAi, 21).await.as_deref(), Some(message));
}

#[test]
fn the_field_to_change_is_that_which_can_make_it_fit() {
    let total = |inputs, new| ValidationError::MaxTotalTokens {
        max: 12,
        inputs,
        new,
        asked: true,
    };
    assert_eq!(total(3, 10).field(), Some("max_new_tokens"));
    assert_eq!(total(12, 1).field(), Some("inputs"));
}

#[tokio::test]
async fn best_of_has_its_bounds() {
    let bounds = |given| ValidationError::BestOf { max: 2, given };
    let cases = [
        (0, Err(bounds(0))),
        (1, Ok(())),
        (2, Ok(())),
        (3, Err(bounds(3))),
    ];
    let two = validator(LIMITS);
    for (given, expected) in cases {
        assert_eq!(two.best_of(given), expected);
    }
    assert_eq!(
        bounds(3).to_string(),
        "`best_of` must be > 0 and <= 2. Given: 3"
    );
    let one = validator(ValidationLimits {
        max_best_of: 1,
        ..LIMITS
    });
    assert_eq!(one.best_of(1), Ok(()));
    for given in [0, 2] {
        let error = one.best_of(given).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`best_of` != 1 is not allowed for this endpoint"
        );
    }
}

#[tokio::test]
async fn streams_refuse_what_they_cannot_do() {
    let best_of = "`best_of` != 1 is not supported when streaming tokens";
    let details = "`decoder_input_details` == true is not supported when streaming tokens";
    let cases: [(Change, Option<&str>); 6] = [
        (|_| (), None),
        (|p| p.best_of = Some(1), None),
        (|p| p.best_of = Some(0), Some(best_of)),
        (|p| p.best_of = Some(2), Some(best_of)),
        (|p| p.decoder_input_details = true, Some(details)),
        (
            |p| (p.best_of, p.decoder_input_details) = (Some(2), true),
            Some(best_of),
        ),
    ];
    let validator = validator(LIMITS);
    for (change, expected) in cases {
        let result = validator.stream(&parameters(change));
        assert_eq!(
            result.err().map(|error| error.to_string()).as_deref(),
            expected
        );
    }
}

#[tokio::test]
async fn a_prompt_that_is_cut_to_nothing_is_not_blamed() {
    let cut = parameters(|p| {
        p.max_new_tokens = Some(12);
        p.truncate_to_fit = true;
    });
    let error = validator(LIMITS)
        .validate(request(&tildes(5), cut))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "`max_new_tokens` must be < 12, which is for prompt and answer together. Given: 12"
    );
    let overflow = error.overflow().unwrap();
    assert_eq!(
        (overflow.inputs, overflow.new),
        (PromptTokens::Cut, Some(12))
    );
}

#[tokio::test]
async fn a_count_of_kept_tokens_is_told_as_its_api_means_it() {
    for given in [0, 9] {
        let mut request = request("~", parameters(|p| p.truncate = Some(given)));
        request.dialect = Dialect::OpenAi;
        let error = validator(LIMITS).validate(request).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("`truncate` must be -1, or >= 1 and <= 8. Given: {given}")
        );
    }
}
