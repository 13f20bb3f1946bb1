//! Calls as JSON objects with the name inside.

use super::make::{bare, between, format, list, one, reasoning, section, think};
use crate::format::{Arguments, Call, Envelope, Format, Head, Header, Ids, text};

pub(super) fn formats() -> Vec<Format> {
    let arguments = || Call::object(&["arguments", "parameters"]);
    let parameters = || Call::object(&["parameters", "arguments"]);
    vec![
        format(
            "hermes",
            &["qwen", "qwen25", "qwen3", "granite4", "trinity"],
            one(&[section("<tool_call>\n", "\n</tool_call>")], arguments()),
        )
        .thinks(think()),
        format("ernie45", &[], {
            let calls = [section("<tool_call>\n", "\n</tool_call>")];
            one(&calls, arguments())
        })
        .thinks(think())
        .envelope(between("<response>", "</response>"))
        .special(),
        format("longcat", &["longcat_flash"], {
            let calls = [section("<longcat_tool_call>\n", "\n</longcat_tool_call>")];
            one(&calls, arguments())
        })
        .thinks(reasoning("<longcat_think>", "</longcat_think>"))
        .special(),
        format("internlm", &["interns1"], {
            let calls = [section("<|action_start|> <|plugin|>\n", "<|action_end|>")];
            one(&calls, parameters())
        })
        .thinks(think())
        .special(),
        format("llama3_json", &["llama", "llama3", "llama4_json"], {
            list(
                &[
                    bare("", ""),
                    section("<|python_tag|>", ""),
                    section("<|python_start|>", "<|python_end|>"),
                ],
                "; ",
                parameters(),
            )
        })
        .special(),
        format("mistral_v3", &["mistral_old"], {
            list(&[section("[TOOL_CALLS] [", "]")], ", ", arguments())
        })
        .thinks(reasoning("[THINK]", "[/THINK]"))
        .ids(Ids::Nine)
        .special(),
        format("granite", &["granite3", "granite-20b-fc"], {
            list(
                &[
                    section("<|tool_call|> [", "]"),
                    section("<tool_call> [", "]"),
                ],
                ", ",
                arguments(),
            )
        })
        .special(),
        format("nemotron_json", &["llama_nemotron_json"], {
            let calls = [section("<TOOLCALL>[", "]</TOOLCALL>")];
            list(&calls, ", ", arguments())
        })
        .thinks(think())
        .special(),
        format("hunyuan_a13b", &["jamba"], {
            let calls = [section("<tool_calls>[", "]</tool_calls>")];
            list(&calls, ", ", arguments())
        })
        .thinks(think())
        .special(),
        format("gigachat3", &["gigachat35"], {
            let older = section("<|message_sep|>\n\nfunction call<|role_sep|>\n", "");
            one(&[section("<|function_call|>", ""), older], arguments())
        })
        .special(),
        cohere("cohere_command3").envelope(between("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
        cohere("cohere_command4").envelope(between("<|START_TEXT|>", "<|END_TEXT|>")),
        format("inkling", &[], {
            let calls = [section("<|content_invoke_tool_json|>", "<|end_message|>")];
            one(&calls, Call::object(&["args"]))
        })
        .thinks(reasoning("<|content_thinking|>", "<|end_message|>").or_calls())
        .envelope(Envelope {
            after: &["<|content_model_end_sampling|>"],
            header: Some(Header {
                open: "<|message_model|>",
                name: ["", ""],
                close: "",
            }),
            ..between("<|content_text|>", "<|end_message|>")
        })
        .special(),
        format("minimax", &["minimax_m1"], {
            let calls = [section("<tool_calls>\n", "\n</tool_calls>")];
            list(&calls, "\n", arguments())
        })
        .thinks(think())
        .special(),
        format(
            "phi4_mini_json",
            &["phi4_mini"],
            list(&[section("functools[", "]")], ", ", arguments()),
        ),
        format("xlam", &[], {
            let calls = [
                bare("[", "]"),
                section("<tool_call>[", "]</tool_call>"),
                section("[TOOL_CALLS][", "]"),
                section("```json\n[", "]\n```"),
                section("```\n[", "]\n```"),
            ];
            list(&calls, ", ", arguments())
        }),
    ]
}

/// A format of Cohere, which counts its calls.
fn cohere(name: &'static str) -> Format {
    let call = Call {
        head: Head::Object {
            number: Some("tool_call_id"),
            name: "tool_name",
            arguments: &["parameters"],
        },
        arguments: Arguments::Json,
        close: text("}"),
    };
    let calls = [section("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>")];
    format(name, &[], list(&calls, ",\n    ", call))
        .thinks(reasoning("<|START_THINKING|>", "<|END_THINKING|>").or_calls())
        .special()
}
