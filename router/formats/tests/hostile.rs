//! Texts and tools that are made to cost much: each is read, or refused, in a time that grows as its size does.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use std::time::{Duration, Instant};

use common::{SPECIAL, format, options, parse_pieces, prompt, tool};
use serde_json::{Map, Value, json};
use text_generation_formats::{Constraint, Format, FormatError, SpecialTokens, Tool, ToolChoice};

/// Far more than any of them takes, and far less than it takes whoever does too much.
const SOON: Duration = Duration::from_secs(20);

fn grammar(format: &Format, tool: Tool) -> Result<Option<String>, FormatError> {
    let special: SpecialTokens = SPECIAL
        .iter()
        .map(|&text| text.to_owned())
        .zip(0..)
        .collect();
    format.grammar(&Constraint {
        tools: &[tool],
        choice: &ToolChoice::Required,
        parallel: true,
        has_form: false,
        prompt_tail: prompt(format),
        special_tokens: &special,
    })
}

#[test]
fn white_space_without_end_is_read_soon_wherever_it_comes() {
    let schema = json!({"properties": {"note": {"type": ["string", "null"]}}});
    let tools = [tool("f", schema)];
    let arguments = json!({"note": "a"});
    let arguments = arguments.as_object().expect("an object");
    for format in Format::all() {
        let began = Instant::now();
        let call = format.write(&[("f", arguments)]);
        let places = call.char_indices().filter(|(at, _)| at % 20 == 0);
        for (at, _) in places {
            let (before, after) = call.split_at(at);
            let spaces = std::iter::repeat_n("                ", 4_000);
            let pieces = std::iter::once(before).chain(spaces).chain([after]);
            parse_pieces(format, prompt(format), pieces, &options(&tools));
        }
        let took = began.elapsed();
        assert!(took < SOON / 2, "{}: {took:?}", format.name());
    }
}

/// A schema whose alternatives are all itself.
fn circle() -> Value {
    let alternatives = vec![json!({"$ref": "#/$defs/a"}); 8];
    json!({
        "type": "object",
        "properties": {"note": {"$ref": "#/$defs/a"}},
        "required": ["note"],
        "$defs": {"a": {"allOf": alternatives.clone(), "oneOf": alternatives, "type": "null"}},
    })
}

#[test]
fn alternatives_that_are_themselves_are_followed_once() {
    let arguments = json!({"note": null});
    let arguments = arguments.as_object().expect("an object");
    for format in Format::all() {
        let call = format.write(&[("f", arguments)]);
        let tools = [tool("f", circle())];
        let answer = parse_pieces(format, prompt(format), [call.as_str()], &options(&tools));
        assert_eq!(
            answer.called(),
            [("f", json!({"note": null}))],
            "{}",
            format.name()
        );
        assert!(
            grammar(format, tool("f", circle())).is_ok(),
            "{}",
            format.name()
        );
    }
}

#[test]
fn objects_that_contain_themselves_have_a_grammar_as_small_as_they_are() {
    let members = ('a'..='j').map(|name| (name.to_string(), json!({"$ref": "#/$defs/a"})));
    let members: Map<String, Value> = members.collect();
    let schema = json!({
        "type": "object",
        "properties": members.clone(),
        "$defs": {"a": {"type": "object", "properties": members}},
    });
    for format in Format::all() {
        let grammar = grammar(format, tool("f", schema.clone()));
        let grammar = grammar.expect("a grammar").expect("something to enforce");
        assert!(
            grammar.len() < 100_000,
            "{}: {}",
            format.name(),
            grammar.len()
        );
    }
}

#[test]
fn definitions_are_repeated_only_where_they_are_needed_and_never_without_end() {
    let numbers = |number: Value| {
        let names = (0..200).map(|index| (format!("p{index}"), number.clone()));
        let used = "x".repeat(100_000);
        json!({
            "type": "object",
            "properties": names.collect::<Map<_, _>>(),
            "$defs": {"a": {"minimum": 1, "description": used}},
        })
    };
    let plain = numbers(json!({"type": "integer"}));
    let referring = numbers(json!({"type": "integer", "allOf": [{"$ref": "#/$defs/a"}]}));
    for name in ["gemma4", "pythonic", "glm45"] {
        let small = grammar(format(name), tool("f", plain.clone()));
        let small = small.expect("a grammar").expect("something to enforce");
        assert!(small.len() < 100_000, "{name}: {}", small.len());
        let large = grammar(format(name), tool("f", referring.clone()));
        assert!(matches!(large, Err(FormatError::TooLarge { .. })), "{name}");
    }
}

#[test]
fn values_full_of_special_tokens_are_written_soon() {
    let schema = json!({
        "type": "object",
        "properties": {"note": {"enum": ["<eos>".repeat(20_000)]}},
    });
    let began = Instant::now();
    let grammar = grammar(format("gemma4"), tool("f", schema)).expect("a grammar");
    assert!(
        grammar
            .expect("something to enforce")
            .contains("<[0]> <[0]>")
    );
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}
