//! Deltas do not depend on how the text is cut, whatever the text is.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use common::{Answer, options, parse_pieces, prompt, tools};
use proptest::prelude::*;
use serde_json::{Map, json};
use text_generation_formats::{Format, ParserOptions};

/// A text of parts of this format's calls, prose, and what breaks things, and where to cut it.
fn answers() -> impl Strategy<Value = (usize, Vec<String>, Vec<usize>)> {
    let piece = (0..24_usize, 0..200_usize);
    (
        0..Format::all().len(),
        prop::collection::vec(piece, 0..6),
        prop::collection::vec(1..40_usize, 1..6),
    )
        .prop_map(|(format, pieces, cuts)| {
            let pieces = pieces
                .into_iter()
                .map(|(kind, at)| part(&Format::all()[format], kind, at));
            (format, pieces.collect(), cuts)
        })
}

fn part(format: &Format, kind: usize, at: usize) -> String {
    let arguments = json!({"city": "Zürich \"{[('</x\n", "days": 3, "tags": ["a", "你"]});
    let arguments = arguments.as_object().expect("an object");
    let none = Map::new();
    let call = format.write(&[("get_weather", arguments)]);
    let cut = |text: &str| text.chars().take(at).collect::<String>();
    let parts = [
        " prose, and more. ",
        "\n\n",
        "{",
        "<",
        "[",
        "</think>",
        "<think>",
        "\"",
        "}",
        ")",
        "\\u00e4",
        "null",
        "]",
        "<tool_call>",
        "<|channel|>final<|message|>",
        "<|end|>",
        "；",
        "1.5e",
    ];
    match kind {
        0 | 1 => call,
        2 => format.write(&[("get_weather", arguments), ("ping", &none)]),
        3 | 4 => cut(&call),
        5 => call.replacen(['{', '='], "", 1),
        6.. => parts[(kind + at) % parts.len()].to_owned(),
    }
}

/// The text in pieces of these sizes, again and again.
fn pieces<'a>(text: &'a str, sizes: &[usize]) -> Vec<&'a str> {
    let bounds: Vec<usize> = text
        .char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .collect();
    let mut pieces = Vec::new();
    let mut start = 0;
    for size in sizes.iter().cycle() {
        if start + 1 >= bounds.len() {
            break;
        }
        let end = (start + size).min(bounds.len() - 1);
        pieces.push(&text[bounds[start]..bounds[end]]);
        start = end;
    }
    pieces
}

/// Whether this is the beginning of a JSON object, as serde_json sees it: at worst, it ends too early.
fn is_beginning(arguments: &str) -> bool {
    match serde_json::from_str::<serde_json::Value>(arguments) {
        Ok(value) => value.is_object(),
        Err(error) => error.is_eof() && (arguments.is_empty() || arguments.starts_with('{')),
    }
}

fn check(answer: &Answer, text: &str) {
    for call in &answer.calls {
        assert!(is_beginning(&call.arguments), "{text:?} {call:?}");
        let whole = serde_json::from_str::<serde_json::Value>(&call.arguments).is_ok();
        assert!(whole || !call.ended, "{text:?} {call:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn any_cut_gives_the_same_answer((format, parts, sizes) in answers(), with_tools: bool, separate: bool) {
        let format = &Format::all()[format];
        let text = parts.concat();
        let tools = if with_tools { tools() } else { Vec::new() };
        let options = ParserOptions { separate_reasoning: separate, ..options(&tools) };
        let prompt = prompt(format);
        let whole = parse_pieces(format, prompt, [text.as_str()], &options);
        prop_assert_eq!(&parse_pieces(format, prompt, pieces(&text, &sizes), &options), &whole, "{}", text);
        prop_assert_eq!(&parse_pieces(format, prompt, pieces(&text, &[1]), &options), &whole, "{}", text);
        check(&whole, &text);
    }
}

#[test]
fn a_call_that_is_cut_anywhere_gives_a_beginning_of_it() {
    let arguments =
        json!({"city": "Zü\"\n\\", "days": 3, "note": null, "limits": {"low": 1.5}, "tags": ["a"]});
    let arguments = arguments.as_object().expect("an object");
    let options = options(&tools());
    for format in Format::all() {
        let prompt = prompt(format);
        let text = format.write(&[("get_weather", arguments)]);
        let whole = parse_pieces(format, prompt, [text.as_str()], &options);
        let full = &whole.calls[0].arguments;
        assert!(whole.calls[0].ended, "{}", format.name());
        for (end, _) in text.char_indices() {
            let cut = parse_pieces(format, prompt, [&text[..end]], &options);
            let case = format!("{} {:?} {cut:?}", format.name(), &text[..end]);
            match cut.calls.as_slice() {
                // Before the arguments, it is text as it was written; headers of channels are none.
                [] if format.name() == "openai" => assert_eq!(cut.content, "", "{case}"),
                [] if matches!(format.name(), "inkling" | "muse_glimmer") => {
                    assert!(text[..end].ends_with(&cut.content), "{case}");
                }
                [] => assert_eq!(cut.content, text[..end], "{case}"),
                [call] => {
                    // The beginning of a marker behind the call is not known to be one.
                    assert!("<|eom|>".starts_with(&cut.content), "{case}");
                    assert!(full.starts_with(&call.arguments), "{case}");
                }
                _ => panic!("{case}"),
            }
        }
    }
}
