//! Which format is found for each family of models whose published files tell it. A row has the markers that the family
//! writes around a call, and what else only its template or vocabulary has.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

use serde_json::Value;
use text_generation_formats::{Evidence, Format, Found, probes};

/// A family, its call, what else is known, and its format. `$F` stands for the name of the tool, `$J` for its arguments as
/// JSON, `$P` and `$D` for the values of its arguments `place` and `days`. Without a call, the template writes none.
const FAMILIES: &[(&str, &str, &str, &str)] = &[
    (
        "Qwen 2.5, Qwen 3, SmolLM 3, Ling 2",
        "<tool_call>\n{\"name\": \"$F\", \"arguments\": $J}\n</tool_call>",
        "",
        "hermes",
    ),
    (
        "EXAONE 4, K-EXAONE",
        "<tool_call>{\"name\": \"$F\", \"arguments\": $J}</tool_call>",
        "",
        "hermes",
    ),
    (
        "Granite 4",
        "<tool_call>\n{\"name\": \"$F\", \"arguments\": $J}\n</tool_call>",
        "<|tool_call|>",
        "hermes",
    ),
    ("Granite 3", "", "<|tool_call|>", "granite"),
    (
        "Phi-4-mini",
        "",
        "<|tool_call|> <|/tool_call|>",
        "phi4_mini_json",
    ),
    (
        "ERNIE 4.5",
        "<tool_call>\n{\"name\": \"$F\", \"arguments\": $J}\n</tool_call>\n",
        "<response> </response>",
        "ernie45",
    ),
    (
        "Llama 3",
        "{\"name\": \"$F\", \"parameters\": $J}<|eot_id|>",
        "",
        "llama3_json",
    ),
    (
        "Llama 4",
        "<|python_start|><|python_end|>{\"name\": \"$F\", \"parameters\": $J}<|eot|>",
        "<|python_start|>",
        "llama3_json",
    ),
    (
        "Mistral to v7",
        "[TOOL_CALLS] [{\"name\": \"$F\", \"arguments\": $J, \"id\": \"abcdefghi\"}]</s>",
        "[TOOL_CALLS]",
        "mistral_v3",
    ),
    (
        "Mistral from v11, Ministral 3",
        "[TOOL_CALLS]$F[ARGS]$J</s>",
        "[TOOL_CALLS] [ARGS]",
        "mistral",
    ),
    (
        "Cohere Command R7B and A",
        "<|START_THINKING|><|END_THINKING|><|START_ACTION|>[\n\n    {\"tool_call_id\": \"0\", \"tool_name\": \"$F\", \"parameters\": $J}\n\n]<|END_ACTION|>",
        "<|START_RESPONSE|> <|END_RESPONSE|>",
        "cohere_command3",
    ),
    (
        "Cohere Command A Plus",
        "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"$F\", \"parameters\": $J}\n]<|END_ACTION|>",
        "<|START_TEXT|> <|END_TEXT|>",
        "cohere_command4",
    ),
    (
        "DeepSeek V3, R1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>$F\n```json\n$J\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        "deepseek_v3",
    ),
    (
        "DeepSeek V3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>$F<｜tool▁sep｜>$J<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        "deepseek_v31",
    ),
    ("DeepSeek V3.2", "", "｜DSML｜", "deepseek_v32"),
    (
        "Kimi K2, Kimi Linear",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.$F:0<|tool_call_argument_begin|>$J<|tool_call_end|><|tool_calls_section_end|>",
        "",
        "kimi_k2",
    ),
    (
        "GLM-4 (0414)",
        "<|assistant|>$F\n$J<|observation|>",
        "",
        "glm4",
    ),
    (
        "GLM 4.5, Laguna",
        "<tool_call>$F\n<arg_key>place</arg_key>\n<arg_value>$P</arg_value>\n<arg_key>days</arg_key>\n<arg_value>$D</arg_value>\n</tool_call>",
        "",
        "glm45",
    ),
    (
        "GLM 4.7, GLM 5",
        "<tool_call>$F<arg_key>place</arg_key><arg_value>$P</arg_value><arg_key>days</arg_key><arg_value>$D</arg_value></tool_call>",
        "",
        "glm47",
    ),
    (
        "gpt-oss",
        "<|start|>assistant<|channel|>commentary to=functions.$F <|constrain|>json<|message|>$J<|call|>",
        "",
        "openai",
    ),
    (
        "Gemma 4",
        "<|tool_call>call:$F{place:<|\"|>$P<|\"|>,days:$D}<tool_call|>",
        "",
        "gemma4",
    ),
    (
        "Hunyuan A13B, Jamba",
        "<tool_calls>[\n{\"name\": \"$F\", \"arguments\": $J}\n]</tool_calls>",
        "",
        "hunyuan_a13b",
    ),
    (
        "Hy3",
        "<tool_calls:opensource>\n<tool_call:opensource>$F<tool_sep:opensource>\n<arg_key:opensource>place</arg_key:opensource>\n<arg_value:opensource>$P</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>$D</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        "",
        "hy_v3",
    ),
    (
        "InternLM 2.5",
        "",
        "<|action_start|> <|action_end|> <|plugin|>",
        "internlm",
    ),
    ("LFM 2", "", "<|tool_call_start|> <|tool_call_end|>", "lfm2"),
    (
        "LongCat Flash",
        "<longcat_tool_call>\n{\"name\": \"$F\", \"arguments\": $J}\n</longcat_tool_call>",
        "",
        "longcat",
    ),
    (
        "MiMo V2",
        "<tool_call>\n<function=$F>\n<parameter=place>$P</parameter>\n<parameter=days>$D</parameter>\n</function>\n</tool_call>",
        "",
        "mimo",
    ),
    (
        "MiniCPM 3",
        "<|tool_call_start|>\n```python\n$F(place=\"$P\",days=$D)\n```\n<|tool_call_end|>\n",
        "<|tool_call_start|>",
        "minicpm3",
    ),
    (
        "MiniCPM 5",
        "<function name=\"$F\"><param name=\"place\">$P</param><param name=\"days\">$D</param></function>",
        "",
        "minicpm5",
    ),
    (
        "MiniMax-M1",
        "<tool_calls>\n{\"name\": \"$F\", \"arguments\": $J}\n</tool_calls>",
        "",
        "minimax",
    ),
    (
        "MiniMax-M2",
        "<minimax:tool_call>\n<invoke name=\"$F\">\n<parameter name=\"place\">$P</parameter>\n<parameter name=\"days\">$D</parameter>\n</invoke>\n</minimax:tool_call>",
        "",
        "minimax_m2",
    ),
    (
        "MiniMax M3",
        "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"$F\">]<]minimax[>[<place>$P]<]minimax[>[</place>]<]minimax[>[<days>$D]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        "",
        "minimax_m3",
    ),
    (
        "Nemotron Nano 2, Llama Nemotron",
        "<TOOLCALL>[{\"name\": \"$F\", \"arguments\": $J}]</TOOLCALL>",
        "",
        "nemotron_json",
    ),
    (
        "Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5",
        "<tool_call>\n<function=$F>\n<parameter=place>\n$P\n</parameter>\n<parameter=days>\n$D\n</parameter>\n</function>\n</tool_call>",
        "",
        "qwen3_coder",
    ),
    ("OLMo 3", "", "<functions> <function_calls>", "olmo3"),
    (
        "Seed-OSS",
        "<seed:tool_call>\n<function=$F>\n<parameter=place>$P</parameter>\n<parameter=days>$D</parameter>\n</function>\n</seed:tool_call>",
        "",
        "seed_oss",
    ),
    (
        "Solar Open",
        "<|tool_calls|><|tool_call:begin|>abcdefghij<|tool_call:name|>$F<|tool_call:args|>$J<|tool_call:end|><|calls|>",
        "<|content|> <|end|>",
        "solar_open",
    ),
    (
        "Kimi K3",
        "<|open|>think<|sep|><|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"$F\" index=\"1\"<|sep|><|open|>argument key=\"place\" type=\"string\"<|sep|>$P<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>$D<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>",
        "",
        "kimi_k3",
    ),
    (
        "Inkling",
        "<|message_model|>$F<|content_invoke_tool_json|>{\"name\":\"$F\",\"args\":$J}<|end_message|><|content_model_end_sampling|>",
        "",
        "inkling",
    ),
    (
        "Muse Glimmer",
        "<|start|>assistant to=$F<|message|><atem:function_calls>\n<atem:invoke name=\"$F\">\n<atem:parameter name=\"place\">$P</atem:parameter>\n<atem:parameter name=\"days\">$D</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>",
        "",
        "muse_glimmer",
    ),
];

