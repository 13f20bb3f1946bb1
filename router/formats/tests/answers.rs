//! What becomes of reasoning, of content around calls, and of calls that are broken, cut or unknown.

mod common;

use common::{format, options, parse, tool, tools};
use serde_json::json;
use text_generation_formats::{
    CustomGrammar, Delta, Format, MAX_TOOL_NAME, ParserOptions, Tool, ToolKind, is_tool_name,
};

const PING: &str = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";

#[test]
fn reasoning_is_told_from_content() {
    let format = Format::plain()
        .with_reasoning("deepseek_r1")
        .expect("reasoning");
    for (prompt, text, reasoning, content) in [
        ("", "<think>\nwhy 你\n</think>\n\nso", "why 你", "so"),
        ("", " \n<think>why</think>so\n", "why", "so\n"),
        ("<think>\n", "why\n\n</think> so ", "why", "so "),
        ("", "<think></think>so", "", "so"),
        ("", "<think>a < b </th </think>c", "a < b </th", "c"),
        ("", "<think>never ends \n", "never ends", ""),
        ("", "<think>never ends </thin", "never ends </thin", ""),
        (
            "",
            "  plain <think>text</think>",
            "",
            "  plain <think>text</think>",
        ),
        ("", "<thin", "", "<thin"),
        ("", " ", "", " "),
        ("", "<think>a</think>b</think>c", "a", "b</think>c"),
        ("", "", "", ""),
    ] {
        let answer = parse(&format, prompt, text, &ParserOptions::default());
        assert_eq!(
            (answer.reasoning.as_str(), answer.content.as_str()),
            (reasoning, content),
            "{text:?}"
        );
    }
}

#[test]
fn reasoning_stays_in_the_content_on_request() {
    let options = ParserOptions {
        separate_reasoning: false,
        ..options(&tools())
    };
    let text = format!("<think>\nwhy\n</think>\n\nso\n{PING}");
    let answer = parse(format("hermes"), "", &text, &options);
    assert_eq!(answer.content, "<think>\nwhy\n</think>\n\nso");
    assert_eq!(answer.calls.len(), 1);
    let answer = parse(format("hermes"), "<think>", "why</think>so", &options);
    assert_eq!(answer.content, "why</think>so");
}

#[test]
fn a_call_ends_reasoning_where_the_family_does_so() {
    let call = "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:3<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    let answer = parse(
        format("kimi_k2"),
        "<think>",
        &format!("why {call}"),
        &options(&tools()),
    );
    assert_eq!(answer.reasoning, "why");
    assert_eq!(answer.calls[0].id, "functions.ping:3");
    let answer = parse(
        format("hermes"),
        "<think>",
        &format!("or {PING}?</think>so"),
        &options(&tools()),
    );
    assert_eq!((answer.content.as_str(), answer.calls.len()), ("so", 0));
}

#[test]
fn content_stands_before_between_and_after_calls() {
    let text = format!("One.\n\n{PING}\n and <b>two</b>\n{PING}\n{PING} end \n");
    let answer = parse(format("hermes"), "", &text, &options(&tools()));
    assert_eq!(answer.content, "One.and <b>two</b>end \n");
    assert_eq!(answer.calls.len(), 3);
}

#[test]
fn what_is_no_call_is_content_as_it_was_written() {
    for (name, text) in [
        ("hermes", " The tag <tool_call> begins\n a call."),
        ("hermes", "<tool_call>\nno json\n</tool_call>"),
        (
            "hermes",
            "<tool_call>\n{\"name\": 3, \"arguments\": {}}\n</tool_call>",
        ),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"ping\", \"arguments\": [1]}\n</tool_call>",
        ),
        ("hermes", "<tool_call>\n{\"name\": \"ping\", \"argu"),
        ("hermes", "a <tool_c"),
        (
            "llama3_json",
            "{\"name\": \"Bob\", \"parameters\": {\"age\": 3}}",
        ),
        ("llama3_json", "{\"name\": \"ping\"}"),
        (
            "llama3_json",
            "Use {\"name\": \"ping\", \"parameters\": {}}",
        ),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[unknown(a=1)]"),
        ("mistral", "[TOOL_CALLS]ping[ARGS]no"),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>ping<|tool_call_argument_begin|>{}",
        ),
        ("openai", "plain text"),
    ] {
        let answer = parse(format(name), "", text, &options(&tools()));
        assert_eq!(
            (answer.content.as_str(), answer.calls.len()),
            (text, 0),
            "{name}"
        );
    }
}

