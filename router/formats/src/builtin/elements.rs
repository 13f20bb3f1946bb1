//! Calls with one element for each argument.

use super::make::{
    between, element, format, list, named, one, parameters, reasoning, section, think,
};
use crate::format::{
    Arguments, Attribute, Envelope, Format, Header, NameForm, Parameters, Reasoning, Section, text,
};
use crate::schema::Types;

pub(super) fn formats() -> Vec<Format> {
    vec![
        format("qwen3_coder", &["qwen3_xml", "nemotron_v3", "step3p5"], {
            let arguments = parameters("<parameter=", ">", "</parameter>", "\n");
            let call = element(arguments, "<function=", ">\n", "\n</function>").spaced("\n");
            let sections = [section("<tool_call>\n", "\n</tool_call>"), section("", "")];
            one(&sections, call)
        })
        .thinks(think()),
        format("mimo", &["mimo_v2"], {
            let arguments = parameters("<parameter=", ">", "</parameter>", "");
            let call = element(arguments, "<function=", ">\n", "\n</function>").spaced("\n");
            one(&[section("<tool_call>\n", "\n</tool_call>")], call)
        })
        .thinks(think()),
        format("seed_oss", &[], {
            let arguments = parameters("<parameter=", ">", "</parameter>", "");
            let call = element(arguments, "<function=", ">\n", "\n</function>").spaced("\n");
            one(
                &[section("<seed:tool_call>\n", "\n</seed:tool_call>")],
                call,
            )
        })
        .thinks(reasoning("<seed:think>", "</seed:think>"))
        .special(),
        format("longcat_elements", &["longcat_2"], {
            let arguments = parameters(
                "<longcat_arg_key>",
                "</longcat_arg_key>\n<longcat_arg_value>",
                "</longcat_arg_value>",
                "",
            );
            one(
                &[section("<longcat_tool_call>", "")],
                element(arguments, "", "\n", "\n</longcat_tool_call>").spaced("\n"),
            )
        })
        .thinks(reasoning("<longcat_think>", "</longcat_think>"))
        .special(),
        format("step3", &[], {
            let arguments = parameters(
                "<steptml:parameter name=\"",
                "\">",
                "</steptml:parameter>",
                "",
            );
            let call = element(
                arguments,
                "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"",
                "\">",
                "</steptml:invoke><｜tool_call_end｜>",
            );
            let calls = [section(
                "<｜tool_calls_begin｜>\n",
                "\n<｜tool_calls_end｜>",
            )];
            list(&calls, "\n", call)
        })
        .thinks(think())
        .special(),
        format("dots", &["dots1"], {
            let arguments = parameters("<parameter name=\"", "\">", "</parameter>", "");
            let call = element(arguments, "<invoke name=\"", "\">\n", "\n</invoke>");
            let calls = [section("<dots_function_call>\n", "\n</dots_function_call>")];
            list(&calls, "\n", call.spaced("\n"))
        })
        .thinks(think())
        .special(),
        format("hy_v3", &["hunyuan_v3", "hunyuan"], {
            let arguments = parameters(
                "<arg_key:opensource>",
                "</arg_key:opensource>\n<arg_value:opensource>",
                "</arg_value:opensource>",
                "",
            );
            let call = element(
                arguments,
                "<tool_call:opensource>",
                "<tool_sep:opensource>\n",
                "\n</tool_call:opensource>",
            );
            let calls = [section(
                "<tool_calls:opensource>\n",
                "\n</tool_calls:opensource>",
            )];
            list(&calls, "\n", call.spaced("\n"))
        })
        .thinks(reasoning("<think:opensource>", "</think:opensource>"))
        .special(),
        format("hy_v3_preview", &[], {
            let arguments = parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "");
            let call = element(arguments, "<tool_call>", "<tool_sep>\n", "\n</tool_call>");
            let calls = [section("<tool_calls>\n", "\n</tool_calls>")];
            list(&calls, "\n", call.spaced("\n"))
        })
        .thinks(think())
        .special(),
        hunyuan("").special(),
        format("k2_horizon", &["k2_v3", "ifm"], {
            let arguments = parameters(
                "<ifm|arg_key>",
                "</ifm|arg_key>\n<ifm|arg_value>",
                "</ifm|arg_value>",
                "",
            );
            let call = element(arguments, "<ifm|tool_call>", "\n", "\n</ifm|tool_call>");
            let calls = [section("<ifm|tool_calls>\n", "\n</ifm|tool_calls>")];
            list(&calls, "\n", call.spaced("\n"))
        })
        .thinks(ifm())
        .special(),
        format("solar_open2", &[], {
            let arguments = parameters(
                "<|tool_arg:start|>",
                "<|tool_arg:value|>",
                "<|tool_arg:end|>",
                "",
            );
            let call = element(arguments, "", "\n", "\n<|tool_call:end|>").spaced("\n");
            one(&[section("<|tool_call:start|>", "")], call)
        })
        .thinks(reasoning("<|think:start|>", "<|think:end|>").or_calls())
        .special(),
        format("minicpm5", &[], {
            let arguments = Parameters {
                cdata: true,
                ..parameters("<param name=\"", "\">", "</param>", "")
            };
            let call = element(arguments, "<function name=\"", "\">", "</function>");
            one(&[section("", "")], call)
        })
        .thinks(think()),
        format("kimi_k3", &[], {
            let arguments = Parameters {
                attribute: Some(Attribute {
                    text: "string",
                    others: &[
                        ("number", Types::NUMBERS),
                        ("boolean", Types::BOOLEAN),
                        ("null", Types::NULL),
                        ("array", Types::ARRAY),
                        ("object", Types::OBJECT),
                    ],
                    end: "\"<|sep|>",
                }),
                ..parameters(
                    "<|open|>argument key=\"",
                    "\" type=\"",
                    "<|close|>argument<|sep|>",
                    "",
                )
            };
            let close = "<|close|>call<|sep|>";
            let call = element(arguments, "<|open|>call tool=\"", "\"<|sep|>", close)
                .form(NameForm::Counted("\" index=\""));
            let calls = [section("<|open|>tools<|sep|>", "<|close|>tools<|sep|>")];
            list(&calls, "", call)
        })
        .thinks(reasoning("<|open|>think<|sep|>", "<|close|>think<|sep|>").or_calls())
        .envelope(Envelope {
            after: &["<|close|>message<|sep|>"],
            ..between("<|open|>response<|sep|>", "<|close|>response<|sep|>")
        })
        .special(),
        format("muse_glimmer", &["muse"], {
            let arguments = parameters("<atem:parameter name=\"", "\">", "</atem:parameter>", "");
            let call = element(
                arguments,
                "<atem:invoke name=\"",
                "\">\n",
                "\n</atem:invoke>",
            );
            let calls = [section(
                "<atem:function_calls>\n",
                "\n</atem:function_calls>",
            )];
            one(&calls, call.form(NameForm::Doubled).spaced("\n"))
        })
        .thinks(reasoning("to=self<|message|>", "<|eom|>").or_calls())
        .envelope(Envelope {
            before: &["<|message|>"],
            after: &["<|eom|>"],
            header: Some(Header {
                open: "<|start|>assistant",
                name: [" to=", "<|message|>"],
                close: "<|eom|>",
            }),
            ..between("to=user<|message|>", "<|eot|>")
        })
        .special(),
        format("minimax_m3", &["minimax-m3"], {
            let prefix = text("]<]minimax[>[");
            let elements = Arguments::Elements { prefix };
            let open = "]<]minimax[>[<invoke name=\"";
            let call = named(open, "\">", elements, "]<]minimax[>[</invoke>");
            let calls = [section(
                "]<]minimax[>[<tool_call>\n",
                "\n]<]minimax[>[</tool_call>",
            )];
            list(&calls, "\n", call)
        })
        .thinks(reasoning("<mm:think>", "</mm:think>"))
        .special(),
        format(
            "glm45",
            &["glm", "glm4_moe", "ling3", "poolside_v1", "spark25"],
            {
                let arguments =
                    parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "");
                one(
                    &[section("<tool_call>", "")],
                    element(arguments, "", "\n", "\n</tool_call>").spaced("\n"),
                )
            },
        )
        .thinks(think()),
        format("glm47", &["glm47_moe"], {
            let arguments = parameters("<arg_key>", "</arg_key><arg_value>", "</arg_value>", "");
            one(
                &[section("<tool_call>", "")],
                element(arguments, "", "", "</tool_call>"),
            )
        })
        .thinks(think()),
        dsml(
            "deepseek_v32",
            &["deepseekv32"],
            section("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
            "｜DSML｜",
        ),
        dsml(
            "deepseek_v4",
            &["deepseekv4"],
            section("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"),
            "｜DSML｜",
        ),
        dsml(
            "deepseek_v41",
            &["deepseekv41"],
            section("<｜DSML｜ calls>\n", "\n</｜DSML｜ calls>"),
            "｜DSML｜ ",
        ),
        format("minimax_m2", &["minimax-m2"], {
            let arguments = parameters("<parameter name=\"", "\">", "</parameter>", "");
            let call = element(arguments, "<invoke name=\"", "\">\n", "\n</invoke>").spaced("\n");
            list(
                &[section("<minimax:tool_call>\n", "\n</minimax:tool_call>")],
                "\n",
                call,
            )
        })
        .thinks(think()),
    ]
}