/// What is known of a model that writes the call of the probe so, and has these texts in its files.
fn evidence(call: &str, known: &str) -> Evidence {
    let probe = &probes()[0];
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let function = &probe.messages[1]["tool_calls"][0]["function"];
    let (place, days) = (
        &function["arguments"]["place"],
        &function["arguments"]["days"],
    );
    let call = call
        .replace("$F", &text(&function["name"]))
        .replace("$J", &format!("{{\"place\": {place}, \"days\": {days}}}"))
        .replace("$P", &text(place))
        .replace("$D", &days.to_string());
    let question = text(&probe.messages[0]["content"]);
    Evidence {
        rendered: vec![format!("<user>{question}<assistant>{call}<end>")],
        tokens: known.split_whitespace().map(str::to_owned).collect(),
        ..Evidence::default()
    }
}

#[test]
fn each_family_has_its_format() {
    let mut wrong = Vec::new();
    for (family, call, known, expected) in FAMILIES {
        let found = Format::detect(&evidence(call, known));
        let found = found.map(|found| (found.format.name().to_owned(), found.found));
        let how = if call.is_empty() {
            Found::Vocabulary
        } else {
            Found::RenderedCall
        };
        if found != Some(((*expected).to_owned(), how)) {
            wrong.push(format!("{family}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
