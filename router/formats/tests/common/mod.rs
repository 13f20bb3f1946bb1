//! What the tests of this crate share.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]
#![allow(dead_code, reason = "each test file uses a part of it")]

use serde_json::{Value, json};
use text_generation_formats::{Delta, Format, IdSource, ParserOptions, Tool, ToolKind};

/// The end of the prompt behind which answers of this format stand.
pub fn prompt(format: &Format) -> &'static str {
    match format.name() {
        "openai" | "muse_glimmer" => "<|start|>assistant",
        "inkling" => "<|message_model|>",
        _ => "",
    }
}

/// Special tokens of several families.
pub const SPECIAL: &[&str] = &[
    "<eos>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "｜DSML｜",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|call|>",
    "<|constrain|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|channel>",
    "<channel|>",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<|tool_call|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|plamo:begin_",
    "<|plamo:end_",
    ":plamo|>",
    "<|plamo:constrain|>",
    "<|plamo:msg|>",
    "]<]minimax[>[",
    "<mm:think>",
    "</mm:think>",
    "<|action_start|>",
    "<|action_end|>",
    "<|plugin|>",
    "<|tool_arg:start|>",
    "<|tool_arg:value|>",
    "<|tool_arg:end|>",
    "<|begin|>",
    "<|content|>",
    "<|think|>",
    "<|flush|>",
    "<|calls|>",
    "<|tool_calls|>",
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
    "<|thought_start|>",
    "<|thought_end|>",
    "<|message_model|>",
    "<|content_thinking|>",
    "<|content_text|>",
    "<|content_invoke_tool_json|>",
    "<|content_model_end_sampling|>",
    "<|end_message|>",
    "<|eom|>",
    "<|eot|>",
    "<ifm|tool_calls>",
    "</ifm|tool_calls>",
];

/// Joined deltas, so that answers that were cut differently can be compared.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<Call>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: String,
    pub ended: bool,
}

impl Answer {
    /// Name and arguments of every call.
    pub fn called(&self) -> Vec<(&str, Value)> {
        self.calls
            .iter()
            .map(|call| {
                let arguments = serde_json::from_str(&call.arguments).expect("arguments are JSON");
                (call.name.as_str(), arguments)
            })
            .collect()
    }
}

pub fn join(deltas: Vec<Delta>) -> Answer {
    let mut answer = Answer::default();
    for delta in deltas {
        match delta {
            Delta::Reasoning(text) => answer.reasoning.push_str(&text),
            Delta::Content(text) => answer.content.push_str(&text),
            Delta::ToolStart { index, id, name } => {
                assert_eq!(index, answer.calls.len(), "calls are counted from 0");
                answer.calls.push(Call {
                    id,
                    name,
                    ..Call::default()
                });
            }
            Delta::ToolArguments { index, fragment } => {
                assert!(!fragment.is_empty());
                answer.calls[index].arguments.push_str(&fragment);
            }
            Delta::ToolEnd { index } => answer.calls[index].ended = true,
        }
    }
    answer
}

pub fn options(tools: &[Tool]) -> ParserOptions {
    ParserOptions {
        tools: tools.to_vec().into(),
        ids: IdSource::seeded(1),
        ..ParserOptions::default()
    }
}

/// The answer in `pieces`.
pub fn parse_pieces<'a>(
    format: &Format,
    prompt: &str,
    pieces: impl IntoIterator<Item = &'a str>,
    options: &ParserOptions,
) -> Answer {
    let mut parser = format.parser(prompt, options);
    let mut deltas = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut deltas);
    }
    parser.finish(&mut deltas);
    join(deltas)
}

/// The answer, which must be the same in one piece and character by character.
pub fn parse(format: &Format, prompt: &str, text: &str, options: &ParserOptions) -> Answer {
    let whole = parse_pieces(format, prompt, [text], options);
    let bounds: Vec<usize> = text
        .char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .collect();
    for size in [1, 2, 3, 7] {
        let cuts: Vec<usize> = bounds
            .iter()
            .copied()
            .step_by(size)
            .chain([text.len()])
            .collect();
        let pieces = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]);
        let cut = parse_pieces(format, prompt, pieces, options);
        assert_eq!(cut, whole, "{} by {size}: {text:?}", format.name());
    }
    whole
}

pub fn format(name: &str) -> &'static Format {
    Format::named(name).unwrap_or_else(|| panic!("no format {name}"))
}

pub fn tool(name: &str, parameters: Value) -> Tool {
    Tool {
        name: name.to_owned(),
        description: None,
        kind: ToolKind::Function {
            parameters: Some(parameters),
        },
        strict: false,
    }
}

/// Tools with arguments of every type.
pub fn tools() -> Vec<Tool> {
    vec![
        tool(
            "get_weather",
            json!({
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "limits": {"$ref": "#/$defs/limits"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["city"],
                "additionalProperties": false,
                "$defs": {"limits": {
                    "type": "object",
                    "properties": {"low": {"type": "number"}, "high": {"type": "number"}},
                    "required": ["low"],
                    "additionalProperties": false,
                }},
            }),
        ),
        tool(
            "ping",
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
        ),
    ]
}

/// Special tokens, and `more` texts that are single tokens, as they are; every other character by itself.
pub fn pieces<'a>(text: &'a str, more: &[&str]) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let mut markers = SPECIAL.iter().chain(more);
        let marker = markers.find(|marker| rest.starts_with(**marker));
        let length = marker.map_or(character.len_utf8(), |marker| marker.len());
        pieces.push(&rest[..length]);
        rest = &rest[length..];
    }
    pieces
}
