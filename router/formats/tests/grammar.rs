//! What the grammars allow, under llguidance.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;
#[path = "common/vocabulary.rs"]
mod vocabulary;

use common::{options, parse_pieces, prompt, tools};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use text_generation_formats::{
    ANSWER, Constraint, CustomGrammar, Format, FormatError, Tool, ToolChoice, ToolKind,
};
use vocabulary::Vocabulary;

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(Vocabulary::new);

fn grammar(
    format: &Format,
    tools: &[Tool],
    choice: &ToolChoice,
    parallel: bool,
    has_form: bool,
) -> Result<Option<String>, FormatError> {
    format.grammar(&Constraint {
        tools,
        choice,
        parallel,
        has_form,
        prompt_tail: prompt(format),
        special_tokens: &VOCABULARY.special,
    })
}

fn strict() -> Vec<Tool> {
    let mut tools = tools();
    for tool in &mut tools {
        tool.strict = true;
    }
    tools
}

fn arguments() -> Map<String, Value> {
    let arguments = json!({"city": "Zürich 你", "days": 3, "exact": true, "limits": {"low": -1.5}, "tags": ["a", "b"]});
    arguments.as_object().expect("an object").clone()
}

/// Without those that every answer ends after one call.
fn several(format: &Format) -> bool {
    format.name() != "openai"
}

