//! The second turn: what clients send back of the first, on every API.

use super::*;

/// Walks through arguments, as many templates do: it fails where they are no object.
const WALK: &str = concat!(
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}",
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}",
    "{% for k, v in c.function.arguments.items() %}[{{ k }}={{ v }}]{% endfor %};{% endfor %}{% endfor %}",
);
const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn schema() -> Value {
    json!({"type": "object", "properties": {"x": {"type": "integer"}}})
}

/// The text of an answer of any API.
fn text(answer: &Value) -> &str {
    [
        "/choices/0/message/content",
        "/output/0/content/0/text",
        "/content/0/text",
    ]
    .iter()
    .find_map(|place| answer.pointer(place)?.as_str())
    .expect("a text")
}

/// How a server that repeats its prompt wrote the arguments of a call, on each API. `None` leaves them out.
async fn written(server: &Server, arguments: Option<Value>) -> Vec<String> {
    let given = |key: &str| match &arguments {
        Some(arguments) => json!({ key: arguments }),
        None => json!({}),
    };
    let function = with(json!({"name": "f"}), given("arguments"));
    let call = json!({"id": "c", "type": "function", "function": function});
    let chat = json!({"messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]});
    let call = json!({"type": "function_call", "call_id": "c", "name": "f"});
    let responses = json!({"input": [
        {"role": "user", "content": "q"},
        with(call, given("arguments")),
        {"type": "function_call_output", "call_id": "c", "output": "r"},
    ]});
    let call = json!({"type": "tool_use", "id": "c", "name": "f"});
    let messages = json!({"max_tokens": 500, "messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [with(call, given("input"))]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "r"}]},
    ]});
    let mut written = Vec::new();
    for (path, body) in [(CHAT, chat), (RESPONSES, responses), (MESSAGES, messages)] {
        let answer = server.good(path, &body).await;
        let prompt = text(&answer).strip_prefix("<user>q<assistant>f");
        let call = prompt.and_then(|rest| rest.strip_suffix(";<tool>r"));
        written.push(call.unwrap_or_else(|| text(&answer)).to_owned());
    }
    written
}

#[tokio::test]
async fn arguments_are_an_object_whatever_comes_back() {
    let server = repeating(WALK).await;
    for (arguments, expected) in [
        (Some(json!("{\"x\": 1}")), "[x=1]"),
        (Some(json!({"x": 1})), "[x=1]"),
        (None, ""),
        (Some(json!(null)), ""),
        (Some(json!("")), ""),
        (Some(json!("{\"x\": ")), "[INVALID_JSON={\"x\": ]"),
        (
            Some(json!("{\"x\": \"a \"b\"\"}")),
            "[INVALID_JSON={\"x\": \"a \"b\"\"}]",
        ),
        (Some(json!("[1]")), "[INVALID_JSON=[1]]"),
        (Some(json!([1])), "[INVALID_JSON=[1]]"),
        (Some(json!(7)), "[INVALID_JSON=7]"),
        (Some(json!("seven")), "[INVALID_JSON=seven]"),
    ] {
        let written = written(&server, arguments.clone()).await;
        assert_eq!(written, [expected; 3], "{arguments:?}");
    }
}

#[tokio::test]
async fn a_call_that_was_cut_can_be_sent_back() {
    let model = saying("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n</tool_call>");
    let server = serving(WALK, model, &[]).await;
    let cut = 47;
    let user = json!({"role": "user", "content": "1+1?"});
    let body = json!({
        "messages": [user], "max_tokens": cut,
        "tools": [{"type": "function", "function": {"name": "add", "parameters": schema()}}],
    });
    let answer = server.good(CHAT, &body).await;
    let said = &answer["choices"][0]["message"];
    let call = &said["tool_calls"][0];
    assert_eq!(call["function"]["arguments"], "{\"x\": ");
    let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "cut"});
    let turn = json!({"messages": [user, said, result]});
    server.good(CHAT, &with(body, turn)).await;

    let body = json!({
        "input": [user], "max_output_tokens": cut,
        "tools": [{"type": "function", "name": "add", "parameters": schema()}],
    });
    let answer = server.good(RESPONSES, &body).await;
    let call = &answer["output"][0];
    assert_eq!(
        (&call["arguments"], &call["status"]),
        (&json!("{\"x\": "), &json!("incomplete"))
    );
    let result =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "cut"});
    let turn = json!({"input": [user, call, result]});
    server.good(RESPONSES, &with(body, turn)).await;

    let body = json!({
        "messages": [user], "max_tokens": cut,
        "tools": [{"name": "add", "input_schema": schema()}],
    });
    let answer = server.good(MESSAGES, &body).await;
    let result =
        json!({"type": "tool_result", "tool_use_id": answer["content"][0]["id"], "content": "cut"});
    let turn = json!({"messages": [
        user, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": [result]},
    ]});
    server.good(MESSAGES, &with(body, turn)).await;
}

/// The ids of the output, as references.
fn references(answer: &Value) -> Vec<Value> {
    let items = answer["output"].as_array().expect("a list");
    let reference = |item: &Value| json!({"type": "item_reference", "id": item["id"]});
    items.iter().map(reference).collect()
}

