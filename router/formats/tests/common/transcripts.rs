//! Calls as each family of models writes them. The texts follow the models' chat templates and vLLM's parsers.

#![allow(dead_code, reason = "each test file uses a part of it")]

use serde_json::{Map, Value, json};

/// The arguments of the first call of [`TWO`].
pub fn weather() -> Value {
    json!({"city": "Zürich \"x\"\n", "days": 3, "exact": true, "note": null, "limits": {"low": -1.5}, "tags": ["a", "b"]})
}

/// Answers whose calls are written by `write`, with a name for each; those that it cannot write are left out.
pub fn answers(
    write: impl Fn(&[(&str, &Map<String, Value>)]) -> Option<String>,
) -> Vec<(&'static str, String)> {
    let weather_in = |city: &str| vec![("get_weather", json!({"city": city}))];
    let two = vec![("get_weather", weather()), ("ping", json!({}))];
    let nested =
        json!({"city": "x", "limits": {"low": -1.5, "high": 200.0}, "tags": [], "note": "null"});
    let answers = [
        ("one", "", weather_in("Basel")),
        ("types", "", vec![("get_weather", weather())]),
        ("nested", "", vec![("get_weather", nested)]),
        ("no arguments", "", vec![("ping", json!({}))]),
        ("two", "", two),
        ("unicode", "", weather_in("Zürich 你好 🙂")),
        ("escapes", "", weather_in("a\"b'c\\d\te")),
        ("brackets", "", weather_in("{[( </x> )]}, k=1")),
        (
            "a call in a text",
            "",
            weather_in("{\"name\": \"ping\", \"arguments\": {}}"),
        ),
        ("digits in a text", "", weather_in("4057")),
        ("an empty text", "", weather_in("")),
        ("content and a call", "I will look.\n", weather_in("Basel")),
        ("content", "It is 3 < 4, {not} a [call].", Vec::new()),
    ];
    let written = answers.into_iter().filter_map(|(name, content, calls)| {
        let calls: Vec<_> = calls
            .iter()
            .filter_map(|(name, arguments)| Some((*name, arguments.as_object()?)))
            .collect();
        let calls = if calls.is_empty() {
            String::new()
        } else {
            write(&calls)?
        };
        Some((name, format!("{content}{calls}")))
    });
    written.collect()
}

