//! Which format is found for a model. Rendered conversations are what the chat templates of these families make of the
//! probe; templates of responses have the form of those that transformers and TRL use.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

use std::collections::HashSet;

use serde_json::{Value, json};
use text_generation_formats::{Detected, Evidence, Format, Found, probes};

fn rendered(call: &str) -> Evidence {
    let question = probes()[0].messages[0]["content"]
        .as_str()
        .expect("a text")
        .to_owned();
    let system = "<|im_start|>system\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
    let text = format!(
        "{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{call}<|im_end|>\n"
    );
    Evidence {
        rendered: vec![text],
        ..Evidence::default()
    }
}

fn name(found: Option<Detected>) -> Option<(String, Found)> {
    found.map(|found| (found.format.name().to_owned(), found.found))
}

#[test]
fn every_format_is_found_by_a_call_as_it_writes_it() {
    let call = &probes()[0].messages[1]["tool_calls"][0]["function"];
    let (tool, arguments) = (
        call["name"].as_str().expect("a name"),
        call["arguments"].as_object().expect("an object"),
    );
    for format in Format::all() {
        let mut written = format.write(&[(tool, arguments)]);
        if format.name() == "openai" {
            written = format!("<|start|>assistant{written}<|call|>");
        }
        let found = name(Format::detect(&rendered(&written)));
        assert_eq!(
            found,
            Some((format.name().to_owned(), Found::RenderedCall)),
            "{written}"
        );
    }
}

#[test]
fn a_call_that_does_not_read_back_is_not_accepted() {
    assert_eq!(
        name(Format::detect(&rendered(
            "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"
        ))),
        None
    );
    assert_eq!(
        name(Format::detect(&rendered("I called look_up_probe."))),
        None
    );
}

#[test]
fn vocabulary_and_template_are_asked_last() {
    let evidence = Evidence {
        tokens: HashSet::from(["[TOOL_CALLS]".to_owned(), "[ARGS]".to_owned()]),
        ..Evidence::default()
    };
    assert_eq!(
        name(Format::detect(&evidence)),
        Some(("mistral".to_owned(), Found::Vocabulary))
    );
    let evidence = Evidence {
        template: "{{ '<think>' }}{{ content.split('</think>')[-1] }}".to_owned(),
        ..Evidence::default()
    };
    let found = Format::detect(&evidence).expect("reasoning");
    assert!(found.format.has_reasoning() && !found.format.has_calls());
    assert_eq!(Format::detect(&Evidence::default()), None);
}

/// A response template with these calls.
fn template(calls: Value) -> Value {
    json!({
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", "content": "text"},
            "tool_calls": calls,
            "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
        },
    })
}

#[test]
fn response_templates_are_read_as_data() {
    let function = json!({"name": "{name}", "arguments": "{content}"});
    let function = json!({"type": "function", "function": function});
    for (calls, call) in [
        (
            json!({"open": "<tool_call>", "close_pattern": r"</tool_call>\s*", "repeats": true, "content": "json",
                "transform": {"type": "function", "function": "{content}"}}),
            "<tool_call>\n{\"name\": \"look_up_probe\", \"arguments\": {\"place\": \"Basel 4057\", \"days\": 3}}\n</tool_call>",
        ),
        (
            json!({"open_pattern": r"<tool_call>\s*<function=(?P<name>[^\n>]+)>", "close_pattern": r"</tool_call>\s*",
            "repeats": true, "content": "xml-inline", "transform": function,
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>",
                "value_parser": {"name": "text"},
            }}),
            "<tool_call>\n<function=look_up_probe>\n<parameter=place>\nBasel 4057\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            json!({"open_pattern": r"<tool_call>(?P<name>\S+)\n?", "close_pattern": r"</tool_call>\s*", "repeats": true,
            "content": "xml-inline", "transform": function,
            "content_args": {
                "tag_pattern": r"<arg_key>(?P<key>[^<]+)</arg_key>\s*\n<arg_value>(?P<value>.*?)</arg_value>",
            }}),
            "<tool_call>look_up_probe\n<arg_key>place</arg_key>\n<arg_value>Basel 4057</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        ),
        (
            json!({"open_pattern": r#"\{"name":\s*"(?P<name>[^"]+)",\s*"parameters":\s*"#, "close_pattern": r"\}<\|eot_id\|>\s*",
                "repeats": true, "content": "json", "transform": function}),
            "{\"name\": \"look_up_probe\", \"parameters\": {\"place\": \"Basel 4057\", \"days\": 3}}",
        ),
        (
            json!({"open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close_pattern": r"<tool_call\|>\s*", "repeats": true,
                "content": "json", "transform": function,
                "content_args": {"string_delims": [["<|\"|>", "<|\"|>"]], "unquoted_keys": true}}),
            "<|tool_call>call:look_up_probe{place:<|\"|>Basel 4057<|\"|>,days:3}<tool_call|>",
        ),
    ] {
        let evidence = Evidence {
            response_template: Some(template(calls)),
            ..rendered(call)
        };
        let found = name(Format::detect(&evidence));
        assert_eq!(
            found,
            Some(("response_template".to_owned(), Found::ResponseTemplate)),
            "{call}"
        );
    }
}

#[test]
fn what_a_response_template_has_that_is_not_read_leaves_it_to_the_rendered_call() {
    let calls = json!({"open_pattern": r"(?:<a>\[|,\s*)(?P<name>\w+)\(", "close_pattern": r"\)", "content": "json",
        "transform": {"function": {"name": "{name}", "arguments": "{content}"}}});
    let evidence = Evidence {
        response_template: Some(template(calls)),
        ..rendered(
            "<|tool_call_start|>[look_up_probe(place='Basel 4057', days=3)]<|tool_call_end|>",
        )
    };
    assert_eq!(
        name(Format::detect(&evidence)),
        Some(("lfm2".to_owned(), Found::RenderedCall))
    );
}

#[test]
fn names_are_those_of_other_servers() {
    for name in [
        "hermes",
        "llama3_json",
        "llama4_pythonic",
        "pythonic",
        "mistral",
        "deepseek_v3",
        "deepseek_v31",
        "deepseek_v32",
        "qwen3_coder",
        "qwen3_xml",
        "glm45",
        "glm47",
        "kimi_k2",
        "openai",
        "gemma4",
        "functiongemma",
        "minimax_m2",
        "granite",
        "phi4_mini_json",
        "lfm2",
        "hy_v3",
        "mimo",
        "nemotron_json",
        "longcat",
        "ling3",
        "poolside_v1",
        "seed_oss",
        "step3",
        "hunyuan_a13b",
        "jamba",
        "apertus",
        "olmo3",
        "gigachat3",
    ] {
        assert!(Format::named(name).is_some(), "{name}");
    }
    for name in [
        "deepseek_r1",
        "qwen3",
        "mistral",
        "kimi_k2",
        "gemma4",
        "granite",
        "glm45",
        "minimax_m2",
        "hy_v3",
        "longcat",
        "apertus",
        "seed_oss",
    ] {
        let format = Format::plain().with_reasoning(name);
        assert!(
            format.is_some_and(|format| format.has_reasoning()),
            "{name}"
        );
    }
    assert!(Format::named("unknown").is_none());
}
