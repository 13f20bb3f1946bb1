//! Sources with many parts: each is followed to its end, or refused with the limit before anything is generated.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests may panic as they do"
)]

mod common;

use std::time::Duration;

use common::{matches, vocabulary};
use serde_json::{Map, Value, json};
use text_generation_grammar::{Compiler, CompilerLimits, GrammarError, GrammarSource};

/// Far more than any of them takes, however loaded the machine is.
const SOON: Duration = Duration::from_secs(60);

fn schema(schema: Value) -> GrammarSource {
    GrammarSource::JsonSchema {
        schema,
        strict: false,
    }
}

fn ebnf(root: String) -> GrammarSource {
    GrammarSource::Ebnf(format!("root ::= {root}"))
}

/// Properties that are strings.
fn strings(count: usize, required: bool) -> Value {
    let names = (0..count).map(|index| format!("p{index}"));
    let schema = |name: String| (name, json!({"type": "string"}));
    let required: Vec<String> = names.clone().filter(|_| required).collect();
    let properties: Map<_, _> = names.map(schema).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

/// A choice among so many objects, each with a name of its own.
fn kinds(count: usize) -> Vec<Value> {
    let kind = |index| {
        let properties = json!({"kind": {"const": format!("k{index}")}, "x": {"type": "string"}});
        json!({"type": "object", "properties": properties, "required": ["kind"]})
    };
    (0..count).map(kind).collect()
}

fn definitions(count: usize) -> Value {
    let schemas = kinds(count).into_iter().enumerate();
    let definitions: Map<_, _> = schemas
        .map(|(index, kind)| (format!("d{index}"), kind))
        .collect();
    let names = (0..count).map(|index| json!({"$ref": format!("#/$defs/d{index}")}));
    json!({"$defs": definitions, "type": "array", "items": {"anyOf": names.collect::<Vec<_>>()}})
}

/// One of so many rules, over and over.
fn rules(count: usize) -> GrammarSource {
    let names: Vec<String> = (0..count).map(|index| format!("r{index}")).collect();
    let rule = |(index, name): (usize, &String)| {
        let next = (index + 1) % count;
        format!("\n{name} ::= \"a{index}\" | \"b{index}\" r{next}")
    };
    let rules: String = names.iter().enumerate().map(rule).collect();
    ebnf(format!("({})+{rules}", names.join(" | ")))
}

#[tokio::test]
async fn large_sources_are_followed_to_their_end() {
    let limits = CompilerLimits {
        time: SOON,
        mask_time: SOON,
        ..CompilerLimits::default()
    };
    let compiler = Compiler::new(vocabulary(), limits);
    let objects: Vec<Value> = (0..10_000).map(|index| json!({"a": index})).collect();
    let texts: Vec<String> = (0..10_000).map(|index| format!("t{index}")).collect();
    let all: Vec<String> = (0..500).map(|index| format!("\"p{index}\":\"\"")).collect();
    let some = r#"{"p7": "a", "p400": "b", "p2999": "c"}"#;
    let pair = json!({"type": "object", "properties": {"a": {}, "inner": strings(3000, false)}});
    for (source, text) in [
        (schema(strings(3000, false)), some.to_owned()),
        (schema(pair), format!("{{\"a\": 1, \"inner\": {some}}}")),
        (schema(strings(500, true)), format!("{{{}}}", all.join(","))),
        (schema(json!({"enum": objects})), "{\"a\":1234}".to_owned()),
        (schema(json!({"enum": texts})), "\"t1234\"".to_owned()),
        (GrammarSource::Choice(texts), "t1234".to_owned()),
        (
            schema(json!({"anyOf": kinds(900)})),
            r#"{"kind": "k50", "x": "a"}"#.to_owned(),
        ),
        (
            schema(definitions(900)),
            r#"[{"kind": "k50", "x": "a"}, {"kind": "k899"}]"#.to_owned(),
        ),
        (rules(900), "a1b899a0b7a8".to_owned()),
    ] {
        let grammar = compiler.compile(source).await.unwrap();
        assert!(matches(&grammar, &text), "{text:.60}");
    }
    let nulls = json!({"type": "array", "prefixItems": vec![json!({"type": "null"}); 2100]});
    let grammar = compiler.compile(schema(nulls)).await.unwrap();
    let mut matcher = grammar.matcher();
    for byte in format!("[{}]", vec!["null"; 2100].join(",")).bytes() {
        matcher.accept(byte.into()).unwrap();
    }
    assert!(matcher.is_finished());
}

#[tokio::test]
async fn an_object_with_too_many_optional_properties_is_refused_with_the_limit() {
    let compiler = Compiler::new(vocabulary(), CompilerLimits::default());
    let error = compiler.compile(schema(strings(4001, false))).await;
    assert_eq!(
        error.unwrap_err().to_string(),
        "the JSON schema has 4001 properties of one object that are not in `required`, and at most 4000 are allowed: \
         make it smaller"
    );
}

#[tokio::test]
async fn too_many_rules_at_one_place_are_refused_with_the_limit() {
    let limits = CompilerLimits {
        places: 100,
        ..CompilerLimits::default()
    };
    let compiler = Compiler::new(vocabulary(), limits);
    let behind = |count: usize| {
        let GrammarSource::Ebnf(grammar) = rules(count) else {
            panic!("an EBNF grammar");
        };
        GrammarSource::Ebnf(grammar.replace("root ::= ", "root ::= \"x\" "))
    };
    for refused in [rules(200), behind(200)] {
        let error = compiler.compile(refused).await.unwrap_err();
        assert!(matches!(error, GrammarError::TooComplex { .. }), "{error}");
        assert!(error.to_string().contains("more than 100"), "{error}");
    }
    for allowed in [rules(20), behind(20)] {
        compiler.compile(allowed).await.unwrap();
    }
}

#[tokio::test]
async fn a_sample_keeps_as_much_as_it_may() {
    let limits = CompilerLimits {
        sample_items: 10_000,
        ..CompilerLimits::default()
    };
    let compiler = Compiler::new(vocabulary(), limits);
    let names: Vec<String> = (0..200).map(|index| format!("\"p{index}\":\"\"")).collect();
    let grammar = compiler.compile(schema(strings(200, false))).await;
    let mut matcher = grammar.unwrap().matcher();
    let text = format!("{{{}", names.join(","));
    let taken = text.bytes().map(|byte| matcher.accept(byte.into()));
    let error = taken.filter_map(Result::err).next();
    let reason = "the text so far takes more than 10000 items".to_owned();
    assert_eq!(error, Some(GrammarError::OutOfFuel { reason }));
}

#[tokio::test]
async fn a_place_that_costs_too_much_is_found_with_the_mask_before_it() {
    let limits = CompilerLimits {
        mask_items: 300,
        ..CompilerLimits::default()
    };
    let compiler = Compiler::new(vocabulary(), limits);
    let grammar = compiler.compile(schema(strings(100, false))).await;
    let error = grammar.unwrap().first_mask().unwrap_err();
    assert!(matches!(error, GrammarError::OutOfFuel { .. }), "{error}");
    let right = compiler
        .compile(ebnf("\"a\" root | \"b\"".to_owned()))
        .await;
    let mut matcher = right.unwrap().matcher();
    let failed = (0..400).find_map(|_| {
        matcher.mask().err().or_else(|| {
            // What the mask allows can be taken.
            matcher.accept(b'a'.into()).unwrap();
            None
        })
    });
    assert!(matches!(failed, Some(GrammarError::OutOfFuel { .. })));
}