fn tools() -> Value {
    json!([{"type": "function", "name": "add", "parameters": schema()}])
}

#[tokio::test]
async fn items_of_earlier_responses_can_be_referred_to() {
    let server = hermes(TURN, &[]).await;
    let user = json!({"role": "user", "content": "1+1?"});
    let body = json!({"input": [user], "tools": tools()});
    let whole = server.good(RESPONSES, &body).await;
    assert_eq!(whole["store"], true);
    let streamed = events(&server, RESPONSES, &body).await;
    let streamed = streamed.last().expect("an event")["response"].clone();
    for first in [whole, streamed] {
        let call_id = &first["output"][2]["call_id"];
        let result = json!({"type": "function_call_output", "call_id": call_id, "output": "2"});
        let items = first["output"].as_array().cloned().expect("a list");
        let mut tokens = Vec::new();
        for sent in [items, references(&first)] {
            let input = [vec![user.clone()], sent, vec![result.clone()]].concat();
            let second = server
                .good(RESPONSES, &with(body.clone(), json!({ "input": input })))
                .await;
            tokens.push(second["usage"]["input_tokens"].clone());
        }
        assert_eq!(tokens[0], tokens[1], "the same prompt");
    }
}

#[tokio::test]
async fn what_a_reference_needs_is_said_where_the_item_is_not_known() {
    let remembering = hermes(TURN, &[]).await;
    let forgetting = hermes(TURN, &["--response-memory", "0"]).await;
    for (server, keys, why) in [
        (
            &remembering,
            json!({"store": false}),
            "is not remembered here",
        ),
        (&forgetting, json!({}), "this server remembers no items"),
    ] {
        let body = with(json!({"input": "1+1?", "tools": tools()}), keys);
        let first = server.good(RESPONSES, &body).await;
        assert_eq!(first["store"], false);
        let body = with(body, json!({"input": references(&first)}));
        let (status, answer) = server.ask(RESPONSES, &body).await;
        assert!(status == 400 || status == 422, "{answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        let id = first["output"][0]["id"].as_str().expect("an id");
        for part in [
            why,
            id,
            "`input[0]`",
            "Send the item itself",
            "`store: false`",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[tokio::test]
async fn a_key_sees_no_items_of_another() {
    let server = hermes(TURN, &["--api-key", "a\nb"]).await;
    let ask = async |key: &str, body: &Value| {
        let request = server.post(RESPONSES).bearer_auth(key).json(body);
        common::answer(request.send().await.expect("an answer")).await
    };
    let (_, first) = ask("a", &json!({"input": "1+1?", "tools": tools()})).await;
    let second = json!({"input": references(&first), "tools": tools()});
    assert_eq!(ask("a", &second).await.0, 200);
    let (status, answer) = ask("b", &second).await;
    assert!(status == 400 || status == 422, "{answer}");
}

#[tokio::test]
async fn an_answer_that_was_only_thought_keeps_the_roles_in_turn() {
    let template =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.reasoning_content }}{% endfor %}";
    let server = repeating(template).await;
    let thought = json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]});
    let user = |text: &str| json!({"role": "user", "content": text});
    let responses = json!({"input": [user("q"), thought, user("r")]});
    // With which an answer begins that is still to be given.
    let begun = json!({"input": [user("q"), thought]});
    let chat = json!({"messages": [
        user("q"), {"role": "assistant", "content": null, "reasoning_content": "hm"}, user("r"),
    ]});
    let absent =
        json!({"messages": [user("q"), {"role": "assistant", "reasoning": "hm"}, user("r")]});
    let messages = json!({"max_tokens": 500, "messages": [
        user("q"), {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}, user("r"),
    ]});
    let all = "<user>q<assistant>hm<user>r";
    for (path, body, expected) in [
        (RESPONSES, responses, all),
        (RESPONSES, begun, "<user>q"),
        (CHAT, chat, all),
        (CHAT, absent, all),
        (MESSAGES, messages, all),
    ] {
        assert_eq!(text(&server.good(path, &body).await), expected, "{body}");
    }
}

#[tokio::test]
async fn an_assistant_that_said_nothing_has_an_empty_content() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let server = repeating(template).await;
    let user = json!({"role": "user", "content": "q"});
    for (said, written) in [
        (json!({"content": null}), ""),
        (json!({}), ""),
        (json!({"content": null, "refusal": "No."}), "No."),
        (
            json!({"content": null, "tool_calls": [], "refusal": null}),
            "",
        ),
        (json!({"content": []}), ""),
    ] {
        let message = with(json!({"role": "assistant"}), said);
        let body = json!({"messages": [user, message, user]});
        let answer = server.good(CHAT, &body).await;
        assert_eq!(
            text(&answer),
            format!("<user>q<assistant>{written}<user>q"),
            "{message}"
        );
    }
    let messages = json!([user, {"role": "assistant", "content": null}, user]);
    for (path, body) in [
        (RESPONSES, json!({"input": messages})),
        (MESSAGES, json!({"max_tokens": 500, "messages": messages})),
    ] {
        let answer = server.good(path, &body).await;
        assert_eq!(text(&answer), "<user>q<assistant><user>q", "{path}");
    }
}

