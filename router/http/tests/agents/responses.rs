//! `/v1/responses`.

use super::*;

const PATH: &str = "/v1/responses";

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    json!([{"type": "function", "name": "add", "parameters": parameters}, {"type": "web_search"}])
}

fn body(keys: Value) -> Value {
    with(json!({"input": "1+1?", "tools": tools()}), keys)
}

/// Items without what differs from run to run.
fn plain(items: &Value) -> Value {
    let mut items = items.clone();
    for item in items.as_array_mut().expect("a list") {
        let item = item.as_object_mut().expect("an item");
        item.remove("id");
        item.remove("call_id");
    }
    items
}

#[tokio::test]
async fn a_turn_is_streamed_item_by_item() {
    let server = hermes(TURN, &[]).await;
    let events = events(&server, PATH, &body(json!({}))).await;
    let mut order = types(&events);
    order.dedup();
    assert_eq!(
        order,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let last = &events.last().expect("an event")["response"];
    let done = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done");
    let items: Vec<Value> = done.map(|event| event["item"].clone()).collect();
    assert_eq!(
        last["output"],
        Value::from(items),
        "the very items, ids included"
    );
    assert_eq!(last["id"], events[0]["response"]["id"]);
    assert_eq!(
        (&last["status"], &last["store"]),
        (&json!("completed"), &json!(true))
    );
    assert_eq!(last["usage"]["output_tokens"], TURN.len() + 1);
    assert_eq!(last["tools"], tools());
}

#[tokio::test]
async fn a_whole_answer_has_the_items_of_the_stream() {
    let server = hermes(TURN, &[]).await;
    let streamed = events(&server, PATH, &body(json!({}))).await;
    let whole = server.good(PATH, &body(json!({}))).await;
    let streamed = &streamed.last().expect("an event")["response"];
    assert_eq!(plain(&whole["output"]), plain(&streamed["output"]));
    assert_eq!(
        plain(&whole["output"]),
        json!([
            {
                "type": "reasoning", "status": "completed", "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": null,
            },
            {
                "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}],
            },
            {"type": "function_call", "status": "completed", "name": "add", "arguments": "{\"x\": 1}"},
        ])
    );
}

#[tokio::test]
async fn the_next_turn_finds_this_one_in_the_cache() {
    let server = hermes(TURN, &[]).await;
    let asks = json!({"include": ["reasoning.encrypted_content"]});
    let first = server.good(PATH, &body(asks.clone())).await;
    let mut history = vec![json!({"role": "user", "content": "1+1?"})];
    for item in first["output"].as_array().expect("a list") {
        let mut item = item.clone();
        if item["type"] == "reasoning" {
            item["content"] = json!([]);
        }
        history.push(item);
    }
    let call = first["output"][2]["call_id"].clone();
    history.push(json!({"type": "function_call_output", "call_id": call, "output": "2"}));
    let second = server
        .good(PATH, &with(body(asks), json!({"input": history})))
        .await;
    let computed = &first["usage"];
    let known = computed["input_tokens"].as_u64().expect("a number") + TURN.len() as u64;
    let cached = second["usage"]["input_tokens_details"]["cached_tokens"]
        .as_u64()
        .expect("a number");
    assert!(cached + 1 >= known, "{cached} of {known}");
}

#[tokio::test]
async fn items_become_messages_in_the_order_of_the_turns() {
    let server = repeating("{{ messages | tojson }}").await;
    let input = json!([
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "q"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "sum"}], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c1", "name": "f", "namespace": "ns", "arguments": "{\"x\": 1}"},
        {"type": "web_search_call", "id": "ws_1"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "a\nb"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
        {"role": "user", "content": "Thanks"},
    ]);
    let answer = server
        .good(PATH, &json!({"instructions": "Help.", "input": input}))
        .await;
    let text = answer["output"][0]["content"][0]["text"]
        .as_str()
        .expect("a text");
    let messages: Value = serde_json::from_str(text).expect("JSON");
    let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let reasoning = &messages[2]["reasoning_content"];
    assert_eq!(reasoning, "sum");
    assert_eq!(
        messages[0],
        json!({"role": "system", "content": "Help.\n\nBe brief."})
    );
    assert_eq!(
        messages[2]["tool_calls"],
        json!([
            call("c1", "ns__f", json!({"x": 1})),
            call("c2", "patch", json!({"input": "a\nb"}))
        ])
    );
    assert_eq!(
        messages[3],
        json!({"role": "tool", "name": "ns__f", "tool_call_id": "c1", "content": "2"})
    );
    assert_eq!(messages[4]["content"], "ok");
    assert_eq!(
        messages[5],
        json!({"role": "assistant", "content": "Done."})
    );
}

