//! Names of one field, and numbers that are written in two ways.

use serde_json::{Value, json};

use crate::probe::Probe;
use crate::rows::rows;

/// Routes, and a field with its names there, its own first.
const NAMES: [(&str, &[&str]); 10] = [
    (
        "/v1/chat/completions",
        &[
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "max_new_tokens",
        ],
    ),
    (
        "/v1/chat/completions",
        &["truncate_prompt_tokens", "truncate"],
    ),
    ("/v1/completions", &["max_tokens", "max_new_tokens"]),
    ("/v1/completions", &["min_tokens", "min_new_tokens"]),
    ("/v1/responses", &["max_output_tokens", "max_tokens"]),
    ("/v1/responses", &["min_tokens", "min_new_tokens"]),
    ("/v1/messages", &["max_tokens", "max_completion_tokens"]),
    ("/v1/messages", &["truncate_prompt_tokens", "truncate"]),
    ("/generate", &["max_new_tokens", "max_tokens"]),
    ("/generate", &["min_new_tokens", "min_tokens"]),
];

#[tokio::test]
async fn names_of_one_field_may_say_the_same() {
    let probe = Probe::start().await;
    for (route, names) in NAMES {
        let expected = probe.send(route, json!({names[0]: 4})).await;
        assert_eq!(expected.0, 200, "{route} {names:?}: {}", expected.1);
        for other in &names[1..] {
            for keys in [
                json!({*other: 4}),
                json!({*other: 4, names[0]: 4}),
                json!({names[0]: 4, *other: 4.0}),
                json!({names[0]: null, *other: 4}),
                json!({*other: null, names[0]: 4}),
            ] {
                assert_eq!(
                    probe.send(route, keys.clone()).await,
                    expected,
                    "{route} {keys}"
                );
            }
            for keys in [
                json!({*other: 4, names[0]: 5}),
                json!({names[0]: 5, *other: 4}),
            ] {
                let (status, answer, _) = probe.send(route, keys.clone()).await;
                let said = answer.to_string();
                assert!((400..500).contains(&status), "{route} {keys}: {said}");
                for name in [names[0], *other] {
                    assert!(said.contains(&format!("{name}`")), "{route} {keys}: {said}");
                }
            }
        }
    }
}

#[tokio::test]
async fn stop_strings_have_two_names() {
    let probe = Probe::start().await;
    for route in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/generate",
    ] {
        let expected = probe.send(route, json!({"stop": ["c"]})).await;
        assert_eq!(expected.0, 200, "{route}: {}", expected.1);
        for keys in [
            json!({"stop_sequences": ["c"]}),
            json!({"stop_sequences": ["c"], "stop": ["c"]}),
            json!({"stop": ["c"], "stop_sequences": "c"}),
            json!({"stop": [], "stop_sequences": ["c"]}),
        ] {
            assert_eq!(
                probe.send(route, keys.clone()).await,
                expected,
                "{route} {keys}"
            );
        }
        for (keys, named) in [
            (
                json!({"stop": ["c"], "stop_sequences": ["d"]}),
                "stop_sequences`: it is another name of `stop`",
            ),
            (json!({"stop_sequences": 5}), "stop_sequences` must be a "),
        ] {
            let (status, answer, _) = probe.send(route, keys.clone()).await;
            assert!((400..500).contains(&status), "{route} {keys}: {answer}");
            assert!(
                answer.to_string().contains(named),
                "{route} {keys}: {answer}"
            );
        }
    }
}

/// With other numbers in the place of whole ones; None where there are none.
fn written(example: &Value, add: f64) -> Option<Value> {
    match example {
        Value::Number(number) if number.is_u64() => Some(json!(number.as_f64()? + add)),
        Value::Array(list) => list.iter().map(|one| written(one, add)).collect(),
        _ => None,
    }
}

#[tokio::test]
async fn whole_numbers_may_have_a_fraction_of_zero() {
    let probe = Probe::start().await;
    let mut tried = 0;
    for row in rows().iter().filter(|row| row.becomes == "obeyed") {
        let Some(example) = &row.example else {
            continue;
        };
        let (Some(float), Some(half)) = (written(example, 0.0), written(example, 0.5)) else {
            continue;
        };
        let expected = probe.send_field(row, example.clone()).await;
        assert_eq!(probe.send_field(row, float).await, expected, "{row:?}");
        let (status, answer, _) = probe.send_field(row, half).await;
        let said = answer.to_string();
        assert!((400..500).contains(&status), "{row:?}: {said}");
        assert!(
            said.contains(&row.field) && said.contains("a whole number"),
            "{row:?}: {said}"
        );
        tried += 1;
    }
    assert!(tried > 40, "{tried}");
}
