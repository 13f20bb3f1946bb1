//! Tools of chats: what reaches the prompt, and how calls come back.

use super::*;

/// Writes tools and calls as models of the Hermes format are told them.
const HERMES: &str = concat!(
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}",
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}",
    "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", ",
    "\"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}",
    "{% endfor %}<answer>"
);
/// Says something, then calls two functions.
const TWO_CALLS: &str = concat!(
    "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1, \"s\": \"é\\\"\"}}\n</tool_call>",
    "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"
);
const NAMED: [&str; 2] = ["--tool-call-parser", "hermes"];

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}}});
    json!([
        {"type": "function", "function": {"name": "add", "description": "d", "parameters": parameters}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

async fn hermes(says: &'static str) -> Server {
    Server::with_template(HERMES, saying(says), &NAMED).await
}

fn calls(answer: &Value) -> Vec<(Value, Value)> {
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array();
    let calls = calls.into_iter().flatten();
    calls
        .map(|call| {
            assert_eq!(call["type"], "function");
            assert!(
                call["id"].as_str().is_some_and(|id| id.len() >= 9),
                "{call}"
            );
            let function = &call["function"];
            (function["name"].clone(), function["arguments"].clone())
        })
        .collect()
}

#[tokio::test]
async fn calls_of_the_model_are_in_the_message() {
    let server = hermes(TWO_CALLS).await;
    let answer = ask_chat(&server, &chat("Hi", json!({"tools": tools()}))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me see.");
    let expected = [
        (json!("add"), json!("{\"x\": 1, \"s\": \"é\\\"\"}")),
        (json!("now"), json!("{}")),
    ];
    assert_eq!(calls(&answer), expected);
    assert_eq!(answer["usage"]["completion_tokens"], TWO_CALLS.len() + 1);
}

#[tokio::test]
async fn a_message_of_nothing_but_calls_has_no_content() {
    let server = hermes("<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>").await;
    let answer = ask_chat(&server, &chat("Hi", json!({"tools": tools()}))).await;
    let message = &answer["choices"][0]["message"];
    assert!(
        message.get("content").is_some_and(Value::is_null),
        "{message}"
    );
    assert_eq!(calls(&answer).len(), 1);
}

#[tokio::test]
async fn an_answer_without_calls_is_text() {
    let server = hermes("Five, of course.").await;
    let answer = ask_chat(&server, &chat("Hi", json!({"tools": tools()}))).await;
    assert_eq!(contents(&answer), ["Five, of course."]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
}

#[tokio::test]
async fn a_call_that_is_cut_off_ends_by_length() {
    let server = hermes(TWO_CALLS).await;
    let body = chat("Hi", json!({"tools": tools(), "max_tokens": 60}));
    let answer = ask_chat(&server, &body).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(calls(&answer)[0].1, "{\"x\": 1");
}

#[tokio::test]
async fn a_stop_string_in_a_call_ends_no_call() {
    let server = hermes(TWO_CALLS).await;
    for (stop, reason, last) in [
        ("\"s\"", "stop", "{\"x\": 1, "),
        // Nothing but the marker behind a whole call is cut.
        (
            "\n</tool_call>",
            "tool_calls",
            "{\"x\": 1, \"s\": \"é\\\"\"}",
        ),
    ] {
        let body = chat("Hi", json!({"tools": tools(), "stop": stop}));
        let answer = ask_chat(&server, &body).await;
        assert_eq!(answer["choices"][0]["finish_reason"], reason, "{stop}");
        let calls = calls(&answer);
        assert_eq!(calls.last().map(|call| &call.1), Some(&json!(last)));
    }
}

#[tokio::test]
async fn a_stop_token_in_a_call_ends_no_call() {
    let server = hermes(TWO_CALLS).await;
    // The tokens of this model are bytes.
    for (stop, reason, call) in [
        (b'1', "stop", "{\"x\": "),
        // Nothing but the marker behind a whole call is cut.
        (b'/', "tool_calls", "{\"x\": 1, \"s\": \"é\\\"\"}"),
    ] {
        let body = json!({"tools": tools(), "stop_token_ids": [BYTES + u32::from(stop)]});
        let answer = ask_chat(&server, &chat("Hi", body)).await;
        assert_eq!(answer["choices"][0]["finish_reason"], reason, "{stop}");
        assert_eq!(calls(&answer), [(json!("add"), json!(call))]);
    }
}

#[tokio::test]
async fn an_end_of_the_model_in_a_call_ends_no_call() {
    let server = hermes("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1").await;
    let answer = ask_chat(&server, &chat("Hi", json!({"tools": tools()}))).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(calls(&answer), [(json!("add"), json!("{\"x\": 1"))]);
}

#[tokio::test]
async fn only_one_call_where_no_more_are_wanted() {
    let server = hermes(TWO_CALLS).await;
    let body = chat(
        "Hi",
        json!({"tools": tools(), "parallel_tool_calls": false}),
    );
    assert_eq!(calls(&ask_chat(&server, &body).await).len(), 1);
}

#[tokio::test]
async fn a_stream_brings_calls_piece_by_piece() {
    let server = hermes(TWO_CALLS).await;
    let body = chat(
        "Hi",
        json!({"tools": tools(), "stream_options": {"include_usage": true}}),
    );
    let events = events(&server, "/v1/chat/completions", &body).await;
    let deltas: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"].get(0))
        .flat_map(|choice| choice["delta"]["tool_calls"].as_array())
        .flatten()
        .collect();
    for index in 0..2 {
        let own: Vec<_> = deltas
            .iter()
            .filter(|call| call["index"] == index)
            .collect();
        // The first has the id and the name, and no arguments.
        assert!(own[0]["id"].is_string() && own[0]["type"] == "function");
        assert_eq!(own[0]["function"]["arguments"], "");
        let later = &own[1..];
        assert!(
            later
                .iter()
                .all(|call| call.get("id").is_none() && call["function"].get("name").is_none())
        );
        let arguments: String = later
            .iter()
            .filter_map(|call| call["function"]["arguments"].as_str())
            .collect();
        let expected = ["{\"x\": 1, \"s\": \"é\\\"\"}", "{}"][index];
        assert_eq!(arguments, expected);
    }
    assert!(deltas.len() > 10, "piece by piece");
    let reasons: Vec<_> = events
        .iter()
        .map(|event| &event["choices"][0]["finish_reason"])
        .filter(|reason| !reason.is_null())
        .collect();
    assert_eq!(reasons, ["tool_calls"]);
    let usage = &events.last().expect("an event")["usage"];
    assert_eq!(usage["completion_tokens"], TWO_CALLS.len() + 1);
}

#[tokio::test]
async fn every_choice_has_calls_of_its_own() {
    let server = hermes(TWO_CALLS).await;
    let body = chat("Hi", json!({"tools": tools(), "n": 2, "logprobs": true}));
    let answer = ask_chat(&server, &body).await;
    let ids: Vec<&Value> = (0..2)
        .map(|choice| &answer["choices"][choice]["message"]["tool_calls"][0]["id"])
        .collect();
    assert_ne!(ids[0], ids[1]);
    let logprobs = answer["choices"][1]["logprobs"]["content"].as_array();
    assert_eq!(logprobs.map(Vec::len), Some(TWO_CALLS.len() + 1));
}

#[tokio::test]
async fn the_template_gets_tools_calls_and_results() {
    let server = Server::with_template(
        "{{ tools | tojson }}{{ messages | tojson }}",
        repeating(),
        &NAMED,
    )
    .await;
    let call = |arguments: Value| json!({"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments}});
    let history = |arguments: Value| {
        json!([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": null, "tool_calls": [call(arguments)]},
            {"role": "tool", "content": "7", "tool_call_id": "c"},
        ])
    };
    let body = json!({"messages": history(json!("{\"x\": 1}")), "tools": tools()});
    let answer = ask_chat(&server, &body).await;
    let text = contents(&answer)[0].replace("}][{", "}]\n[{");
    let (shown_tools, shown) = text.split_once('\n').expect("two lists");
    assert_eq!(
        serde_json::from_str::<Value>(shown_tools).ok(),
        Some(tools())
    );
    // Arguments are what the template reads: an object.
    let shown: Value = serde_json::from_str(shown).expect("JSON");
    assert_eq!(shown, history(json!({"x": 1})));
}

#[tokio::test]
async fn tools_that_may_not_be_called_are_not_in_the_prompt() {
    let prompt = async |keys: Value| {
        let server = Server::with_template(HERMES, repeating(), &NAMED).await;
        let body = chat("Hi", with(json!({"tools": tools()}), keys));
        ask_chat(&server, &body).await["choices"][0]["message"]["content"].to_string()
    };
    assert!(!prompt(json!({"tool_choice": "none"})).await.contains("add"));
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{"type": "function", "function": {"name": "now"}}]
    }});
    let shown = prompt(json!({"tool_choice": allowed})).await;
    assert!(shown.contains("now") && !shown.contains("add"), "{shown}");
    assert!(prompt(json!({})).await.contains("add"));
}

#[tokio::test]
async fn a_template_without_tools_is_helped_as_tgi_does() {
    let shown = Server::with_template(PLAIN, repeating(), &[]).await;
    let call = json!({"id": "c", "type": "function", "function": {"name": "add", "arguments": "{\"x\":1}"}});
    let messages = json!([
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "c"},
    ]);
    let body = json!({"messages": messages, "tools": tools(), "tool_choice": "auto", "tool_prompt": "Call them!", "separate_reasoning": false});
    let answer = ask_chat(&shown, &body).await;
    let prompt = contents(&answer)[0];
    assert!(
        prompt.starts_with("<user>Hi\n---\n[{\"type\":\"function\""),
        "{prompt}"
    );
    let told = "\nCall them!<assistant>{\"name\":\"add\",\"parameters\":{\"x\":1}}<user>Result of add: 7<answer>";
    assert!(prompt.ends_with(told), "{prompt}");
    let server = Server::with_template(
        PLAIN,
        saying("{\"name\": \"add\", \"parameters\": {\"x\": 2}}"),
        &[],
    )
    .await;
    let answer = ask_chat(&server, &chat("Hi", json!({"tools": tools()}))).await;
    assert_eq!(calls(&answer), [(json!("add"), json!("{\"x\": 2}"))]);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    let (_, info) =
        super::common::answer(server.get("/info").send().await.expect("an answer")).await;
    assert_eq!(info["tool_call_parser"], Value::Null);
}

#[tokio::test]
async fn reasoning_and_calls_come_apart() {
    let says = "<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let server = hermes(says).await;
    let body = chat("Hi", json!({"tools": tools(), "separate_reasoning": true}));
    let answer = ask_chat(&server, &body).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "hm");
    assert_eq!(message["content"], Value::Null);
    assert_eq!(calls(&answer), [(json!("now"), json!("{}"))]);
}

#[tokio::test]
async fn a_model_that_is_not_known_to_reason_does_not_get_around_a_call() {
    let says = "<think>hm</think><tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    for separate in [false, true] {
        let server = hermes(says).await;
        let keys =
            json!({"tools": tools(), "tool_choice": "required", "separate_reasoning": separate});
        let answer = ask_chat(&server, &chat("Hi", keys)).await;
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["content"], Value::Null, "{message}");
        assert_eq!(message["reasoning_content"], Value::Null, "{message}");
        assert_eq!(calls(&answer).len(), 1);
    }
}

