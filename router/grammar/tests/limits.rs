//! Limits, the cache, and errors that stay with their request.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests may panic as they do"
)]

#[path = "common/ambiguous.rs"]
mod ambiguous;
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ambiguous::ambiguous;
use common::vocabulary;
use serde_json::{Value, json};
use text_generation_grammar::{
    Compiler, CompilerLimits, GrammarError, GrammarSource, TokenEntry, Vocabulary,
};

async fn refused(limits: CompilerLimits, source: GrammarSource) -> GrammarError {
    let compiler = Compiler::new(vocabulary(), limits);
    let error = compiler.compile(source).await.unwrap_err();
    // The compiler serves others as before.
    compiler
        .compile(GrammarSource::Regex("a".into()))
        .await
        .unwrap();
    error
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(
        json!({"type": "null"}),
        |schema, _| json!({"type": "array", "items": schema}),
    )
}

/// `definitions` that refer to each other in one long chain.
fn chain(length: usize) -> Value {
    let links = (0..length).map(|index| {
        (
            index.to_string(),
            json!({"$ref": format!("#/$defs/{}", index + 1)}),
        )
    });
    let end = [(length.to_string(), json!({"type": "null"}))];
    let links: serde_json::Map<String, Value> = links.chain(end).collect();
    json!({"$defs": links, "$ref": "#/$defs/0"})
}

#[tokio::test]
async fn sources_have_sizes() {
    let limits = || CompilerLimits {
        schema_bytes: 100,
        grammar_bytes: 20,
        regex_bytes: 10,
        choices: 3,
        choice_bytes: 10,
        ..CompilerLimits::default()
    };
    let long = "a".repeat(101);
    for (source, limit) in [
        (
            GrammarSource::JsonSchema {
                schema: json!({"title": long}),
                strict: false,
            },
            100,
        ),
        (GrammarSource::Lark(long.clone()), 20),
        (GrammarSource::Ebnf(long.clone()), 20),
        (GrammarSource::Regex(long.clone()), 10),
        (GrammarSource::Choice(vec!["a".into(); 4]), 3),
        (GrammarSource::Choice(vec![long]), 10),
    ] {
        let error = refused(limits(), source).await;
        assert!(
            matches!(error, GrammarError::TooLarge { limit: found, .. } if found == limit),
            "{error}"
        );
    }
}

/// Patterns that all have to match.
fn patterns(count: usize) -> Value {
    let patterns =
        (0..count).map(|index| json!({"type": "string", "pattern": format!("a{index}")}));
    json!({"allOf": patterns.collect::<Vec<_>>()})
}

/// Objects inside each other, each in 16 forms.
fn multiplied(depth: usize) -> Value {
    let two = |name: &str| json!({"anyOf": [{"required": [name]}, {"required": ["other"]}]});
    let four: Vec<Value> = ["a", "b", "c", "d"].map(two).to_vec();
    (0..depth).fold(
        json!({"type": "object"}),
        |inner, _| json!({"type": "object", "properties": {"inner": inner}, "allOf": four}),
    )
}

