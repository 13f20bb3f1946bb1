//! Markers that some models write around content, and how reasoning ends.

mod common;

use common::{format, options, parse, tools};

const PING: &str = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";

/// The reasoning, the content and the calls of an answer.
fn told_apart(name: &str, prompt: &str, text: &str) -> (String, String, usize) {
    let answer = parse(format(name), prompt, text, &options(&tools()));
    assert!(answer.calls.iter().all(|call| call.ended), "{name}: {text}");
    (answer.reasoning, answer.content, answer.calls.len())
}

#[test]
fn markers_around_content_are_no_part_of_it() {
    let action = "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"ping\", \"parameters\": {}}\n]<|END_ACTION|>";
    let inkling = |author: &str| {
        format!(
            "{author}<|content_invoke_tool_json|>{{\"name\":\"ping\",\"args\":{{}}}}<|end_message|>"
        )
    };
    let atem = "<atem:function_calls>\n<atem:invoke name=\"ping\">\n</atem:invoke>\n</atem:function_calls>";
    let solar = "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>ping<|tool_call:args|>{}<|tool_call:end|><|calls|>";
    let tools = "<|open|>tools<|sep|><|open|>call tool=\"ping\" index=\"1\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>";
    for (name, prompt, text, reasoning, content, calls) in [
        (
            "ernie45",
            "<think>\n",
            "why\n</think>\n\n\n<response>\nIt is < 3.\n</response>\n".to_owned(),
            "why",
            "It is < 3.",
            0,
        ),
        (
            "ernie45",
            "",
            format!("<think>\nwhy\n</think>\n\n\n{PING}\n"),
            "why",
            "",
            1,
        ),
        (
            "ernie45",
            "",
            "plain <b>text</b>".to_owned(),
            "",
            "plain <b>text</b>",
            0,
        ),
        (
            "cohere_command3",
            "",
            "<|START_RESPONSE|>Hi <co>you</co: 0:[1]>.<|END_RESPONSE|>".to_owned(),
            "",
            "Hi <co>you</co: 0:[1]>.",
            0,
        ),
        (
            "cohere_command3",
            "",
            format!("<|START_THINKING|>plan<|END_THINKING|>{action}"),
            "plan",
            "",
            1,
        ),
        (
            "cohere_command4",
            "<|START_THINKING|>",
            "so<|END_THINKING|><|START_TEXT|>Hi.<|END_TEXT|>".to_owned(),
            "so",
            "Hi.",
            0,
        ),
        (
            "cohere_command4",
            "<|START_THINKING|>",
            format!("so {action}"),
            "so",
            "",
            1,
        ),
        (
            "kimi_k3",
            "<|open|>think<|sep|>",
            format!(
                "a<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|>{tools}"
            ),
            "a",
            "I look.",
            1,
        ),
        (
            "kimi_k3",
            "<|open|>response<|sep|>",
            "Hi.<|close|>response<|sep|><|close|>message<|sep|>".to_owned(),
            "",
            "Hi.",
            0,
        ),
        (
            "kimi_k3",
            "<|open|>think<|sep|>",
            format!("a<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>{tools}"),
            "a",
            "",
            1,
        ),
        (
            "solar_open",
            "<|begin|>assistant",
            "<|think|>a<|end|><|begin|>assistant<|content|>Hi.<|end|>".to_owned(),
            "a",
            "Hi.",
            0,
        ),
        (
            "solar_open",
            "",
            format!("<|content|>I look.\n<|end|><|begin|>assistant{solar}"),
            "",
            "I look.",
            1,
        ),
        (
            "inkling",
            "<|message_model|>",
            "<|content_thinking|>a<|end_message|><|message_model|><|content_text|>Hi.<|end_message|><|content_model_end_sampling|>".to_owned(),
            "a",
            "Hi.",
            0,
        ),
        ("inkling", "<|message_model|>", inkling("ping"), "", "", 1),
        (
            "inkling",
            "<|message_model|>",
            format!("<|content_text|>I look.<|end_message|><|message_model|>{}", inkling("")),
            "",
            "I look.",
            1,
        ),
        ("inkling", "<|message_model|>", "No marker.".to_owned(), "", "No marker.", 0),
        (
            "muse_glimmer",
            "<|start|>assistant",
            " to=self<|message|>a to=b<|eom|><|start|>assistant to=user<|message|>Hi.<|eot|>".to_owned(),
            "a to=b",
            "Hi.",
            0,
        ),
        (
            "muse_glimmer",
            "<|start|>assistant",
            format!(" to=self<|message|>a<|eom|><|start|>assistant to=ping<|message|>{atem}<|eot|>"),
            "a",
            "",
            1,
        ),
        ("muse_glimmer", "<|start|>assistant", "<|message|>Hi.<|eot|>".to_owned(), "", "Hi.", 0),
    ] {
        let expected = (reasoning.to_owned(), content.to_owned(), calls);
        assert_eq!(told_apart(name, prompt, &text), expected, "{name}: {text}");
    }
}

#[test]
fn the_prompt_says_which_markers_end_reasoning() {
    for effort in ["think", "think_fast", "think_faster"] {
        let prompt = format!("<ifm|{effort}>\n");
        let text = format!("a </ifm|other> b</ifm|{effort}>\nso");
        let expected = ("a </ifm|other> b".to_owned(), "so".to_owned(), 0);
        assert_eq!(told_apart("k2_horizon", &prompt, &text), expected);
    }
}

#[test]
fn the_end_of_a_reasoning_that_never_began_is_dropped() {
    let nothing = String::new;
    let expected = (nothing(), "so".to_owned(), 0);
    assert_eq!(
        told_apart("minimax_m3", "</mm:think>", "</mm:think>\n\nso"),
        expected
    );
    let expected = (nothing(), "so </mm:think>".to_owned(), 0);
    assert_eq!(told_apart("minimax_m3", "", "so </mm:think>"), expected);
}