#[test]
fn written_calls_are_accepted_where_the_choice_allows_them() {
    let (call, none) = (arguments(), Map::new());
    let mut failures = Vec::new();
    for format in Format::all() {
        let accepts = |choice: &ToolChoice, parallel, text: &str| {
            let grammar = grammar(format, &strict(), choice, parallel, false).expect("a grammar");
            let grammar = grammar.expect("something to enforce");
            VOCABULARY.accepts(&grammar, text)
        };
        let one = format.write(&[("get_weather", &call)]);
        let two = format.write(&[("get_weather", &call), ("ping", &none)]);
        let ping = format.write(&[("ping", &none)]);
        let named = ToolChoice::Named("ping".to_owned());
        let name = format.name();
        let mut check = |what: &str, choice: &ToolChoice, parallel, text: &str, expected| {
            if accepts(choice, parallel, text) != expected {
                failures.push(format!("{name}, {choice:?}, {what}: {text}"));
            }
        };
        for choice in [ToolChoice::Required, ToolChoice::Auto] {
            check("one", &choice, true, &one, true);
            check("only one", &choice, false, &one, true);
            check("two", &choice, true, &two, several(format));
            check("two of one", &choice, false, &two, false);
            // Without any marker, what does not begin with the name of a tool is text.
            let is_text = name == "glm4" && choice == ToolChoice::Auto;
            let unknown = one.replace("get_weather", "get_whether");
            check("unknown tool", &choice, true, &unknown, is_text);
        }
        check("its name", &named, true, &ping, true);
        check("another name", &named, true, &one, false);
        let text = if name == "openai" {
            "<|channel|>final<|message|>No."
        } else {
            "No."
        };
        check("text", &ToolChoice::Required, true, text, false);
        check("text", &ToolChoice::Auto, true, text, true);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What may be chosen next: what ends things as often as what goes on, so that walks come to an end.
fn choose(random: &mut StdRng, allowed: &[u32]) -> u32 {
    let heavy: Vec<u32> = allowed
        .iter()
        .copied()
        .filter(|&id| {
            let bytes = VOCABULARY.bytes(id);
            bytes.len() > 1 || matches!(bytes, b"\"" | b"}" | b"]" | b")" | b"<" | b">")
        })
        .collect();
    let from = if heavy.is_empty() || random.random_bool(0.4) {
        allowed
    } else {
        &heavy
    };
    from[random.random_range(0..from.len())]
}

/// The text of a random walk under the mask, and whether it came to its end.
fn walk(grammar: &str, seed: u64) -> (String, bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut matcher = VOCABULARY.matcher(grammar);
    let mut bytes = Vec::new();
    for _ in 0..200 {
        if matcher.is_stopped() {
            return (String::from_utf8_lossy(&bytes).into_owned(), true);
        }
        let allowed = matcher.compute_mask().expect("a mask").to_list();
        if allowed.contains(&VOCABULARY.eos) && random.random_bool(0.5) {
            return (String::from_utf8_lossy(&bytes).into_owned(), true);
        }
        let allowed: Vec<u32> = allowed
            .into_iter()
            .filter(|&id| id != VOCABULARY.eos)
            .collect();
        let id = choose(&mut random, &allowed);
        matcher.consume_token(id).expect("an allowed token");
        bytes.extend_from_slice(VOCABULARY.bytes(id));
    }
    (String::from_utf8_lossy(&bytes).into_owned(), false)
}

/// Whether arguments fit the schema of the tool, as far as these tests have types.
fn fits(name: &str, arguments: &Value) -> bool {
    let Some(object) = arguments.as_object() else {
        return false;
    };
    if name == "ping" {
        return object.is_empty();
    }
    name == "get_weather"
        && object.contains_key("city")
        && object.iter().all(|(key, value)| match key.as_str() {
            "city" => value.is_string(),
            "days" => value.as_f64().is_some_and(|days| days.fract() == 0.0),
            "exact" => value.is_boolean(),
            "note" => value.is_string() || value.is_null(),
            "tags" => value
                .as_array()
                .is_some_and(|tags| tags.iter().all(Value::is_string)),
            "limits" => value.as_object().is_some_and(|limits| {
                limits.contains_key("low")
                    && limits.iter().all(|(key, value)| {
                        matches!(key.as_str(), "low" | "high") && value.is_number()
                    })
            }),
            _ => false,
        })
}

#[test]
fn what_a_grammar_allows_is_read_as_calls_that_fit_the_tools() {
    let mut ended = 0;
    for format in Format::all() {
        for (choice, parallel) in [
            (ToolChoice::Required, true),
            (ToolChoice::Required, false),
            (ToolChoice::Named("get_weather".to_owned()), true),
            (ToolChoice::Auto, true),
            (ToolChoice::Auto, false),
        ] {
            let grammar = grammar(format, &strict(), &choice, parallel, false);
            let grammar = grammar.expect("a grammar").expect("something to enforce");
            for seed in 0..6 {
                let (text, end) = walk(&grammar, seed);
                let answer =
                    parse_pieces(format, prompt(format), [text.as_str()], &options(&tools()));
                if !end {
                    continue;
                }
                ended += 1;
                let case = format!(
                    "{} {choice:?} {parallel}: {text:?} {answer:?}",
                    format.name()
                );
                assert!(answer.calls.iter().all(|call| call.ended), "{case}");
                assert!(
                    answer
                        .called()
                        .iter()
                        .all(|(name, arguments)| fits(name, arguments)),
                    "{case}"
                );
                assert!(parallel || answer.calls.len() <= 1, "{case}");
                if choice != ToolChoice::Auto {
                    assert!(
                        !answer.calls.is_empty() && answer.content.is_empty(),
                        "{case}"
                    );
                }
            }
        }
    }
    assert!(ended > 250, "{ended} walks came to their end");
}

#[test]
fn there_is_no_grammar_without_anything_to_enforce() {
    let free = |choice| grammar(common::format("hermes"), &tools(), &choice, true, false);
    assert_eq!(free(ToolChoice::Auto), Ok(None));
    assert_eq!(free(ToolChoice::None), Ok(None));
}

#[test]
fn a_call_that_cannot_be_required_is_refused_by_name() {
    let hermes = common::format("hermes");
    let refused = |tools: &[Tool], choice| {
        grammar(hermes, tools, &choice, true, false).expect_err("an error")
    };
    let unknown = refused(&tools(), ToolChoice::Named("nope".to_owned()));
    assert_eq!(
        unknown,
        FormatError::UnknownTool {
            name: "nope".to_owned()
        }
    );
    assert_eq!(refused(&[], ToolChoice::Required), FormatError::NoTools);
    let plain = grammar(
        &Format::plain(),
        &tools(),
        &ToolChoice::Required,
        true,
        false,
    );
    assert!(matches!(plain, Err(FormatError::NoCalls { .. })));
}

#[test]
fn an_answer_has_its_form_after_reasoning_which_the_prompt_may_have_begun() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let json = format!("start: %json {schema}");
    let thinks = Format::plain().with_reasoning("qwen3").expect("reasoning");
    let accepts = |format: &Format, prompt_tail: &str, tools: &[Tool], form: &str, text: &str| {
        let constraint = Constraint {
            tools,
            choice: &ToolChoice::Auto,
            parallel: true,
            has_form: true,
            prompt_tail,
            special_tokens: &VOCABULARY.special,
        };
        let grammar = format
            .grammar(&constraint)
            .expect("a grammar")
            .expect("something to enforce");
        VOCABULARY.accepts_around(&grammar, (ANSWER, form), text)
    };
    for (prompt, text, expected) in [
        ("", "{\"a\": 1}", true),
        ("", "<think>{hm}</think>\n\n{\"a\": 1}", true),
        ("", "so {\"a\": 1}", false),
        ("<think>\n", "{hm}</think>\n\n{\"a\": 1}", true),
        ("<think>\n", "{\"a\": 1}", false),
        ("", "{\"a\": \"1\"}", false),
    ] {
        assert_eq!(
            accepts(&thinks, prompt, &[], &json, text),
            expected,
            "{prompt:?} {text:?}"
        );
    }
    let plain = Format::plain();
    assert!(accepts(&plain, "", &[], &json, "{\"a\": 1}"));
    let lark = "start: \"x\" TAIL\nTAIL: /y+/";
    assert!(accepts(&plain, "", &[], lark, "xyy"));
    assert!(accepts(&thinks, "", &[], lark, "<think>z</think>xyy"));
    assert!(!accepts(&thinks, "", &[], lark, "<think>z</think>z"));
    let openai = common::format("openai");
    let text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{\"a\": 1}";
    assert!(accepts(openai, "<|start|>assistant", &[], &json, text));
    assert!(!accepts(
        openai,
        "<|start|>assistant",
        &[],
        &json,
        "<|channel|>final<|message|>no"
    ));
    for text in [
        "{\"a\": 1}",
        "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
    ] {
        assert!(
            accepts(common::format("hermes"), "", &tools(), &json, text),
            "{text}"
        );
    }
}

#[test]
fn the_grammar_of_a_custom_tool_holds_where_the_format_writes_its_input() {
    let custom = |grammar| Tool {
        name: "patch".to_owned(),
        description: None,
        kind: ToolKind::Custom {
            grammar: Some(grammar),
        },
        strict: false,
    };
    let lark = || {
        custom(CustomGrammar::Lark(
            "start: \"*** \" NAME\nNAME: /[a-z]+/".to_owned(),
        ))
    };
    let pattern = || custom(CustomGrammar::Regex("[a-z]+".to_owned()));
    let input = |text: &str| {
        json!({"input": text})
            .as_object()
            .expect("an object")
            .clone()
    };
    let check = |name: &str, tool: Tool, good: &str, bad: &str| {
        let format = common::format(name);
        let grammar = grammar(format, &[tool], &ToolChoice::Required, true, false);
        let grammar = grammar.expect("a grammar").expect("something to enforce");
        for (text, expected) in [(good, true), (bad, false)] {
            let written = match name {
                "openai" => format!("<|channel|>commentary to=functions.patch<|message|>{text}"),
                _ => format.write(&[("patch", &input(text))]),
            };
            assert_eq!(
                VOCABULARY.accepts(&grammar, &written),
                expected,
                "{name}: {written}"
            );
        }
    };
    for name in [
        "qwen3_coder",
        "mimo",
        "hy_v3",
        "glm47",
        "minimax_m2",
        "deepseek_v32",
        "gemma4",
        "functiongemma",
        "openai",
    ] {
        check(name, lark(), "*** abc", "** abc");
        check(name, pattern(), "abc", "abC");
    }
    // Here the text stands in quotes, with escapes.
    for name in ["hermes", "pythonic"] {
        check(name, pattern(), "abc", "abC");
        let refused = grammar(
            common::format(name),
            &[lark()],
            &ToolChoice::Auto,
            true,
            false,
        );
        assert!(
            matches!(refused, Err(FormatError::NotEnforceable { .. })),
            "{name}: {refused:?}"
        );
    }
}