/// One call of `get_weather` and one of `ping`, as the format writes them.
pub const TWO: &[(&str, &str)] = &[
    (
        "hermes",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
    ),
    (
        "llama3_json",
        "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Z\\u00fcrich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}; {\"name\": \"ping\", \"parameters\": {}}",
    ),
    (
        "llama3_json",
        "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}\n{\"type\": \"function\", \"name\": \"ping\", \"parameters\": {}}",
    ),
    (
        "mistral_v3",
        "[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}, {\"name\": \"ping\", \"arguments\": {}}]",
    ),
    (
        "mistral",
        "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}[TOOL_CALLS]ping[ARGS]{}",
    ),
    (
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek_v32",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Zürich \"x\"\n</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"exact\" string=\"false\">true</｜DSML｜parameter>\n<｜DSML｜parameter name=\"note\" string=\"false\">null</｜DSML｜parameter>\n<｜DSML｜parameter name=\"limits\" string=\"false\">{\"low\": -1.5}</｜DSML｜parameter>\n<｜DSML｜parameter name=\"tags\" string=\"false\">[\"a\", \"b\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich \"x\"\n\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=limits>\n{\"low\": -1.5}\n</parameter>\n<parameter=tags>\n[\"a\", \"b\"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
    ),
    (
        "mimo",
        "<tool_call>\n<function=get_weather>\n<parameter=city>Zürich \"x\"\n</parameter>\n<parameter=days>3</parameter>\n<parameter=exact>true</parameter>\n<parameter=note>null</parameter>\n<parameter=limits>{\"low\": -1.5}</parameter>\n<parameter=tags>[\"a\", \"b\"]</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
    ),
    (
        "hy_v3",
        "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Zürich \"x\"\n</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3</arg_value:opensource>\n<arg_key:opensource>exact</arg_key:opensource>\n<arg_value:opensource>true</arg_value:opensource>\n<arg_key:opensource>note</arg_key:opensource>\n<arg_value:opensource>null</arg_value:opensource>\n<arg_key:opensource>limits</arg_key:opensource>\n<arg_value:opensource>{\"low\": -1.5}</arg_value:opensource>\n<arg_key:opensource>tags</arg_key:opensource>\n<arg_value:opensource>[\"a\", \"b\"]</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>ping<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    (
        "hy_v3_preview",
        "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Zürich \"x\"\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n<arg_key>note</arg_key>\n<arg_value>null</arg_value>\n<arg_key>limits</arg_key>\n<arg_value>{\"low\": -1.5}</arg_value>\n<arg_key>tags</arg_key>\n<arg_value>[\"a\", \"b\"]</arg_value>\n</tool_call>\n<tool_call>ping<tool_sep>\n</tool_call>\n</tool_calls>",
    ),
    (
        "nemotron_json",
        "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}, {\"name\": \"ping\", \"arguments\": {}}]</TOOLCALL>",
    ),
    (
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich \"x\"\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n<arg_key>note</arg_key>\n<arg_value>null</arg_value>\n<arg_key>limits</arg_key>\n<arg_value>{\"low\": -1.5}</arg_value>\n<arg_key>tags</arg_key>\n<arg_value>[\"a\", \"b\"]</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>",
    ),
    (
        "glm47",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Zürich \"x\"\n</arg_value><arg_key>days</arg_key><arg_value>3</arg_value><arg_key>exact</arg_key><arg_value>true</arg_value><arg_key>note</arg_key><arg_value>null</arg_value><arg_key>limits</arg_key><arg_value>{\"low\": -1.5}</arg_value><arg_key>tags</arg_key><arg_value>[\"a\", \"b\"]</arg_value></tool_call><tool_call>ping</tool_call>",
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "openai",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}<|call|><|start|>assistant to=functions.ping<|channel|>commentary json<|message|>{}",
    ),
    (
        "gemma4",
        "<|tool_call>call:get_weather{city:<|\"|>Zürich \"x\"\n<|\"|>,days:3,exact:true,note:null,limits:{low:-1.5},tags:[<|\"|>a<|\"|>,<|\"|>b<|\"|>]}<tool_call|><|tool_call>call:ping{}<tool_call|>",
    ),
    (
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Zürich \"x\"\n<escape>,days:3,exact:true,note:null,limits:{low:-1.5},tags:[<escape>a<escape>,<escape>b<escape>]}<end_function_call><start_function_call>call:ping{}<end_function_call>",
    ),
    (
        "minimax_m2",
        "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Zürich \"x\"\n</parameter>\n<parameter name=\"days\">3</parameter>\n<parameter name=\"exact\">true</parameter>\n<parameter name=\"note\">null</parameter>\n<parameter name=\"limits\">{\"low\": -1.5}</parameter>\n<parameter name=\"tags\">[\"a\", \"b\"]</parameter>\n</invoke>\n<invoke name=\"ping\">\n</invoke>\n</minimax:tool_call>",
    ),
    (
        "granite",
        "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}, {\"name\": \"ping\", \"arguments\": {}}]",
    ),
    (
        "phi4_mini_json",
        "functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}, {\"name\": \"ping\", \"arguments\": {}}]",
    ),
    (
        "pythonic",
        "[get_weather(city='Zürich \"x\"\\n', days=3, exact=True, note=None, limits={'low': -1.5}, tags=[\"a\", 'b']), ping()]",
    ),
    (
        "llama4_pythonic",
        "<|python_start|>[get_weather(city=\"Z\\u00fcrich \\x22x\\x22\\n\", days=3, exact=True, note=None, limits={\"low\": -1.5}, tags=[\"a\", \"b\"]), ping()]<|python_end|>",
    ),
    (
        "lfm2",
        "<|tool_call_start|>[get_weather(city='Zürich \"x\"\\n', days=3, exact=True, note=None, limits={'low': -1.5}, tags=['a', 'b']), ping()]<|tool_call_end|>",
    ),
    (
        "longcat",
        "<longcat_tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}\n</longcat_tool_call><longcat_tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</longcat_tool_call>",
    ),
    (
        "longcat_elements",
        "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Zürich \"x\"\n</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>3</longcat_arg_value>\n<longcat_arg_key>exact</longcat_arg_key>\n<longcat_arg_value>true</longcat_arg_value>\n<longcat_arg_key>note</longcat_arg_key>\n<longcat_arg_value>null</longcat_arg_value>\n<longcat_arg_key>limits</longcat_arg_key>\n<longcat_arg_value>{\"low\": -1.5}</longcat_arg_value>\n<longcat_arg_key>tags</longcat_arg_key>\n<longcat_arg_value>[\"a\", \"b\"]</longcat_arg_value>\n</longcat_tool_call>\n<longcat_tool_call>ping\n</longcat_tool_call>",
    ),
    (
        "ling3",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich \"x\"\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>exact</arg_key>\n<arg_value>true</arg_value>\n<arg_key>note</arg_key>\n<arg_value>null</arg_value>\n<arg_key>limits</arg_key>\n<arg_value>{\"low\": -1.5}</arg_value>\n<arg_key>tags</arg_key>\n<arg_value>[\"a\", \"b\"]</arg_value>\n</tool_call>\n<tool_call>ping</tool_call>",
    ),
    (
        "ling3",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Zürich \"x\"\n</arg_value><arg_key>days</arg_key><arg_value>3</arg_value><arg_key>exact</arg_key><arg_value>true</arg_value><arg_key>note</arg_key><arg_value>null</arg_value><arg_key>limits</arg_key><arg_value>{\"low\": -1.5}</arg_value><arg_key>tags</arg_key><arg_value>[\"a\", \"b\"]</arg_value></tool_call><tool_call>ping\n</tool_call>",
    ),
    (
        "hunyuan_a13b",
        "<tool_calls>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}, {\"name\": \"ping\", \"arguments\": {}}]</tool_calls>",
    ),
    (
        "apertus",
        "<|tools_prefix|>[{\"get_weather\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}, {\"ping\": {}}]<|tools_suffix|>",
    ),
    (
        "seed_oss",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Zürich \"x\"\n</parameter>\n<parameter=days>3</parameter>\n<parameter=exact>true</parameter>\n<parameter=note>null</parameter>\n<parameter=limits>{\"low\": -1.5}</parameter>\n<parameter=tags>[\"a\", \"b\"]</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=ping>\n</function>\n</seed:tool_call>",
    ),
    (
        "step3",
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"get_weather\"><steptml:parameter name=\"city\">Zürich \"x\"\n</steptml:parameter><steptml:parameter name=\"days\">3</steptml:parameter><steptml:parameter name=\"exact\">true</steptml:parameter><steptml:parameter name=\"note\">null</steptml:parameter><steptml:parameter name=\"limits\">{\"low\": -1.5}</steptml:parameter><steptml:parameter name=\"tags\">[\"a\", \"b\"]</steptml:parameter></steptml:invoke><｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"ping\"></steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
    ),
    (
        "dots",
        "<dots_function_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Zürich \"x\"\n</parameter>\n<parameter name=\"days\">3</parameter>\n<parameter name=\"exact\">true</parameter>\n<parameter name=\"note\">null</parameter>\n<parameter name=\"limits\">{\"low\": -1.5}</parameter>\n<parameter name=\"tags\">[\"a\", \"b\"]</parameter>\n</invoke>\n<invoke name=\"ping\">\n</invoke>\n</dots_function_call>",
    ),
    (
        "deepseek_v41",
        "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Zürich \"x\"\n</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"days\" string=\"false\">3</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"exact\" string=\"false\">true</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"note\" string=\"false\">null</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"limits\" string=\"false\">{\"low\": -1.5}</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"tags\" string=\"false\">[\"a\", \"b\"]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"ping\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
    ),
    (
        "olmo3",
        "<function_calls>get_weather(city='Zürich \"x\"\\n', days=3, exact=true, note=null, limits={'low': -1.5}, tags=['a', 'b'])\nping()</function_calls>",
    ),
    (
        "gigachat3",
        "<|function_call|>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}<|function_call|>{\"name\": \"ping\", \"arguments\": {}}",
    ),
    (
        "gigachat3",
        "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"ping\", \"arguments\": {}}",
    ),
    (
        "ernie45",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>\n",
    ),
    (
        "cohere_command3",
        "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"ping\", \"parameters\": {}}\n]<|END_ACTION|>",
    ),
    (
        "cohere_command4",
        "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"ping\", \"parameters\": {}}\n]<|END_ACTION|>",
    ),
    (
        "internlm",
        "<|action_start|> <|plugin|>\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}<|action_end|><|action_start|> <|plugin|>\n{\"name\": \"ping\", \"parameters\": {}}<|action_end|>",
    ),
    (
        "minimax",
        "<tool_calls>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_calls>",
    ),
    (
        "xlam",
        "[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}, {\"name\": \"ping\", \"arguments\": {}}]",
    ),
    (
        "plamo3",
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>ping<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|><|plamo:end_tool_requests:plamo|>",
    ),
    (
        "hy_v4",
        "<tool_calls><tool_call>get_weather<arg_key>city</arg_key><arg_value>Zürich \"x\"\n</arg_value><arg_key>days</arg_key><arg_value>3</arg_value><arg_key>exact</arg_key><arg_value>true</arg_value><arg_key>note</arg_key><arg_value>null</arg_value><arg_key>limits</arg_key><arg_value>{\"low\": -1.5}</arg_value><arg_key>tags</arg_key><arg_value>[\"a\", \"b\"]</arg_value></tool_call><tool_call>ping</tool_call></tool_calls>",
    ),
    (
        "k2_horizon",
        "<ifm|tool_calls>\n<ifm|tool_call>get_weather\n<ifm|arg_key>city</ifm|arg_key>\n<ifm|arg_value>Zürich \"x\"\n</ifm|arg_value>\n<ifm|arg_key>days</ifm|arg_key>\n<ifm|arg_value>3</ifm|arg_value>\n<ifm|arg_key>exact</ifm|arg_key>\n<ifm|arg_value>true</ifm|arg_value>\n<ifm|arg_key>note</ifm|arg_key>\n<ifm|arg_value>null</ifm|arg_value>\n<ifm|arg_key>limits</ifm|arg_key>\n<ifm|arg_value>{\"low\": -1.5}</ifm|arg_value>\n<ifm|arg_key>tags</ifm|arg_key>\n<ifm|arg_value>[\"a\", \"b\"]</ifm|arg_value>\n</ifm|tool_call>\n<ifm|tool_call>ping</ifm|tool_call>\n</ifm|tool_calls>",
    ),
    (
        "solar_open2",
        "<|tool_call:start|>get_weather\n<|tool_arg:start|>city<|tool_arg:value|>Zürich \"x\"\n<|tool_arg:end|>\n<|tool_arg:start|>days<|tool_arg:value|>3<|tool_arg:end|>\n<|tool_arg:start|>exact<|tool_arg:value|>true<|tool_arg:end|>\n<|tool_arg:start|>note<|tool_arg:value|>null<|tool_arg:end|>\n<|tool_arg:start|>limits<|tool_arg:value|>{\"low\": -1.5}<|tool_arg:end|>\n<|tool_arg:start|>tags<|tool_arg:value|>[\"a\", \"b\"]<|tool_arg:end|>\n<|tool_call:end|>\n<|tool_call:start|>ping\n<|tool_call:end|>",
    ),
    (
        "minicpm5",
        "<function name=\"get_weather\"><param name=\"city\"><![CDATA[Zürich \"x\"\n]]></param><param name=\"days\">3</param><param name=\"exact\">true</param><param name=\"note\">null</param><param name=\"limits\">{\"low\": -1.5}</param><param name=\"tags\">[\"a\", \"b\"]</param></function>\n<function name=\"ping\"></function>",
    ),
    (
        "kimi_k3",
        "<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Zürich \"x\"\n<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|><|open|>argument key=\"exact\" type=\"boolean\"<|sep|>true<|close|>argument<|sep|><|open|>argument key=\"note\" type=\"null\"<|sep|>null<|close|>argument<|sep|><|open|>argument key=\"limits\" type=\"object\"<|sep|>{\"low\": -1.5}<|close|>argument<|sep|><|open|>argument key=\"tags\" type=\"array\"<|sep|>[\"a\", \"b\"]<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"ping\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    (
        "minimax_m3",
        "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<city>Zürich \"x\"\n]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[<exact>true]<]minimax[>[</exact>]<]minimax[>[<note>null]<]minimax[>[</note>]<]minimax[>[<limits>]<]minimax[>[<low>-1.5]<]minimax[>[</low>]<]minimax[>[</limits>]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<item>b]<]minimax[>[</item>]<]minimax[>[</tags>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name=\"ping\">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    ),
    (
        "solar_open",
        "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}<|tool_call:end|><|tool_call:begin|>f6g7h8i9j0<|tool_call:name|>ping<|tool_call:args|>{}<|tool_call:end|><|calls|>",
    ),
    (
        "glm4",
        "get_weather\n{\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}\nping\n{}",
    ),
    (
        "minicpm3",
        "<|tool_call_start|>\n```python\nget_weather(city=\"Zürich \\\"x\\\"\\n\",days=3,exact=true,note=null,limits={\"low\": -1.5},tags=[\"a\", \"b\"])\nping()\n```\n<|tool_call_end|>\n",
    ),
    (
        "llama3_json",
        "<|python_start|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}; {\"name\": \"ping\", \"parameters\": {}}<|python_end|>",
    ),
    (
        "inkling",
        "<|message_model|>get_weather<|content_invoke_tool_json|>{\"name\":\"get_weather\",\"args\":{\"city\": \"Zürich \\\"x\\\"\\n\", \"days\": 3, \"exact\": true, \"note\": null, \"limits\": {\"low\": -1.5}, \"tags\": [\"a\", \"b\"]}}<|end_message|><|message_model|>ping<|content_invoke_tool_json|>{\"name\":\"ping\",\"args\":{}}<|end_message|><|content_model_end_sampling|>",
    ),
    (
        "muse_glimmer",
        "<|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name=\"get_weather\">\n<atem:parameter name=\"city\">Zürich \"x\"\n</atem:parameter>\n<atem:parameter name=\"days\">3</atem:parameter>\n<atem:parameter name=\"exact\">true</atem:parameter>\n<atem:parameter name=\"note\">null</atem:parameter>\n<atem:parameter name=\"limits\">{\"low\": -1.5}</atem:parameter>\n<atem:parameter name=\"tags\">[\"a\", \"b\"]</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=ping.ping<|message|><atem:function_calls>\n<atem:invoke name=\"ping.ping\">\n</atem:invoke>\n</atem:function_calls><|eot|>",
    ),
];