#[test]
fn a_call_that_breaks_keeps_what_it_had_and_gets_no_end() {
    for (name, text, arguments, content) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"a\": 1, oops}}\n</tool_call>",
            "{\"a\": 1, ",
            "oops}}\n</tool_call>",
        ),
        (
            "pythonic",
            "[ping(a=1, b=oops)]",
            "{\"a\": 1, \"b\": ",
            "oops)]",
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=ping>\n<parameter=a>\nx\n</parameter>\noops",
            "{\"a\": \"x\"",
            "\noops",
        ),
    ] {
        let answer = parse(format(name), "", text, &options(&tools()));
        assert_eq!(answer.calls[0].arguments, arguments, "{name}");
        assert!(!answer.calls[0].ended, "{name}");
        assert_eq!(answer.content, content, "{name}");
    }
}

#[test]
fn objects_of_calls_may_have_their_members_in_any_order() {
    for text in [
        r#"<tool_call>{"arguments": {"city": "a}"}, "name": "get_weather"}</tool_call>"#,
        r#"<tool_call>{"id": 7, "name": "get_weather", "arguments": {"city": "a}"}, "type": "function"}</tool_call>"#,
        r#"<tool_call>{"name":"get_weather","parameters":{"city": "a}"}}</tool_call>"#,
    ] {
        let answer = parse(format("hermes"), "", text, &options(&tools()));
        assert_eq!(
            answer.called(),
            [("get_weather", json!({"city": "a}"}))],
            "{text}"
        );
        assert_eq!(
            (answer.content.as_str(), answer.calls[0].ended),
            ("", true),
            "{text}"
        );
    }
}

#[test]
fn a_marked_call_needs_neither_arguments_nor_a_tool_that_exists() {
    let answer = parse(
        format("hermes"),
        "",
        "<tool_call>{\"name\": \"other\"}</tool_call>",
        &options(&tools()),
    );
    assert_eq!(answer.called(), [("other", json!({}))]);
}

#[test]
fn calls_are_not_looked_for_without_tools_and_only_the_first_is_given_without_parallel_calls() {
    let answer = parse(format("hermes"), "", PING, &ParserOptions::default());
    assert_eq!((answer.content.as_str(), answer.calls.len()), (PING, 0));
    let options = ParserOptions {
        parallel: false,
        ..options(&tools())
    };
    let answer = parse(format("hermes"), "", &format!("{PING}\n{PING}"), &options);
    assert_eq!(answer.calls.len(), 1);
}

#[test]
fn the_first_delta_has_id_and_name_and_arguments_follow_as_they_come() {
    let mut parser = format("hermes").parser("", &options(&tools()));
    let mut deltas = Vec::new();
    parser.push(
        "Hi.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"ci",
        &mut deltas,
    );
    let [
        Delta::Content(content),
        Delta::ToolStart { index: 0, id, name },
        rest,
    ] = deltas.as_slice()
    else {
        panic!("{deltas:?}");
    };
    assert_eq!((content.as_str(), name.as_str()), ("Hi.", "get_weather"));
    assert!(id.starts_with("call_") && id.len() == 29, "{id}");
    let fragment = |text: &str| Delta::ToolArguments {
        index: 0,
        fragment: text.to_owned(),
    };
    assert_eq!(*rest, fragment("{\"ci"));
    deltas.clear();
    parser.push("ty\": \"Z", &mut deltas);
    assert_eq!(deltas, [fragment("ty\": \"Z")]);
    deltas.clear();
    parser.push("\"}}\n</tool", &mut deltas);
    assert_eq!(deltas, [fragment("\"}"), Delta::ToolEnd { index: 0 }]);
}

