//! Sources that are made to cost much: each is compiled or refused soon, and then each token is.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper of tests may panic as they do"
)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{feed, vocabulary};
use serde_json::{Map, Value, json};
use text_generation_grammar::{Compiler, CompilerLimits, GrammarError, GrammarSource};

/// Far more than any of them takes, and far less than it takes whoever has no limits.
const SOON: Duration = Duration::from_secs(20);

fn schema(schema: Value) -> GrammarSource {
    GrammarSource::JsonSchema {
        schema,
        strict: false,
    }
}

fn regex(regex: &str) -> GrammarSource {
    GrammarSource::Regex(regex.into())
}

fn objects(depth: usize) -> Value {
    (0..depth).fold(
        json!({"type": "null"}),
        |inner, _| json!({"type": "object", "properties": {"a": inner}, "required": ["a"]}),
    )
}

fn properties(count: usize) -> Value {
    let names = (0..count).map(|index| (format!("p{index}"), json!({"type": "integer"})));
    json!({"type": "object", "properties": names.collect::<Map<_, _>>()})
}

fn ebnf(root: String) -> GrammarSource {
    GrammarSource::Ebnf(format!("root ::= {root}"))
}

/// Patterns of names of which no two match the same.
fn names(count: usize) -> Value {
    let patterns = (0..count).map(|index| (format!("^a{index}$"), json!({})));
    json!({"type": "object", "patternProperties": patterns.collect::<Map<_, _>>()})
}

/// Each of so many definitions is one of two ways to the next, and the last is the first.
fn branching(count: usize) -> Value {
    let reference = |index: usize| json!({"$ref": format!("#/$defs/{}", index % count)});
    let both = |index| json!({"anyOf": [reference(index + 1), {"allOf": [reference(index + 1)]}]});
    let definitions = (0..count).map(|index| (index.to_string(), both(index)));
    json!({"$defs": definitions.collect::<Map<_, _>>(), "$ref": "#/$defs/0"})
}

/// What becomes of a source.
enum Outcome {
    /// It is followed along this text, after which many more tokens may come.
    Follows(String),
    TooLarge,
    /// No value fits it.
    Endless,
}

fn sources() -> Vec<(GrammarSource, Outcome)> {
    let texts: Vec<String> = (0..5000).map(|index| format!("text {index}")).collect();
    let follows = |text: &str, times: usize| Outcome::Follows(text.repeat(times));
    let circle = json!({"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}});
    vec![
        (schema(json!({"enum": texts})), follows("\"text 49", 1)),
        (schema(objects(60)), follows("{\"a\":", 50)),
        (
            schema(json!({"type": "string", "maxLength": 5000})),
            Outcome::Follows(format!("\"{}", "a".repeat(60))),
        ),
        (regex("[a-z]{1,2000}"), follows("a", 60)),
        (regex("(x{1,99}){1,99}"), follows("x", 60)),
        (regex(".*a.{12}"), follows("ab", 30)),
        (regex("(a+)+b"), follows("a", 60)),
        (
            ebnf(format!("\"a\"{}| \"b\"", "\n".repeat(100_000))),
            follows("b", 1),
        ),
        (schema(names(3000)), follows("{", 1)),
        (
            schema(json!({"type": "string", "pattern": r"\p{L}".repeat(40_000)})),
            follows("\"", 1),
        ),
        (schema(properties(20_000)), Outcome::TooLarge),
        (
            schema(json!({"title": "x".repeat(5_000_000)})),
            Outcome::TooLarge,
        ),
        (schema(json!({"$ref": "#"})), Outcome::Endless),
        (
            schema(json!({"$defs": circle, "$ref": "#/$defs/a"})),
            Outcome::Endless,
        ),
        (schema(branching(100)), Outcome::Endless),
    ]
}

#[tokio::test]
async fn costly_sources_are_compiled_or_refused_soon_and_so_is_each_token() {
    // Work is bounded by its steps; how long a loaded machine takes for them is not asked here.
    let limits = CompilerLimits {
        time: SOON,
        ..CompilerLimits::default()
    };
    let compiler = Compiler::new(vocabulary(), limits);
    let began = Instant::now();
    for (index, (source, end)) in sources().into_iter().enumerate() {
        let compiled = compiler.compile(source).await;
        let mut matcher = match (compiled, &end) {
            (Err(GrammarError::TooLarge { .. }), Outcome::TooLarge) => continue,
            (Err(GrammarError::Invalid { .. }), Outcome::Endless) => continue,
            (compiled, _) => compiled.unwrap().matcher(),
        };
        match end {
            Outcome::Follows(text) => assert!(feed(&mut matcher, &text), "source {index}"),
            Outcome::TooLarge => panic!("source {index} is too large"),
            Outcome::Endless => panic!("source {index} is refused"),
        }
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[tokio::test]
async fn notes_of_what_is_not_enforced_stay_few() {
    let forbidden = vec![json!({"not": {}}); 5000];
    let deep =
        json!({"type": "object", "properties": {("k".repeat(10_000)): {"anyOf": forbidden}}});
    let compiler = Compiler::new(vocabulary(), CompilerLimits::default());
    let grammar = compiler.compile(schema(deep)).await.unwrap();
    let notes = grammar.not_enforced();
    assert!(!notes.is_empty() && notes.len() <= 100, "{}", notes.len());
}

#[tokio::test]
async fn ever_new_sources_leave_the_cache_as_large_as_it_may_be() {
    let limits = CompilerLimits {
        cache_bytes: 1 << 20,
        ..CompilerLimits::default()
    };
    let compiler = Compiler::new(vocabulary(), limits);
    let source = |index: usize| regex(&format!("[a-z]{{{}}}", 1 + index));
    let mut kept = Vec::new();
    for index in 0..300 {
        kept.push(compiler.compile(source(index)).await.unwrap());
    }
    let is_kept = async |index: usize| {
        let again = compiler.compile(source(index)).await.unwrap();
        Arc::ptr_eq(&again, &kept[index])
    };
    assert!(is_kept(299).await);
    assert!(!is_kept(0).await);
}
