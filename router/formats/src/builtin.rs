//! The formats that are known without a model's help.

use std::sync::LazyLock;

use crate::format::{
    Arguments, Call, Calls, Format, Head, Ids, Layout, NameForm, Parameters, Reasoning, Section,
    text,
};
use crate::response_template;

/// The order matters where two formats can read the same call: the first one is taken.
static FORMATS: LazyLock<Vec<Format>> = LazyLock::new(|| {
    let mut formats = object_formats();
    formats.extend(header_formats());
    formats.extend(element_formats());
    formats.extend(literal_formats());
    formats
});

/// Reasoning that can be combined with any format, by the names of the `--reasoning-parser` of vLLM.
static REASONING: LazyLock<Vec<(&[&str], Reasoning)>> = LazyLock::new(|| {
    vec![
        (
            &[
                "deepseek_r1",
                "deepseek_v3",
                "qwen3",
                "glm45",
                "think",
                "nemotron_v3",
                "step3p5",
                "ernie45",
                "minimax_m2",
                "holo2",
                "hunyuan_a13b",
                "olmo3",
                "ling3",
                "poolside_v1",
                "step3",
            ],
            think(),
        ),
        (&["mistral"], reasoning("[THINK]", "[/THINK]")),
        (
            &["kimi_k2"],
            Reasoning {
                ended_by_calls: true,
                ..think()
            },
        ),
        (&["gemma4"], reasoning("<|channel>thought", "<channel|>")),
        (&["seed_oss"], reasoning("<seed:think>", "</seed:think>")),
        (
            &["longcat"],
            reasoning("<longcat_think>", "</longcat_think>"),
        ),
        (
            &["apertus"],
            reasoning("<|inner_prefix|>", "<|inner_suffix|>"),
        ),
        (
            &["hy_v3"],
            reasoning("<think:opensource>", "</think:opensource>"),
        ),
        (
            &["granite"],
            reasoning("Here is my thought process:", "Here is my response:"),
        ),
    ]
});

