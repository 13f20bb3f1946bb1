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

/// What a template of this format writes around content, which tells it from others with the same calls.
fn content_markers(format: &str) -> &'static str {
    match format {
        "ernie45" => "<response> </response>",
        "cohere_command3" => "<|START_RESPONSE|> <|END_RESPONSE|>",
        "cohere_command4" => "<|START_TEXT|> <|END_TEXT|>",
        "solar_open" => "<|content|> <|end|>",
        "kimi_k3" => "<|open|>response<|sep|> <|close|>response<|sep|>",
        _ => "",
    }
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
        let evidence = Evidence {
            template: content_markers(format.name()).to_owned(),
            ..rendered(&written)
        };
        let found = name(Format::detect(&evidence));
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

/// The names of `--tool-call-parser` in vLLM and SGLang.
const CALLS: &str = "apertus apertus2509 cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 \
    deepseek_v4 deepseek_v41 deepseekv3 deepseekv31 deepseekv32 deepseekv4 dots ernie45 functiongemma gemma4 gigachat3 \
    gigachat35 glm glm45 glm47 gpt-oss granite granite-20b-fc granite4 hermes hunyuan hunyuan_a13b hy_v3 hy_v4 inkling internlm \
    interns1 jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3 llama3_json llama4_json llama4_pythonic longcat mimo \
    minicpm5 minimax minimax-m2 minimax-m3 minimax_m2 minimax_m3 mistral muse muse_glimmer olmo3 openai phi4_mini_json plamo3 poolside_v1 \
    pythonic qwen qwen25 qwen3_coder qwen3_xml seed_oss solar_open2 spark25 step3 step3p5 trinity xlam";

/// Those of `--reasoning-parser`, without the ones of gpt-oss, which has no other reasoning than its own.
const REASONING: &str = "apertus2509 cohere_command3 cohere_command4 deepseek-r1 deepseek-v3 deepseek-v4 deepseek_r1 \
    deepseek_v3 deepseek_v4 ernie45 gemma4 glm45 glm47 granite holo2 hunyuan hunyuan_a13b hy_v3 hy_v4 inkling interns1 \
    k2_horizon kimi kimi_k2 kimi_k3 longcat mimo minimax minimax-m3 minimax_m2 minimax_m3 mistral muse_glimmer nemotron_3 nemotron_v3 \
    olmo3 plamo3 poolside_v1 qwen3 qwen3-thinking seed_oss solar_open2 step3 step3p5 telechat4";

#[test]
fn names_are_those_of_other_servers() {
    for name in CALLS.split_whitespace() {
        assert!(Format::named(name).is_some(), "{name}");
    }
    for name in REASONING.split_whitespace() {
        let format = Format::plain().with_reasoning(name);
        assert!(Format::knows_reasoning(name), "{name}");
        assert!(
            format.is_some_and(|format| format.has_reasoning()),
            "{name}"
        );
    }
    for name in ["openai_gptoss", "gpt-oss"] {
        assert!(Format::named(name).is_some_and(|format| format.goes_by("openai")));
        assert_eq!(Format::plain().with_reasoning(name), None);
    }
    assert!(Format::named("unknown").is_none());
}

#[test]
fn no_two_formats_have_one_name() {
    for format in Format::all() {
        let found = Format::named(format.name()).map(Format::name);
        assert_eq!(found, Some(format.name()));
        let others = Format::all()
            .iter()
            .filter(|other| other.name() != format.name());
        assert!(
            others
                .into_iter()
                .all(|other| !other.goes_by(format.name()))
        );
    }
}

#[test]
fn markers_of_hy_4_end_with_the_suffix_of_the_vocabulary() {
    let tokens = HashSet::from([
        "<tool_calls:6124c78e>".to_owned(),
        "</think:6124c78e>".to_owned(),
    ]);
    let call = "<tool_calls><tool_call>look_up_probe<arg_key>place</arg_key><arg_value>Basel 4057</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call></tool_calls>";
    let evidence = Evidence {
        tokens: tokens.clone(),
        generation_prompt: "<think:6124c78e>".to_owned(),
        ..rendered(&call.replace('>', ":6124c78e>"))
    };
    let found = Format::detect(&evidence).expect("a format");
    assert_eq!(
        (found.format.name(), found.found),
        ("hy_v4", Found::RenderedCall)
    );
    assert!(found.format.has_reasoning());
    let named = Format::named("hy_v4").expect("a format");
    assert_eq!(found.format, named.for_vocabulary(&tokens));
    assert_ne!(&found.format, named);
    assert_eq!(named.for_vocabulary(&HashSet::new()), *named);
}
