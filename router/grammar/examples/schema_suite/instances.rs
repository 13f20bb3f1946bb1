//! Instances of the JSON-Schema-Test-Suite: which valid ones a grammar refuses, and which invalid ones it takes.

use serde_json::{Value, json};
use text_generation_grammar::{Compiler, CompilerLimits, Grammar};

use crate::compile;
use crate::vocabularies::{END, Tokens};

pub async fn report(tokens: &Tokens, suite: &Value) -> Value {
    let compiler = Compiler::new(tokens.vocabulary.clone(), CompilerLimits::default());
    let (mut groups, mut accepted, mut instances) = (0, 0, 0);
    let (mut refused, mut taken) = (Vec::new(), Vec::new());
    for (file, cases) in suite.as_object().into_iter().flatten() {
        for case in cases.as_array().into_iter().flatten() {
            groups += 1;
            let Ok(grammar) = compile(&compiler, &case["schema"], true).await else {
                continue;
            };
            accepted += 1;
            for test in case["tests"].as_array().into_iter().flatten() {
                instances += 1;
                let fits = matches(&grammar, &test["data"]);
                let valid = test["valid"] == true;
                let name = || json!([file, case["description"], test["description"], test["data"]]);
                match (valid, fits) {
                    (true, false) => refused.push(name()),
                    (false, true) => taken.push(name()),
                    _ => {}
                }
            }
        }
    }
    json!({
        "schemas": groups, "accepted_strict": accepted, "instances": instances,
        "valid_refused_count": refused.len(), "valid_refused": refused,
        "invalid_taken_count": taken.len(), "invalid_taken": taken,
    })
}

/// Writings of one instance that are tried.
const WRITINGS: usize = 5000;

/// Whether the grammar allows the instance in one of its writings: a grammar fixes the order of names.
fn matches(grammar: &Grammar, instance: &Value) -> bool {
    writings(instance).iter().any(|text| allows(grammar, text))
}

/// As a whole text. Ids of the vocabulary are bytes.
fn allows(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    text.bytes()
        .all(|byte| matcher.accept(u32::from(byte)).is_ok())
        && matcher.mask().is_ok_and(|mask| mask.allows(END))
}

/// The instance as JSON without whitespace, with names in every order, up to a limit.
fn writings(value: &Value) -> Vec<String> {
    match value {
        Value::Array(items) => {
            let parts: Vec<Vec<String>> = items.iter().map(writings).collect();
            let texts = products(&parts).into_iter();
            texts
                .map(|items| format!("[{}]", items.join(",")))
                .collect()
        }
        Value::Object(entries) => {
            let parts: Vec<Vec<String>> = entries
                .iter()
                .map(|(name, value)| {
                    let name = Value::from(name.as_str());
                    let values = writings(value).into_iter();
                    values.map(|value| format!("{name}:{value}")).collect()
                })
                .collect();
            let texts = products(&parts)
                .into_iter()
                .flat_map(|entries| orders(&entries));
            let texts = texts.map(|entries| format!("{{{}}}", entries.join(",")));
            texts.take(WRITINGS).collect()
        }
        Value::Number(number) => match number.as_f64() {
            // The library that reads the suite writes 1.0 where 1 is the same number.
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e15 => {
                vec![number.to_string(), format!("{float:.0}")]
            }
            _ => vec![number.to_string()],
        },
        other => vec![other.to_string()],
    }
}

fn products(parts: &[Vec<String>]) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    for part in parts {
        all = all
            .iter()
            .flat_map(|before| {
                part.iter()
                    .map(|one| [before.as_slice(), std::slice::from_ref(one)].concat())
            })
            .take(WRITINGS)
            .collect();
    }
    all
}

fn orders(items: &[String]) -> Vec<Vec<String>> {
    if items.len() <= 1 || items.len() > 6 {
        return vec![items.to_vec()];
    }
    let mut all = Vec::new();
    for (index, first) in items.iter().enumerate() {
        let rest = [&items[..index], &items[index + 1..]].concat();
        all.extend(
            orders(&rest)
                .into_iter()
                .map(|rest| [std::slice::from_ref(first), rest.as_slice()].concat()),
        );
    }
    all
}
