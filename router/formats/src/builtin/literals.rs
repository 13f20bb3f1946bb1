//! Calls with literals.

use super::make::{bare, format, list, named, one, reasoning, section, think};
use crate::format::{Arguments, Format, text};

pub(super) fn formats() -> Vec<Format> {
    let python = || named("", "(", Arguments::Keywords, "");
    let braces = |quote| named("call:", "", Arguments::Braces { quote: text(quote) }, "");
    let start = "<|python_start|>[";
    let end = "]<|python_end|>";
    vec![
        format("lfm2", &["lfm2_5"], {
            list(
                &[section("<|tool_call_start|>[", "]<|tool_call_end|>")],
                ", ",
                python(),
            )
        })
        .thinks(think())
        .special(),
        format("minicpm3", &[], {
            let calls = [section(
                "<|tool_call_start|>\n```python\n",
                "\n```\n<|tool_call_end|>",
            )];
            list(&calls, "\n", python())
        })
        .thinks(reasoning("<|thought_start|>", "<|thought_end|>"))
        .special(),
        format("olmo3", &[], {
            let calls = [section("<function_calls>", "</function_calls>")];
            list(&calls, "\n", python())
        })
        .thinks(think())
        .special(),
        format(
            "llama4_pythonic",
            &[],
            list(&[section(start, end), bare("[", "]")], ", ", python()),
        )
        .special(),
        format(
            "pythonic",
            &[],
            list(&[bare("[", "]"), section(start, end)], ", ", python()),
        )
        .special(),
        format(
            "gemma4",
            &[],
            one(&[section("<|tool_call>", "<tool_call|>")], braces("<|\"|>")),
        )
        .thinks(reasoning("<|channel>thought", "<channel|>"))
        .special(),
        format("functiongemma", &[], {
            one(
                &[section("<start_function_call>", "<end_function_call>")],
                braces("<escape>"),
            )
        })
        .special(),
    ]
}