/// Calls as JSON objects with the name inside.
fn object_formats() -> Vec<Format> {
    let arguments = || Call::object(&["arguments", "parameters"]);
    let parameters = || Call::object(&["parameters", "arguments"]);
    vec![
        format(
            "hermes",
            &["qwen", "qwen25", "qwen3"],
            one(&[section("<tool_call>\n", "\n</tool_call>")], arguments()),
        )
        .thinks(think()),
        format("longcat", &["longcat_flash"], {
            let calls = [section("<longcat_tool_call>\n", "\n</longcat_tool_call>")];
            one(&calls, arguments())
        })
        .thinks(reasoning("<longcat_think>", "</longcat_think>"))
        .special(),
        format("llama3_json", &["llama", "llama3", "llama4_json"], {
            list(
                &[bare("", ""), section("<|python_tag|>", "")],
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
        format(
            "phi4_mini_json",
            &["phi4_mini"],
            list(&[section("functools[", "]")], ", ", arguments()),
        ),
    ]
}

/// Calls as a header with the name, then a JSON object.
fn header_formats() -> Vec<Format> {
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
        format("deepseek_v3", &["deepseek_r1"], {
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
        format("deepseek_v31", &[], {
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
        .thinks(Reasoning {
            ended_by_calls: true,
            ..think()
        })
        .ids(Ids::Numbered)
        .special(),
        format("apertus", &[], {
            let call = named("{\"", "\": ", Arguments::Json, "}");
            let calls = [section("<|tools_prefix|>[", "]<|tools_suffix|>")];
            list(&calls, ", ", call)
        })
        .thinks(reasoning("<|inner_prefix|>", "<|inner_suffix|>"))
        .special(),
        format("openai", &["gpt_oss", "harmony"], Layout::Channels).special(),
    ]
}

/// Calls with one element for each argument.
fn element_formats() -> Vec<Format> {
    let dsml = |calls: Section, [open, parameter, parameter_close, close]: [&'static str; 4]| {
        let arguments = Arguments::Parameters(Parameters {
            attribute_end: Some("\">"),
            ..parameters(parameter, "\" string=\"", parameter_close, "")
        });
        list(
            &[calls],
            "\n",
            named(open, "\">\n", arguments, close).spaced("\n"),
        )
    };
    let unspaced = [
        "<｜DSML｜invoke name=\"",
        "<｜DSML｜parameter name=\"",
        "</｜DSML｜parameter>",
        "\n</｜DSML｜invoke>",
    ];
    let spaced = [
        "<｜DSML｜ invoke name=\"",
        "<｜DSML｜ parameter name=\"",
        "</｜DSML｜ parameter>",
        "\n</｜DSML｜ invoke>",
    ];
    let element =
        |parameters, open, end, close| named(open, end, Arguments::Parameters(parameters), close);
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
        format("hy_v3", &["hunyuan_v3"], {
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
        format("glm45", &["glm4_moe", "ling3", "poolside_v1"], {
            let arguments = parameters("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "");
            one(
                &[section("<tool_call>", "")],
                element(arguments, "", "\n", "\n</tool_call>").spaced("\n"),
            )
        })
        .thinks(think()),
        format("glm47", &["glm47_moe"], {
            let arguments = parameters("<arg_key>", "</arg_key><arg_value>", "</arg_value>", "");
            one(
                &[section("<tool_call>", "")],
                element(arguments, "", "", "</tool_call>"),
            )
        })
        .thinks(think()),
        format("deepseek_v32", &[], {
            let calls = section("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>");
            dsml(calls, unspaced)
        })
        .thinks(think())
        .special(),
        format("deepseek_v4", &[], {
            let calls = section("<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>");
            dsml(calls, unspaced)
        })
        .thinks(think())
        .special(),
        format("deepseek_v41", &[], {
            let calls = section("<｜DSML｜ calls>\n", "\n</｜DSML｜ calls>");
            dsml(calls, spaced)
        })
        .thinks(think())
        .special(),
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

/// Calls with literals.
fn literal_formats() -> Vec<Format> {
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

/// The kinds of reasoning that can be combined with any format.
pub(crate) fn reasonings() -> impl Iterator<Item = Reasoning> {
    REASONING.iter().map(|(_, reasoning)| reasoning.clone())
}

fn think() -> Reasoning {
    reasoning("<think>", "</think>")
}

fn reasoning(open: &'static str, close: &'static str) -> Reasoning {
    Reasoning {
        open: text(open),
        close: text(close),
        ended_by_calls: false,
    }
}

fn section(open: &'static str, close: &'static str) -> Section {
    Section {
        open: text(open),
        close: text(close),
        at_start: false,
    }
}

/// A section without a marker.
fn bare(open: &'static str, close: &'static str) -> Section {
    Section {
        at_start: true,
        ..section(open, close)
    }
}

fn named(open: &'static str, end: &'static str, arguments: Arguments, close: &'static str) -> Call {
    Call {
        head: Head::Named {
            open: text(open),
            end: text(end),
            form: NameForm::Plain,
        },
        arguments,
        close: text(close),
    }
}

/// Every section holds one call.
fn one(sections: &[Section], call: Call) -> Layout {
    Layout::Calls(Calls {
        sections: sections.to_vec(),
        separator: text(""),
        several: false,
        call,
    })
}

fn list(sections: &[Section], separator: &'static str, call: Call) -> Layout {
    Layout::Calls(Calls {
        sections: sections.to_vec(),
        separator: text(separator),
        several: true,
        call,
    })
}

fn parameters(
    open: &'static str,
    key_end: &'static str,
    close: &'static str,
    padding: &'static str,
) -> Parameters {
    Parameters {
        open: text(open),
        key_end: text(key_end),
        close: text(close),
        padding,
        separator: "",
        attribute_end: None,
    }
}

fn format(name: &'static str, aliases: &'static [&'static str], layout: Layout) -> Format {
    Format {
        name: text(name),
        aliases,
        reasoning: None,
        layout,
        ids: Ids::Call,
        special: false,
    }
}

impl Call {
    fn form(mut self, name_form: NameForm) -> Self {
        if let Head::Named { form, .. } = &mut self.head {
            *form = name_form;
        }
        self
    }

    /// Writes this between two elements.
    fn spaced(mut self, between: &'static str) -> Self {
        if let Arguments::Parameters(parameters) = &mut self.arguments {
            parameters.separator = between;
        }
        self
    }
}

impl Format {
    /// The format with this name or alias.
    pub fn named(name: &str) -> Option<&'static Self> {
        FORMATS
            .iter()
            .find(|format| format.name == name || format.aliases.contains(&name))
    }

    /// Every format that is known without a model's help, in the order in which they are tried.
    pub fn all() -> &'static [Self] {
        &FORMATS
    }

    /// The same calls with the reasoning of this name. `openai` is a format of its own and has no other reasoning.
    pub fn with_reasoning(&self, name: &str) -> Option<Self> {
        let reasoning = &REASONING.iter().find(|(names, _)| names.contains(&name))?.1;
        Some(self.clone().thinks(reasoning.clone()))
    }

    /// Whether the reasoning of some model goes by this name: that of [`with_reasoning`](Self::with_reasoning), or of a
    /// format with a reasoning of its own.
    pub fn knows_reasoning(name: &str) -> bool {
        let anyones = REASONING.iter().any(|(names, _)| names.contains(&name));
        anyones || Self::named(name).is_some() || name == response_template::NAME
    }

    /// Content without calls, for models that only reason.
    pub fn plain() -> Self {
        format("none", &[], Layout::Plain)
    }

    fn thinks(mut self, reasoning: Reasoning) -> Self {
        self.reasoning = Some(reasoning);
        self
    }

    fn ids(mut self, ids: Ids) -> Self {
        self.ids = ids;
        self
    }

    fn special(mut self) -> Self {
        self.special = true;
        self
    }
}
