//! Calls as a header with the name, then a JSON object.

use super::make::{bare, between, format, list, named, one, reasoning, section, think};
use crate::format::{Arguments, Envelope, Format, Ids, Layout, NameForm};

pub(super) fn formats() -> Vec<Format> {
    let calls = [section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")];
    let kimi = [section(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
    )];
    vec![
        format("mistral", &["mistral_v11"], {
            let call = named("[TOOL_CALLS]", "[ARGS]", Arguments::Json, "")
                .form(NameForm::WithId("[CALL_ID]"));
            one(&[section("", "")], call)
        })
        .thinks(reasoning("[THINK]", "[/THINK]"))
        .ids(Ids::Nine)
        .special(),
        format("deepseek_v3", &["deepseekv3", "deepseek_r1"], {
            let open = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>";
            list(
                &calls,
                "\n",
                named(
                    open,
                    "\n```json\n",
                    Arguments::Json,
                    "\n```<｜tool▁call▁end｜>",
                ),
            )
        })
        .thinks(think())
        .special(),
        format("deepseek_v31", &["deepseekv31"], {
            let call = named(
                "<｜tool▁call▁begin｜>",
                "<｜tool▁sep｜>",
                Arguments::Json,
                "<｜tool▁call▁end｜>",
            );
            list(&calls, "", call)
        })
        .thinks(think())
        .special(),
        format("kimi_k2", &[], {
            let end = "<|tool_call_argument_begin|>";
            let call = named(
                "<|tool_call_begin|>",
                end,
                Arguments::Json,
                "<|tool_call_end|>",
            )
            .form(NameForm::Numbered);
            list(&kimi, "", call)
        })
        .thinks(think().or_calls())
        .ids(Ids::Numbered)
        .special(),
        format("apertus", &["apertus2509"], {
            let call = named("{\"", "\": ", Arguments::Json, "}");
            let calls = [section("<|tools_prefix|>[", "]<|tools_suffix|>")];
            list(&calls, ", ", call)
        })
        .thinks(reasoning("<|inner_prefix|>", "<|inner_suffix|>"))
        .special(),
        format("solar_open", &[], {
            let open = "<|tool_call:begin|>";
            let call = named(
                open,
                "<|tool_call:args|>",
                Arguments::Json,
                "<|tool_call:end|>",
            )
            .form(NameForm::AfterId("<|tool_call:name|>"));
            list(&[section("<|tool_calls|>", "")], "", call)
        })
        .thinks(reasoning("<|think|>", "<|end|>").or_calls())
        .envelope(Envelope {
            before: &["<|begin|>assistant"],
            after: &["<|flush|>", "<|calls|>"],
            ..between("<|content|>", "<|end|>")
        })
        .special(),
        format("glm4", &[], {
            let call = named("", "\n", Arguments::Json, "");
            list(&[bare("", "")], "\n", call)
        })
        .thinks(think())
        .special(),
        format("plamo3", &[], {
            let open = "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>";
            let end = "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|>\
                <|plamo:constrain|>json<|plamo:msg|>";
            let close = "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>";
            let calls = [section(
                "<|plamo:begin_tool_requests:plamo|>",
                "<|plamo:end_tool_requests:plamo|>",
            )];
            list(&calls, "", named(open, end, Arguments::Json, close))
        })
        .thinks(reasoning("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>").or_calls())
        .special(),
        format(
            "openai",
            &["gpt_oss", "gpt-oss", "openai_gptoss", "harmony"],
            Layout::Channels,
        )
        .special(),
    ]
}