#[tokio::test]
async fn a_named_reasoning_parser_makes_reasoning_come_apart() {
    let flags = ["--reasoning-parser", "deepseek_r1"];
    let server = Server::with_template(PLAIN, saying("<think>hm</think>so"), &flags).await;
    let message =
        async |keys| ask_chat(&server, &chat("Hi", keys)).await["choices"][0]["message"].clone();
    assert_eq!(message(json!({})).await["reasoning_content"], "hm");
    let kept = message(json!({"separate_reasoning": false})).await;
    assert_eq!(kept["content"], "<think>hm</think>so");
}

#[tokio::test]
async fn earlier_reasoning_reaches_the_template() {
    let template =
        "{% for m in messages %}{{ m.reasoning_content or '' }}{{ m.content }};{% endfor %}";
    let server = Server::with_template(template, repeating(), &[]).await;
    for key in ["reasoning", "reasoning_content"] {
        let body = json!({"messages": [{"role": "assistant", "content": "so", key: "hm "}, {"role": "user", "content": "?"}]});
        assert_eq!(contents(&ask_chat(&server, &body).await), ["hm so;?;"]);
    }
}

#[tokio::test]
async fn tools_that_cannot_be_read_are_named() {
    let server = hermes("x").await;
    let function = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    for (param, keys) in [
        ("tools[0].function.name", function(json!({}))),
        ("tools[0].function.name", function(json!({"name": ""}))),
        (
            "tools[0].function.name",
            function(json!({"name": "get weather"})),
        ),
        (
            "tools[0].function.name",
            function(json!({"name": "n".repeat(241)})),
        ),
        (
            "tools[2].function.name",
            json!({"tools": [tools()[0], tools()[1], tools()[0]]}),
        ),
        (
            "tools[0].function.parameters",
            function(json!({"name": "f", "parameters": 5})),
        ),
        (
            "tools[0].function.strict",
            function(json!({"name": "f", "strict": "yes"})),
        ),
        ("tools[0].type", json!({"tools": [{"type": "web_search"}]})),
        (
            "tools[0].function",
            json!({"tools": [{"type": "function"}]}),
        ),
        ("tools[0]", json!({"tools": [5]})),
        ("tool_choice", json!({"tool_choice": "required"})),
        (
            "tool_choice",
            json!({"tools": tools(), "tool_choice": "other"}),
        ),
        (
            "tool_choice",
            json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "x"}}}),
        ),
        (
            "tool_choice",
            json!({"tools": tools(), "tool_choice": {"type": "function"}}),
        ),
        ("tool_choice", json!({"tools": tools(), "tool_choice": 5})),
        (
            "tool_choice.allowed_tools.mode",
            json!({"tools": tools(), "tool_choice": {"allowed_tools": {"mode": "x", "tools": []}}}),
        ),
    ] {
        let (status, answer) = server.ask("/v1/chat/completions", &chat("Hi", keys)).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (422, &json!(param)),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn parameters_that_no_call_can_be_held_to_are_named() {
    let server = hermes("{}").await;
    let types =
        "must be one of `object`, `array`, `string`, `integer`, `number`, `boolean`, `null`";
    let nested = json!({"type": "object", "properties": {"a": {"type": ["string", "dict"]}}});
    for (parameters, message) in [
        (
            nested,
            format!(
                "is not valid: the JSON schema cannot be used: `/properties/a/type` is \"dict\", and {types}"
            ),
        ),
        (
            json!({"type": "str"}),
            format!(
                "is not valid: the JSON schema cannot be used: `/type` is \"str\", and {types}"
            ),
        ),
    ] {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
        let offered = |choice: &str| {
            chat(
                "Hi",
                json!({"tools": [tools()[0], tool], "tool_choice": choice, "max_tokens": 2}),
            )
        };
        let (status, answer) = server
            .ask("/v1/chat/completions", &offered("required"))
            .await;
        let expected = format!("Input validation error: `tools[1].function.parameters` {message}");
        assert_eq!(
            (status, &answer["error"]["message"]),
            (422, &json!(expected))
        );
        // Nothing is held to them.
        let (status, _) = server.ask("/v1/chat/completions", &offered("auto")).await;
        assert_eq!(status, 200);
    }
    let text = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "string"}, "strict": true}});
    let body = chat("Hi", json!({"tools": [text]}));
    let (status, answer) = server.ask("/v1/chat/completions", &body).await;
    let expected = "Input validation error: `tools[0].function.parameters.type` must be `object`: the arguments of a call are one";
    assert_eq!(
        (status, &answer["error"]["message"]),
        (422, &json!(expected))
    );
}

