//! What the grammars allow where values are nested elements, have a type before them, or content has markers.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;
#[path = "common/vocabulary.rs"]
mod vocabulary;

use std::sync::LazyLock;

use common::{format, tool};
use serde_json::{Value, json};
use text_generation_formats::{ANSWER, Constraint, Tool, ToolChoice};
use vocabulary::Vocabulary;

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(Vocabulary::new);

fn grammar(name: &str, tools: &[Tool], choice: &ToolChoice, prompt: &str) -> String {
    let constraint = Constraint {
        tools,
        choice,
        parallel: true,
        has_form: *choice == ToolChoice::Auto,
        prompt_tail: prompt,
        special_tokens: &VOCABULARY.special,
    };
    let grammar = format(name).grammar(&constraint).expect("a grammar");
    grammar.expect("something to enforce")
}

/// Whether a call of a tool with these parameters may be written so.
fn accepts(name: &str, parameters: &Value, call: &str) -> bool {
    let tools = [tool("order", parameters.clone())];
    VOCABULARY.accepts(&grammar(name, &tools, &ToolChoice::Required, ""), call)
}

#[test]
fn nested_elements_follow_the_schema() {
    let parameters = json!({
        "type": "object",
        "properties": {
            "kind": {"enum": ["new", 7]},
            "lines": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"$ref": "#/$defs/line"}},
            "extra": {"type": ["object", "null"]},
        },
        "required": ["kind"],
        "$defs": {"line": {
            "type": "object",
            "properties": {"sku": {"type": "string", "maxLength": 3}, "count": {"type": "integer"}},
            "required": ["sku", "count"],
        }},
    });
    let line = "<item><sku>a<b</sku><count>2</count></item>";
    for (elements, expected) in [
        ("<kind>new</kind>".to_owned(), true),
        ("<kind>7</kind>".to_owned(), true),
        ("<kind>old</kind>".to_owned(), false),
        (String::new(), false),
        (format!("<kind>new</kind><lines>{line}</lines>"), true),
        (format!("<kind>new</kind><lines>{line}{line}</lines>"), true),
        (
            format!("<kind>new</kind><lines>{line}{line}{line}</lines>"),
            false,
        ),
        ("<kind>new</kind><lines></lines>".to_owned(), false),
        (
            format!("<kind>new</kind><lines>{}</lines>", line.replace('2', "x")),
            false,
        ),
        (
            format!(
                "<kind>new</kind><lines>{}</lines>",
                line.replace("a<b", "abcd")
            ),
            false,
        ),
        (format!("<lines>{line}</lines><kind>new</kind>"), false),
        (
            "<kind>new</kind><extra>{\"a\": [1]}</extra>".to_owned(),
            true,
        ),
        ("<kind>new</kind><extra>null</extra>".to_owned(), true),
        ("<kind>new</kind><extra>3</extra>".to_owned(), false),
    ] {
        let call = format!("<tool_call>\n<invoke name=\"order\">{elements}</invoke>\n</tool_call>");
        // What stands before each tag is one token, so a text may have the letters of one.
        let call = call
            .replace("a<b", "a\u{1}b")
            .replace('<', "]<]minimax[>[<");
        let call = call.replace('\u{1}', "<");
        assert_eq!(
            accepts("minimax_m3", &parameters, &call),
            expected,
            "{elements}"
        );
    }
}

#[test]
fn the_type_before_a_value_is_that_of_the_value() {
    let parameters = json!({
        "type": "object",
        "properties": {
            "a": {"type": ["string", "integer", "null"]},
            "b": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "boolean"}]},
        },
    });
    for (argument, expected) in [
        ("a:string:3 or so", true),
        ("a:number:3", true),
        ("a:number:3.5", false),
        ("a:null:null", true),
        ("a:boolean:true", false),
        ("b:array:[1, 2]", true),
        ("b:array:true", false),
        ("b:boolean:true", true),
        ("b:string:x", false),
    ] {
        let mut parts = argument.splitn(3, ':');
        let [key, types, value] = [(); 3].map(|()| parts.next().unwrap_or_default());
        let call = format!(
            "<|open|>tools<|sep|><|open|>call tool=\"order\" index=\"1\"<|sep|><|open|>argument key=\"{key}\" type=\"{types}\"<|sep|>{value}<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
        );
        assert_eq!(
            accepts("kimi_k3", &parameters, &call),
            expected,
            "{argument}"
        );
    }
}

#[test]
fn a_form_and_a_call_stand_within_the_markers_that_the_model_writes() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let form = format!("start: %json {schema}");
    let ping = [tool(
        "ping",
        json!({"type": "object", "properties": {}, "additionalProperties": false}),
    )];
    for (name, prompt, text, expected) in [
        ("ernie45", "", "<response>\n{\"a\": 1}\n</response>", true),
        ("ernie45", "", "<response>\nno\n</response>", false),
        (
            "ernie45",
            "<think>\n",
            "hm</think>\n\n<response>{\"a\": 1}</response>",
            true,
        ),
        (
            "cohere_command4",
            "",
            "<|START_TEXT|>{\"a\": 1}<|END_TEXT|>",
            true,
        ),
        (
            "kimi_k3",
            "<|open|>response<|sep|>",
            "{\"a\": 1}<|close|>response<|sep|><|close|>message<|sep|>",
            true,
        ),
        (
            "solar_open",
            "",
            "<|think|>hm<|end|><|begin|>assistant<|content|>{\"a\": 1}<|end|>",
            true,
        ),
        (
            "inkling",
            "<|message_model|>",
            "<|content_thinking|>hm<|end_message|><|message_model|><|content_text|>{\"a\": 1}<|end_message|>",
            true,
        ),
        (
            "muse_glimmer",
            "<|start|>assistant",
            " to=user<|message|>{\"a\": 1}<|eot|>",
            true,
        ),
        (
            "muse_glimmer",
            "<|start|>assistant",
            " to=user<|message|>no<|eot|>",
            false,
        ),
    ] {
        let grammar = grammar(name, &ping, &ToolChoice::Auto, prompt);
        let accepted = VOCABULARY.accepts_around(&grammar, (ANSWER, &form), text);
        assert_eq!(accepted, expected, "{name}: {text}");
    }
    for (name, prompt, text) in [
        (
            "kimi_k3",
            "<|open|>think<|sep|>",
            "hm<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"ping\" index=\"1\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        ),
        (
            "solar_open",
            "",
            "<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>ping<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        ),
        (
            "k2_horizon",
            "<ifm|think_fast>\n",
            "hm</ifm|think_fast>\n<ifm|tool_calls>\n<ifm|tool_call>ping\n</ifm|tool_call>\n</ifm|tool_calls>",
        ),
    ] {
        let grammar = grammar(name, &ping, &ToolChoice::Required, prompt);
        assert!(VOCABULARY.accepts(&grammar, text), "{name}: {text}");
    }
}