#[tokio::test]
async fn depth_is_limited_and_never_ends_the_process() {
    let brackets = |count: usize| format!("start: {}\"a\"{}", "(".repeat(count), ")".repeat(count));
    let rules = (0..5000)
        .map(|index| format!("r{index}: r{}\n", index + 1))
        .collect::<String>();
    for source in [
        GrammarSource::JsonSchema {
            schema: chain(2000),
            strict: false,
        },
        GrammarSource::Lark(brackets(50_000)),
        GrammarSource::Ebnf(brackets(50_000).replace("start:", "root ::=")),
        GrammarSource::Regex("(".repeat(8000) + &")".repeat(8000)),
        GrammarSource::Lark(format!("start: r0\n{rules}")),
        GrammarSource::Ebnf(format!("root ::= \"a\"{}", "*".repeat(100_000))),
        GrammarSource::Ebnf(format!("root ::= r0\n{}", rules.replace(':', " ::="))),
        GrammarSource::JsonSchema {
            schema: multiplied(12),
            strict: false,
        },
        GrammarSource::JsonSchema {
            schema: patterns(40),
            strict: false,
        },
        GrammarSource::Lark(format!("start: A\nA: {}/.*/", "/.*a.*/ & ".repeat(40))),
    ] {
        let error = refused(CompilerLimits::default(), source).await;
        assert!(error.to_string().len() < 1000, "{error}");
    }
    let compiler = Compiler::new(vocabulary(), CompilerLimits::default());
    for schema in [nested(60), chain(100)] {
        compiler
            .compile(GrammarSource::JsonSchema {
                schema,
                strict: true,
            })
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn work_is_limited() {
    let limits = CompilerLimits {
        compile_fuel: 1000,
        ..CompilerLimits::default()
    };
    let choices = (0..2000).map(|index| format!("choice {index}")).collect();
    let error = refused(limits, GrammarSource::Choice(choices)).await;
    assert!(matches!(error, GrammarError::TooComplex { .. }), "{error}");
}

#[tokio::test]
async fn a_mask_that_runs_out_of_fuel_is_an_error_and_no_end() {
    let limits = CompilerLimits {
        mask_fuel: 20,
        ..CompilerLimits::default()
    };
    let compiler = Compiler::new(vocabulary(), limits);
    let source = GrammarSource::Regex("(a|b)*a(a|b){12}c".into());
    let grammar = compiler.compile(source).await.unwrap();
    let mut matcher = grammar.matcher();
    let error = (0..50).find_map(|index| {
        matcher
            .mask()
            .err()
            .or_else(|| matcher.accept(b'a' as u32 + index % 2).err())
    });
    assert!(
        matches!(error, Some(GrammarError::OutOfFuel { .. })),
        "{error:?}"
    );
    assert_eq!(matcher.mask().err(), error, "it stays at its error");
    assert!(!matcher.is_finished());
}

#[tokio::test]
async fn a_token_that_takes_too_long_is_an_error_of_its_sample_alone() {
    let limits = CompilerLimits {
        mask_time: Duration::from_millis(100),
        ..CompilerLimits::default()
    };
    let compiler = Compiler::new(vocabulary(), limits);
    let grammar = compiler.compile(ambiguous()).await.unwrap();
    let mut matcher = grammar.matcher();
    let mut step = || {
        matcher.mask()?;
        matcher.accept(u32::from(b'a'))
    };
    let began = Instant::now();
    let error = (0..50).find_map(|_| step().err()).unwrap();
    let reason = "one token took more than 100 ms".to_owned();
    assert_eq!(error, GrammarError::OutOfFuel { reason });
    // On a slow machine a single one of these tokens takes longer without the limit.
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(matcher.mask().err(), Some(error), "it stays at its error");
    let regex = GrammarSource::Regex("a".into());
    let mut other = compiler.compile(regex).await.unwrap().matcher();
    assert!(other.mask().unwrap().allows(u32::from(b'a')));
}

/// Ever more ways to cut a text: each token is cheap, and a little dearer than the one before.
fn ever_dearer() -> GrammarSource {
    GrammarSource::Ebnf("root ::= s\ns ::= s s s | s s | [a-z ]".to_owned())
}

#[tokio::test]
async fn tokens_that_take_too_long_together_are_an_error_of_their_sample_alone() {
    let limits = CompilerLimits {
        sample_time: Duration::from_millis(200),
        token_time: Duration::from_micros(100),
        mask_time: Duration::from_secs(60),
        ..CompilerLimits::default()
    };
    let compiler = Compiler::new(vocabulary(), limits);
    let grammar = compiler.compile(ever_dearer()).await.unwrap();
    let mut matcher = grammar.matcher();
    let mut step = || {
        matcher.mask()?;
        matcher.accept(u32::from(b'a'))
    };
    // Without the limit two hundred tokens take 7 s of a fast machine.
    let error = (0..200).find_map(|_| step().err()).unwrap();
    let reason = "its tokens take more than 0 ms each, and 200 ms together beyond that".to_owned();
    assert_eq!(error, GrammarError::OutOfFuel { reason });
    assert_eq!(matcher.mask().err(), Some(error), "it stays at its error");
    // What it has used up is not another sample's.
    let mut other = grammar.matcher();
    assert!(other.mask().unwrap().allows(u32::from(b'a')));
    other.accept(u32::from(b'a')).unwrap();
}

#[tokio::test]
async fn equal_sources_are_compiled_once() {
    let compiler = Compiler::new(vocabulary(), CompilerLimits::default());
    let compile = || compiler.compile(GrammarSource::JsonObject);
    // On one thread the second asks while the first is being compiled.
    let (first, second) = tokio::join!(compile(), compile());
    let third = compile().await.unwrap();
    let first = first.unwrap();
    assert!(Arc::ptr_eq(&first, &second.unwrap()));
    assert!(Arc::ptr_eq(&first, &third));
}

#[tokio::test]
async fn the_cache_is_bounded_by_bytes() {
    let regex = |index: usize| GrammarSource::Regex(format!("[a-z]{{{index}}}"));
    for (cache_bytes, kept) in [(0, false), (64 << 20, true)] {
        let limits = CompilerLimits {
            cache_bytes,
            ..CompilerLimits::default()
        };
        let compiler = Compiler::new(vocabulary(), limits);
        let first = compiler.compile(regex(1)).await.unwrap();
        compiler.compile(regex(2)).await.unwrap();
        let again = compiler.compile(regex(1)).await.unwrap();
        assert_eq!(Arc::ptr_eq(&first, &again), kept);
    }
}

#[test]
fn a_vocabulary_that_cannot_be_used_is_refused() {
    let tokens = || {
        vec![TokenEntry {
            bytes: b"a".to_vec(),
            special: false,
        }]
    };
    for eos in [&[][..], &[1]] {
        let error = Vocabulary::new(tokens(), eos).unwrap_err();
        assert!(matches!(error, GrammarError::Vocabulary { .. }), "{error}");
    }
}