#[test]
fn texts_of_elements_stream_and_other_values_are_typed_by_the_schema() {
    let options = options(&tools());
    let mut parser = format("qwen3_coder").parser("", &options);
    let mut deltas = Vec::new();
    parser.push(
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nA \"b",
        &mut deltas,
    );
    let arguments: String = deltas
        .iter()
        .filter_map(|delta| match delta {
            Delta::ToolArguments { fragment, .. } => Some(fragment.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(arguments, "{\"city\": \"A \\\"b");
    for (value, expected) in [
        ("<parameter=days>\n3.0\n</parameter>", json!({"days": 3.0})),
        (
            "<parameter=days>\nthree\n</parameter>",
            json!({"days": "three"}),
        ),
        (
            "<parameter=exact>\nFalse\n</parameter>",
            json!({"exact": false}),
        ),
        (
            "<parameter=note>\nnull\n</parameter>",
            json!({"note": null}),
        ),
        (
            "<parameter=note>\nnullable\n</parameter>",
            json!({"note": "nullable"}),
        ),
        (
            "<parameter=tags>\n[\"a\", 1]\n</parameter>",
            json!({"tags": ["a", 1]}),
        ),
        (
            "<parameter=unknown>\n5\n</parameter>",
            json!({"unknown": "5"}),
        ),
        (
            "<parameter=city>\n\n two\nlines \n\n</parameter>",
            json!({"city": "\n two\nlines \n"}),
        ),
    ] {
        let text =
            format!("<tool_call>\n<function=get_weather>\n{value}\n</function>\n</tool_call>");
        let answer = parse(format("qwen3_coder"), "", &text, &options);
        assert_eq!(answer.called(), [("get_weather", expected)], "{value}");
    }
}

#[test]
fn ids_have_the_form_of_the_family() {
    let text = "[TOOL_CALLS]ping[ARGS]{}[TOOL_CALLS]ping[CALL_ID]abcDEF123[ARGS]{}";
    let answer = parse(format("mistral"), "", text, &options(&tools()));
    let ids: Vec<&str> = answer.calls.iter().map(|call| call.id.as_str()).collect();
    assert!(
        ids[0].len() == 9 && ids[0].bytes().all(|byte| byte.is_ascii_alphanumeric()),
        "{ids:?}"
    );
    assert_eq!(ids[1], "abcDEF123");
}

#[test]
fn channels_are_reasoning_content_and_calls() {
    let options = options(&tools());
    let text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
                <|start|>assistant<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}";
    let answer = parse(
        format("openai"),
        "x<|end|><|start|>assistant",
        text,
        &options,
    );
    assert_eq!(
        (answer.reasoning.as_str(), answer.content.as_str()),
        ("Hm.", "I look.")
    );
    assert_eq!(answer.called(), [("ping", json!({}))]);
    let prompt = "<|start|>assistant<|channel|>analysis<|message|>So";
    let answer = parse(
        format("openai"),
        prompt,
        " far.<|end|><|start|>assistant<|channel|>final<|message|>Yes <b",
        &options,
    );
    assert_eq!(
        (answer.reasoning.as_str(), answer.content.as_str()),
        (" far.", "Yes <b")
    );
}

#[test]
fn a_header_without_end_is_content() {
    let prose = "word ".repeat(1000);
    let answer = parse(
        format("openai"),
        "<|start|>assistant",
        &prose,
        &ParserOptions::default(),
    );
    assert_eq!(answer.content, format!("assistant{prose}"));
}

#[test]
fn the_input_of_a_custom_tool_is_one_text() {
    let tool = Tool {
        name: "patch".to_owned(),
        description: None,
        kind: ToolKind::Custom {
            grammar: Some(CustomGrammar::Regex("a+".to_owned())),
        },
        strict: false,
    };
    let text = "<|channel|>commentary to=functions.patch<|message|>*** \"a\"\n<|call|>";
    let answer = parse(
        format("openai"),
        "<|start|>assistant",
        text,
        &options(&[tool]),
    );
    assert_eq!(
        answer.called(),
        [("patch", json!({"input": "*** \"a\"\n"}))]
    );
}

#[test]
fn calls_of_tools_with_any_name_that_may_be_are_read() {
    let longest = "n".repeat(MAX_TOOL_NAME);
    let names = [
        &longest,
        "mcp__a.b/c:d-e_f",
        "functions.x",
        "a:0",
        "a:",
        ":",
        "-",
        ".a",
        "/",
        "9",
        "Wetter_für_你",
    ];
    let arguments = json!({"city": "x"});
    let arguments = arguments.as_object().expect("an object");
    let mut lost = Vec::new();
    for name in names {
        assert!(is_tool_name(name));
        let tools = [tool(name, json!({"type": "object"}))];
        for format in Format::all() {
            let text = format.write(&[(name, arguments)]);
            let answer = parse(format, "", &text, &options(&tools));
            if answer.called() != [(name, json!(arguments))] {
                lost.push((format.name(), name, text));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
    for name in [
        "",
        "a b",
        "a\n",
        "a\"",
        "a(",
        "a=",
        "<a>",
        &format!("{longest}n"),
    ] {
        assert!(!is_tool_name(name), "{name}");
    }
}