#[tokio::test]
async fn the_format_of_the_model_is_found_by_its_template() {
    let server = Server::with_template(HERMES, saying(TWO_CALLS), &[]).await;
    let (_, info) =
        super::common::answer(server.get("/info").send().await.expect("an answer")).await;
    assert_eq!(info["tool_call_parser"], "hermes");
    assert_eq!(info["reasoning_parser"], Value::Null);
    let answer = ask_chat(&server, &chat("Hi", json!({"tools": tools()}))).await;
    assert_eq!(calls(&answer).len(), 2);
}

/// Where the chunks of one choice may stand.
#[derive(Debug, PartialEq)]
enum Place {
    Start,
    Text,
    Call(u64),
    End,
}

/// Follows a chunk: the role comes first, calls count up, arguments follow the begin of their call, nothing follows the
/// reason of the end.
fn follow(place: &Place, choice: &Value) -> Place {
    let delta = &choice["delta"];
    match place {
        Place::End => panic!("after the end: {choice}"),
        Place::Start => {
            assert_eq!(delta["role"], "assistant", "{choice}");
            return Place::Text;
        }
        Place::Text | Place::Call(_) => assert!(delta.get("role").is_none(), "{choice}"),
    }
    if !choice["finish_reason"].is_null() {
        assert_eq!(*delta, json!({}));
        return Place::End;
    }
    // A token that brings nothing yet has log-probabilities all the same.
    if delta["content"] == "" {
        return match place {
            Place::Call(index) => Place::Call(*index),
            _ => Place::Text,
        };
    }
    let Some(call) = delta["tool_calls"].get(0) else {
        assert!(delta["content"].is_string() || delta["reasoning_content"].is_string());
        return Place::Text;
    };
    let index = call["index"].as_u64().expect("an index");
    if call["id"].is_string() {
        assert_eq!(
            (&call["type"], &call["function"]["arguments"]),
            (&json!("function"), &json!(""))
        );
    } else {
        assert_eq!(*place, Place::Call(index), "{choice}");
    }
    Place::Call(index)
}

#[tokio::test]
async fn chunks_of_every_choice_come_in_order() {
    let thinking =
        "<think>hm</think>Well.<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    for says in [TWO_CALLS, thinking, "Nothing.", ""] {
        let server = hermes(says).await;
        let body = chat(
            "Hi",
            json!({"tools": tools(), "n": 2, "separate_reasoning": true, "logprobs": true}),
        );
        let events = events(&server, "/v1/chat/completions", &body).await;
        for index in 0..2 {
            let own = events.iter().map(|event| &event["choices"][0]);
            let own = own.filter(|choice| choice["index"] == index);
            let end = own.fold(Place::Start, |place, choice| follow(&place, choice));
            assert_eq!(end, Place::End, "{says}");
        }
    }
}