/// A format of DeepSeek, with this before the names of its elements.
fn dsml(
    name: &'static str,
    aliases: &'static [&'static str],
    calls: Section,
    before: &str,
) -> Format {
    let arguments = Parameters {
        attribute: Some(Attribute {
            text: "true",
            others: &[("false", Types::ANY_BUT_TEXT)],
            end: "\">",
        }),
        ..parameters(
            format!("<{before}parameter name=\""),
            "\" string=\"",
            format!("</{before}parameter>"),
            "",
        )
    };
    let open = format!("<{before}invoke name=\"");
    let call = element(arguments, open, "\">\n", format!("\n</{before}invoke>"));
    let layout = list(&[calls], "\n", call.spaced("\n"));
    format(name, aliases, layout).thinks(think()).special()
}

/// The name of the format whose markers end with a suffix.
pub(super) const HUNYUAN: &str = "hy_v4";

/// The format of Hy 4. Each of its markers ends with a suffix that the checkpoint has.
pub(super) fn hunyuan(suffix: &str) -> Format {
    let tag = |name: &str| format!("<{name}{suffix}>");
    let arguments = parameters(
        tag("arg_key"),
        tag("/arg_key") + &tag("arg_value"),
        tag("/arg_value"),
        "",
    );
    let call = element(arguments, tag("tool_call"), "", tag("/tool_call"));
    let calls = [section(tag("tool_calls"), tag("/tool_calls"))];
    let thoughts = reasoning(tag("think"), tag("/think"));
    format(HUNYUAN, &[], list(&calls, "", call)).thinks(thoughts)
}

/// The reasoning of K2 Horizon, whose markers say how much it thinks.
fn ifm() -> Reasoning {
    Reasoning {
        others: &[
            ("<ifm|think_fast>", "</ifm|think_fast>"),
            ("<ifm|think_faster>", "</ifm|think_faster>"),
        ],
        ..reasoning("<ifm|think>", "</ifm|think>").or_calls()
    }
}