#[tokio::test]
async fn chats_take_the_parts_of_the_other_apis() {
    let texts =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.reasoning_content }}{% endfor %}";
    let parts = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{{ m.reasoning_content }}{% endfor %}";
    let messages = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "output_text", "text": "a", "annotations": []},
            {"type": "refusal", "refusal": "b"},
        ]},
        {"role": "user", "content": "r"},
    ]);
    for template in [texts, parts] {
        let server = repeating(template).await;
        let answer = server.good(CHAT, &json!({ "messages": messages })).await;
        assert_eq!(text(&answer), "<user>q<assistant>abhm<user>r", "{template}");
    }
    let reading = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
        {% if p.type == 'thinking' %}[{{ p.thinking }}]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}";
    let answer = repeating(reading)
        .await
        .good(CHAT, &json!({ "messages": messages }))
        .await;
    assert_eq!(text(&answer), "<user>q<assistant>[hm]ab<user>r");
}

/// What each API says of reasoning: its body, and the field.
fn efforts(effort: &str) -> [(&'static str, Value, &'static str); 4] {
    let user = json!([{"role": "user", "content": "q"}]);
    let anthropic =
        json!({"max_tokens": 500, "messages": user, "output_config": {"effort": effort}});
    [
        (
            CHAT,
            json!({"messages": user, "reasoning_effort": effort}),
            "reasoning_effort",
        ),
        (
            CHAT,
            json!({"messages": user, "reasoning": {"effort": effort}}),
            "reasoning.effort",
        ),
        (
            RESPONSES,
            json!({"input": user, "reasoning": {"effort": effort}}),
            "reasoning.effort",
        ),
        (MESSAGES, anthropic, "output_config.effort"),
    ]
}

#[tokio::test]
async fn what_is_said_of_reasoning_comes_to_nothing_where_the_template_cannot_tell_it() {
    let plain = repeating("{{ messages[0].content }}").await;
    let reading =
        repeating("{{ messages[0].content }}{{ reasoning_effort }}{{ enable_thinking }}").await;
    for effort in ["none", "minimal", "low", "medium", "high", "xhigh", "max"] {
        for (path, body, field) in efforts(effort) {
            for stream in [false, true] {
                let body = with(body.clone(), json!({ "stream": stream }));
                let response = plain.post_json(path, &body).await;
                assert_eq!(response.status(), 200, "{body}");
                assert_eq!(header(&response, "x-ignored-fields"), field, "{body}");
                let response = reading.post_json(path, &body).await;
                assert_eq!(header(&response, "x-ignored-fields"), "", "{body}");
            }
            let switch = if effort == "none" { "False" } else { "" };
            let answer = reading.good(path, &body).await;
            assert_eq!(text(&answer), format!("q{effort}{switch}"), "{body}");
        }
    }
    for (path, body, field) in efforts("huge") {
        let (status, answer) = plain.ask(path, &body).await;
        assert!(status == 400 || status == 422, "{answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        let expected = format!("`{field}` must be one of `none`, `minimal`");
        assert!(message.contains(&expected), "{message}");
    }
}

#[tokio::test]
async fn reasoning_is_switched_where_the_template_has_a_switch() {
    let plain = repeating("{{ messages[0].content }}").await;
    let reading = repeating("{{ messages[0].content }}{{ enable_thinking }}").await;
    let user = json!([{"role": "user", "content": "q"}]);
    let body = json!({"max_tokens": 500, "messages": user});
    let kwargs = json!({"chat_template_kwargs": {"enable_thinking": false}});
    let thinking = json!({"thinking": {"type": "disabled"}});
    for (path, keys, field) in [
        (CHAT, &kwargs, "chat_template_kwargs.enable_thinking"),
        (RESPONSES, &kwargs, "chat_template_kwargs.enable_thinking"),
        (MESSAGES, &kwargs, "chat_template_kwargs.enable_thinking"),
        (CHAT, &thinking, "thinking"),
        (MESSAGES, &thinking, "thinking"),
    ] {
        let body = match path {
            RESPONSES => json!({ "input": user }),
            _ => body.clone(),
        };
        let body = with(body, keys.clone());
        let response = plain.post_json(path, &body).await;
        assert_eq!(
            header(&response, "x-ignored-fields"),
            field,
            "{path} {body}"
        );
        assert_eq!(
            text(&reading.good(path, &body).await),
            "qFalse",
            "{path} {body}"
        );
    }
    for (path, keys) in [
        (CHAT, json!({"thinking": {"type": "maybe"}})),
        (MESSAGES, json!({"thinking": {"type": "maybe"}})),
        (
            CHAT,
            json!({"chat_template_kwargs": {"enable_thinking": "no"}}),
        ),
    ] {
        let (status, answer) = plain.ask(path, &with(body.clone(), keys)).await;
        assert!(status == 400 || status == 422, "{answer}");
    }
}
