//! Which JSON the parameters of a request accept.

use serde_json::{Value, json};
use text_generation_core::types::GenerateParameters;

fn parse(json: &str) -> Result<GenerateParameters, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

fn one(key: &str, value: Value) -> Result<GenerateParameters, String> {
    parse(&json!({ key: value }).to_string())
}

#[test]
fn keys_of_a_logit_bias_are_token_ids() {
    let read = |bias: Value| one("logit_bias", bias).map(|parameters| parameters.logit_bias);
    assert_eq!(
        read(json!({"5": -1, "9": 2.5})),
        Ok(Some([(5, -1.0), (9, 2.5)].into()))
    );
    for key in ["a", "", "-1", "1.5", "4294967296"] {
        let json = json!({"logit_bias": {key: 1}}).to_string();
        let error = serde_json::from_str::<GenerateParameters>(&json).unwrap_err();
        assert!(error.is_data(), "{key}: not the JSON is wrong, but a value");
        assert!(error.to_string().contains("is not a token id"), "{error}");
    }
}

#[test]
fn every_key_is_optional() {
    assert_eq!(parse("{}").unwrap(), GenerateParameters::default());
    assert!(!parse("{}").unwrap().do_sample);
}

#[test]
fn null_is_a_missing_value_where_the_contract_says_so() {
    let nullable = [
        "best_of",
        "temperature",
        "repetition_penalty",
        "frequency_penalty",
        "top_k",
        "top_p",
        "typical_p",
        "max_new_tokens",
        "return_full_text",
        "truncate",
        "seed",
        "top_n_tokens",
        "grammar",
        "adapter_id",
        "min_p",
        "logit_bias",
        "min_new_tokens",
    ];
    for key in nullable {
        assert_eq!(
            one(key, Value::Null),
            Ok(GenerateParameters::default()),
            "{key}"
        );
    }
    for key in [
        "do_sample",
        "stop",
        "watermark",
        "details",
        "decoder_input_details",
        "ignore_eos",
    ] {
        assert!(one(key, Value::Null).unwrap_err().contains("null"), "{key}");
    }
}

#[test]
fn unknown_keys_are_ignored() {
    let parameters = parse(r#"{"no_such_key": {"a": [1]}, "top_k": 3}"#).unwrap();
    assert_eq!(parameters.top_k, Some(3));
}

#[test]
fn a_presence_penalty_is_a_parameter() {
    let given = one("presence_penalty", json!(1.0)).unwrap();
    assert_eq!(given.presence_penalty, Some(1.0));
}

#[test]
fn a_logit_bias_is_an_object_of_token_ids() {
    let bias = one("logit_bias", json!({"7": -100, "50256": 1.5})).unwrap();
    assert_eq!(bias.logit_bias, Some([(7, -100.0), (50256, 1.5)].into()));
    for wrong in [
        json!({"-1": 1}),
        json!({"x": 1}),
        json!({"7": "1"}),
        json!([7]),
    ] {
        assert!(one("logit_bias", wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn numbers_out_of_range_are_errors_and_do_not_wrap() {
    let out_of_range = [
        ("best_of", json!(-1)),
        ("best_of", json!(1_u64 << 32)),
        ("top_k", json!(1_u64 << 31)),
        ("top_k", json!(-(1_i64 << 31) - 1)),
        ("max_new_tokens", json!(-1)),
        ("max_new_tokens", json!(1_u64 << 32)),
        ("max_new_tokens", json!(1.5)),
        ("truncate", json!(-1)),
        ("seed", json!(-1)),
        ("top_n_tokens", json!(1_u64 << 32)),
    ];
    for (key, value) in out_of_range {
        let error = one(key, value.clone()).expect_err(&format!("{key}: {value}"));
        assert!(error.contains("invalid"), "{key}: {error}");
    }
    assert!(parse(r#"{"seed": 18446744073709551616}"#).is_err());
    assert!(parse(r#"{"temperature": 1e999}"#).is_err());
    assert!(parse(r#"{"temperature": NaN}"#).is_err());
    assert_eq!(one("seed", json!(u64::MAX)).unwrap().seed, Some(u64::MAX));
    assert_eq!(one("top_k", json!(i32::MIN)).unwrap().top_k, Some(i32::MIN));
}

/// A double that no float holds becomes infinite, which validation refuses.
#[test]
fn floats_too_large_become_infinite() {
    assert_eq!(
        one("temperature", json!(1e39)).unwrap().temperature,
        Some(f32::INFINITY)
    );
    assert_eq!(one("top_p", json!(1)).unwrap().top_p, Some(1.0));
}

#[test]
fn wrong_types_are_errors() {
    let wrong = [
        ("temperature", json!("0.5")),
        ("do_sample", json!("true")),
        ("stop", json!("one string")),
        ("stop", json!([1])),
        ("adapter_id", json!(7)),
    ];
    for (key, value) in wrong {
        assert!(one(key, value).is_err(), "{key}");
    }
}