#[tokio::test]
async fn the_limit_of_tokens_leaves_an_incomplete_response() {
    let server = hermes(TURN, &[]).await;
    let events = events(&server, PATH, &body(json!({"max_output_tokens": 22}))).await;
    let last = events.last().expect("an event");
    assert_eq!(last["type"], "response.incomplete");
    let response = &last["response"];
    assert_eq!(
        response["incomplete_details"],
        json!({"reason": "max_output_tokens"})
    );
    assert_eq!(response["output"][1]["status"], "incomplete");
}

#[tokio::test]
async fn a_schema_is_enforced() {
    let server = hermes("no JSON at all", &[]).await;
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "n", "schema": schema, "strict": true});
    let answer = server
        .good(PATH, &json!({"input": "x", "text": {"format": format}}))
        .await;
    let text = answer["output"][0]["content"][0]["text"]
        .as_str()
        .expect("a text");
    let object: Value = serde_json::from_str(text).expect("JSON");
    assert!(object["ok"].is_boolean(), "{text}");
    assert_eq!(answer["text"]["format"]["name"], "n");
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_name() {
    let server = hermes(TURN, &[]).await;
    for (keys, named) in [
        (
            json!({"previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        (json!({"conversation": "conv_1"}), "conversation"),
        (json!({"background": true}), "background"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"input": []}), "input"),
        (
            json!({"input": [{"type": "compaction", "encrypted_content": "x"}]}),
            "input[0].type",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            "input[0].content[0].type",
        ),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"max_output_tokens": 1_000_000}), "max_output_tokens"),
        (
            json!({"text": {"format": {"type": "xml"}}}),
            "text.format.type",
        ),
        (json!({"truncation": "auto"}), "truncation"),
        (
            json!({"tools": [{"type": "namespace", "name": "a b", "tools": [{"type": "function", "name": "f"}]}]}),
            "tools[0].tools[0].name",
        ),
        (
            json!({"tool_choice": {"type": "web_search"}}),
            "tool_choice.type",
        ),
    ] {
        let (status, answer) = server.ask(PATH, &body(keys)).await;
        // No retry mends any of these, and Codex tries again after every status but 400.
        assert_eq!(status, 400, "{answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains(named), "{message}");
    }
    // What harms nobody is accepted.
    let harmless = json!({
        "store": true, "background": false, "prompt_cache_key": "k", "service_tier": "auto",
        "include": ["web_search_call.results"],
        "reasoning": {"effort": "high", "summary": "auto"}, "text": {"verbosity": "low"}, "metadata": {"a": "b"},
    });
    let answer = server.good(PATH, &body(harmless)).await;
    assert_eq!(
        (&answer["store"], &answer["metadata"]["a"]),
        (&json!(true), &json!("b"))
    );
    assert_eq!(answer["reasoning"]["effort"], "high");
}

/// Codex shortens the conversation when its stream says so, and looks nowhere else.
#[tokio::test]
async fn a_full_context_is_a_failed_response_in_a_stream() {
    let server = hermes("x", &[]).await;
    let keys = json!({"input": "x".repeat(20_000), "stream": true});
    let response = server.post_json(PATH, &body(keys)).await;
    assert_eq!(response.status(), 200);
    let events = response.text().await.expect("a text");
    let events: Vec<Value> = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|event| serde_json::from_str(event).expect("JSON"))
        .collect();
    let kinds: Vec<&Value> = events.iter().map(|event| &event["type"]).collect();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.failed"
        ]
    );
    let failed = &events[2]["response"];
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("context_length_exceeded"))
    );
    let message = failed["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("This model's maximum context length is"),
        "{message}"
    );
    assert_eq!(failed["id"], events[0]["response"]["id"]);
}

#[tokio::test]
async fn input_tokens_are_those_of_the_response() {
    let server = hermes("x", &[]).await;
    let asked = body(json!({"instructions": "Be short."}));
    let counted = server.good(&format!("{PATH}/input_tokens"), &asked).await;
    let answered = server.good(PATH, &asked).await;
    assert_eq!(counted["object"], "response.input_tokens");
    assert_eq!(counted["input_tokens"], answered["usage"]["input_tokens"]);
}
