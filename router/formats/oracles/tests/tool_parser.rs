//! The parsers of SMG (`tool-parser`) over the same answers.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/transcripts.rs"]
mod transcripts;

use common::{Answer, Call, format, options, parse, pieces, tools};
use openai_protocol::common::{Function, Tool};
use serde_json::{Value, json};
use text_generation_formats::Format;
use tool_parser::ParserFactory;
use transcripts::{TWO, answers};

/// Our names and those of the parsers that read the same format.
const FORMATS: &[(&str, &str)] = &[
    ("hermes", "qwen"),
    ("llama3_json", "llama"),
    ("mistral_v3", "mistral"),
    ("deepseek_v3", "deepseek"),
    ("deepseek_v31", "deepseek31"),
    ("deepseek_v32", "deepseek32"),
    ("deepseek_v4", "deepseek_v4"),
    ("qwen3_coder", "qwen_xml"),
    ("glm45", "glm45_moe"),
    ("glm47", "glm47_moe"),
    ("kimi_k2", "kimik2"),
    ("gemma4", "gemma4"),
    ("minimax_m2", "minimax_m2"),
    ("pythonic", "pythonic"),
    ("llama4_pythonic", "pythonic"),
];

/// Further single tokens of these models: some of their parsers rely on markers that come whole.
const MARKERS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
];

/// How an answer reaches their parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Whole,
    Pieces,
}

const BOTH: &[Way] = &[Way::Whole, Way::Pieces];
const WHOLE: &[Way] = &[Way::Whole];
const PIECES: &[Way] = &[Way::Pieces];

/// Where the two differ: formats, answers, how they came, and why. All but the first two are faults of theirs.
const DIFFERENCES: &[(&[&str], &[&str], &[Way], &str)] = &[
    (
        &["llama3_json"],
        &["content and a call"],
        PIECES,
        "without a marker only a whole answer is a call for us; for theirs too if it comes whole",
    ),
    (
        &["pythonic"],
        &["content and a call"],
        BOTH,
        "without a marker only a whole answer is a call for us",
    ),
    (
        &["llama3_json"],
        &["also by hand"],
        WHOLE,
        "it does not know calls on lines of their own",
    ),
    (
        &["mistral_v3"],
        &["two", "by hand"],
        PIECES,
        "the second call of a list becomes content",
    ),
    (
        &["deepseek_v3"],
        &[
            "one",
            "types",
            "nested",
            "no arguments",
            "two",
            "unicode",
            "escapes",
            "brackets",
            "a call in a text",
            "digits in a text",
            "an empty text",
            "content and a call",
            "by hand",
        ],
        PIECES,
        "the fence after the arguments becomes content",
    ),
    (
        &["qwen3_coder"],
        &["types", "two", "by hand"],
        BOTH,
        "a text loses the line break that it ends with",
    ),
    (
        &["gemma4"],
        &["types", "nested", "two", "by hand"],
        BOTH,
        "numbers with a sign or a point inside an object become texts",
    ),
    (
        &["minimax_m2"],
        &["types", "nested", "two", "by hand"],
        WHOLE,
        "an object whose schema stands behind a reference becomes a text",
    ),
    (
        &["pythonic", "llama4_pythonic"],
        &["types", "two", "unicode"],
        PIECES,
        "a call with characters of several bytes is lost",
    ),
    (
        &["pythonic"],
        &["by hand"],
        PIECES,
        "a call with characters of several bytes is lost",
    ),
    (
        &["pythonic", "llama4_pythonic"],
        &["brackets"],
        BOTH,
        "a call with brackets inside a text is lost",
    ),
    (
        &["pythonic", "llama4_pythonic"],
        &["content"],
        PIECES,
        "brackets in content are lost with what is in them",
    ),
];

/// Content, and name and arguments of every call.
type Read = (String, Vec<(String, Result<Value, String>)>);

#[tokio::test]
async fn answers_are_read_as_the_parsers_of_smg_read_them() {
    let factory = ParserFactory::new();
    for (ours, theirs) in FORMATS {
        for (name, text) in texts(format(ours)) {
            let answer = read(&parse(format(ours), "", &text, &options(&tools())));
            for way in BOTH {
                let other = other(&factory, theirs, &text, *way).await;
                let listed = DIFFERENCES.iter().any(|(formats, names, ways, _)| {
                    formats.contains(ours) && names.contains(&name) && ways.contains(way)
                });
                assert_eq!(
                    other != answer,
                    listed,
                    "{ours}, {name}, {way:?}: {text:?}\nours   {answer:?}\ntheirs {other:?}"
                );
            }
        }
    }
}

/// Answers in this format: as we write them, and by hand.
fn texts(format: &Format) -> Vec<(&'static str, String)> {
    let by_hand = TWO.iter().filter(|(name, _)| *name == format.name());
    let mut texts = answers(|calls| Some(format.write(calls)));
    let names = ["by hand", "also by hand"].into_iter();
    texts.extend(names.zip(by_hand.map(|(_, text)| (*text).to_owned())));
    texts
}

async fn other(factory: &ParserFactory, name: &str, text: &str, way: Way) -> Read {
    let mut parser = factory.registry().create_parser(name).expect("a parser");
    let tools = other_tools();
    if way == Way::Whole {
        let (content, calls) = parser
            .parse_complete_with_tools(text, &tools)
            .await
            .expect("it parses");
        let calls = calls
            .into_iter()
            .map(|call| (call.function.name, call.function.arguments));
        return (content.trim().to_owned(), calls.map(value).collect());
    }
    let mut content = String::new();
    let mut calls: Vec<(String, String)> = Vec::new();
    let mut items = Vec::new();
    for piece in pieces(text, MARKERS) {
        let step = parser
            .parse_incremental(piece, &tools)
            .await
            .expect("it parses");
        content.push_str(&step.normal_text);
        items.extend(step.calls);
    }
    items.extend(parser.get_unstreamed_tool_args().into_iter().flatten());
    content.push_str(&parser.take_unstreamed_normal_text());
    for piece in items {
        if piece.tool_index >= calls.len() {
            calls.resize_with(piece.tool_index + 1, Default::default);
        }
        let (name, arguments) = &mut calls[piece.tool_index];
        name.push_str(piece.name.as_deref().unwrap_or_default());
        arguments.push_str(&piece.parameters);
    }
    (
        content.trim().to_owned(),
        calls.into_iter().map(value).collect(),
    )
}

fn read(answer: &Answer) -> Read {
    let call = |call: &Call| value((call.name.clone(), call.arguments.clone()));
    (
        answer.content.trim().to_owned(),
        answer.calls.iter().map(call).collect(),
    )
}

/// The call with its arguments as a value, or as a text that is no JSON.
fn value((name, arguments): (String, String)) -> (String, Result<Value, String>) {
    let read = serde_json::from_str(&arguments);
    (name, read.map_err(|_| arguments))
}

fn other_tools() -> Vec<Tool> {
    tools()
        .iter()
        .map(|tool| {
            let function = json!({"name": tool.name, "parameters": tool.parameters()});
            let function: Function = serde_json::from_value(function).expect("a function");
            Tool {
                tool_type: "function".to_owned(),
                function,
            }
        })
        .collect()
}
