//! `/v1/messages`.

use super::*;

const PATH: &str = "/v1/messages";

fn body(keys: Value) -> Value {
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    let body = json!({
        "model": "claude", "max_tokens": 200, "messages": [{"role": "user", "content": "1+1?"}],
        "tools": [{"name": "add", "input_schema": schema}, {"type": "web_search_20250305", "name": "web_search"}],
    });
    with(body, keys)
}

#[tokio::test]
async fn a_turn_is_streamed_block_by_block() {
    let server = hermes(TURN, &[]).await;
    let events = events(&server, PATH, &body(json!({}))).await;
    let mut order: Vec<String> = events
        .iter()
        .map(|event| {
            let kind = event["delta"]["type"]
                .as_str()
                .or(event["content_block"]["type"].as_str());
            format!(
                "{} {}",
                event["type"].as_str().unwrap_or_default(),
                kind.unwrap_or_default()
            )
        })
        .collect();
    order.dedup();
    assert_eq!(
        order,
        [
            "message_start ",
            "content_block_start thinking",
            "content_block_delta thinking_delta",
            "content_block_delta signature_delta",
            "content_block_stop ",
            "content_block_start text",
            "content_block_delta text_delta",
            "content_block_stop ",
            "content_block_start tool_use",
            "content_block_delta input_json_delta",
            "content_block_stop ",
            "message_delta ",
            "message_stop ",
        ]
    );
    let start = &events[0]["message"];
    assert_eq!(
        (&start["type"], &start["role"], &start["content"]),
        (&json!("message"), &json!("assistant"), &json!([]))
    );
    assert!(
        start["usage"]["input_tokens"]
            .as_u64()
            .is_some_and(|tokens| tokens > 0)
    );
    let end = &events[events.len() - 2];
    assert_eq!(
        end["delta"],
        json!({"stop_reason": "tool_use", "stop_sequence": null})
    );
    assert_eq!(end["usage"]["output_tokens"], TURN.len() + 1);
}

#[tokio::test]
async fn a_whole_message_has_the_blocks_of_the_stream() {
    let server = hermes(TURN, &[]).await;
    let mut answer = server.good(PATH, &body(json!({}))).await;
    let id = answer["content"][2]["id"].take();
    assert!(
        id.as_str().is_some_and(|id| id.starts_with("toolu_")),
        "{id}"
    );
    assert_eq!(answer["model"], "claude");
    assert_eq!(answer["stop_reason"], "tool_use");
    assert_eq!(
        answer["content"],
        json!([
            {"type": "thinking", "thinking": "hm", "signature": "none"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": null, "name": "add", "input": {"x": 1}},
        ])
    );
}

#[tokio::test]
async fn tokens_of_the_cache_are_counted_apart() {
    let server = hermes("ok", &[]).await;
    let long = "word ".repeat(40);
    let first = body(json!({"messages": [{"role": "user", "content": long}]}));
    let count = server.good("/v1/messages/count_tokens", &first).await;
    let cold = server.good(PATH, &first).await;
    assert_eq!(cold["usage"]["input_tokens"], count["input_tokens"]);
    assert_eq!(cold["usage"]["cache_read_input_tokens"], 0);
    let warm = server.good(PATH, &first).await;
    let tokens = |key: &str| warm["usage"][key].as_u64().expect("a number");
    assert!(tokens("cache_read_input_tokens") > 100);
    assert_eq!(
        tokens("input_tokens") + tokens("cache_read_input_tokens"),
        count["input_tokens"].as_u64().expect("a number")
    );
}

#[tokio::test]
async fn why_a_message_ended() {
    let server = hermes("one two three", SHORT).await;
    let plain = json!({"tools": [], "messages": [{"role": "user", "content": "x"}]});
    let ended = async |keys: Value| {
        let answer = server.good(PATH, &with(body(plain.clone()), keys)).await;
        (
            answer["stop_reason"].clone(),
            answer["stop_sequence"].clone(),
            answer["content"][0]["text"].clone(),
        )
    };
    assert_eq!(
        ended(json!({"max_tokens": 30})).await,
        (json!("end_turn"), json!(null), json!("one two three"))
    );
    assert_eq!(
        ended(json!({"max_tokens": 3})).await,
        (json!("max_tokens"), json!(null), json!("one"))
    );
    assert_eq!(
        ended(json!({"stop_sequences": ["zero", " th"]})).await,
        (json!("stop_sequence"), json!(" th"), json!("one two"))
    );
    // A call that a stop sequence has cut is none that a client may run.
    let calls = hermes(TURN, &[]).await;
    let cut = body(json!({"stop_sequences": [": 1"]}));
    let cut = calls.good(PATH, &cut).await;
    assert_eq!(
        (&cut["stop_reason"], &cut["stop_sequence"]),
        (&json!("stop_sequence"), &json!(": 1"))
    );
    assert_eq!(
        cut["content"][2]["input"],
        json!({"INVALID_JSON": "{\"x\""})
    );
    // More than the context has room for is no error.
    assert_eq!(ended(json!({"max_tokens": 64_000})).await.0, "end_turn");
}

#[tokio::test]
async fn what_changes_with_every_request_does_not_reach_the_prompt() {
    let server = repeating("{{ messages | tojson }}").await;
    let system = json!([
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f"},
        {"type": "text", "text": "You code.", "cache_control": {"type": "ephemeral"}},
    ]);
    let messages = json!([
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
        {"role": "system", "content": "reminder"},
        {"role": "user", "content": "c"},
    ]);
    let keys = json!({
        "system": system, "messages": messages, "tools": [], "thinking": {"type": "adaptive"}, "metadata": {"user_id": "u"},
        "output_config": {"effort": "high"}, "context_management": {"edits": []}, "max_tokens": 1000,
    });
    let answer = server.good(&format!("{PATH}?beta=true"), &body(keys)).await;
    let text = answer["content"][0]["text"].as_str().expect("a text");
    let seen: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(
        seen,
        json!([
            {"role": "system", "content": "You code."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "system", "content": "reminder"},
            {"role": "user", "content": "c"},
        ])
    );
}

#[tokio::test]
async fn errors_are_in_the_words_of_the_api() {
    let server = hermes("x", &[]).await;
    for (keys, named) in [
        (json!({"max_tokens": null}), "`max_tokens` is missing"),
        (json!({"messages": []}), "`messages`"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            "`messages[0].content[0].type`",
        ),
        (json!({"temperature": -1}), "`temperature`"),
        (
            json!({"tool_choice": {"type": "tool", "name": "none_such"}}),
            "`tool_choice.name`",
        ),
        (
            json!({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}),
            "`tools[0].name`",
        ),
        (json!({"mcp_servers": [{"type": "url"}]}), "mcp_servers"),
    ] {
        let (status, answer) = server.ask(PATH, &body(keys)).await;
        assert_eq!(status, 400, "{answer}");
        assert_eq!(
            (&answer["type"], &answer["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains(named), "{message}");
    }
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_told_in_the_words_that_clients_look_for() {
    let server = hermes("x", &[]).await;
    let long = json!([{"role": "user", "content": "x".repeat(20_000)}]);
    for stream in [false, true] {
        let keys = json!({"messages": long, "max_tokens": 5, "stream": stream});
        let (status, answer) = server.ask(PATH, &body(keys)).await;
        assert_eq!(
            (status, &answer["error"]["type"]),
            (400, &json!("invalid_request_error"))
        );
        let message = answer["error"]["message"].as_str().expect("a message");
        let rest = message.strip_prefix("prompt is too long: ").expect(message);
        // It is not tokenised.
        let rest = rest.strip_suffix(" (it has at least so many)");
        let words: Vec<&str> = rest.expect(message).split(' ').collect();
        assert!(
            matches!(words[..], [given, "tokens", ">", most, "maximum"]
                if given.parse::<u32>().expect("a number") > most.parse::<u32>().expect("a number")),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_stored_conversation_is_refused_so_that_the_sdk_goes_on_without() {
    let server = hermes("x", &[]).await;
    let thread = json!({"type": "continue", "previous_message_id": "msg_1"});
    let refused = server
        .post_json(PATH, &body(json!({"thread": thread})))
        .await;
    assert_eq!(refused.status(), 400);
    assert_eq!(header(&refused, "request-id").len(), 36);
    assert_eq!(
        header(&refused, "request-id"),
        header(&refused, "x-request-id")
    );
    let answer: Value = refused.json().await.expect("JSON");
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    assert_eq!(answer["error"]["details"], details);
    let answered = server.post_json(PATH, &body(json!({"thread": null}))).await;
    assert_eq!(answered.status(), 200);
    assert_eq!(
        header(&answered, "request-id"),
        header(&answered, "x-request-id")
    );
}

#[tokio::test]
async fn tools_in_the_shape_of_openai_are_refused_and_not_lost() {
    let server = hermes(TURN, &[]).await;
    let function = json!({"name": "add", "parameters": {"type": "object"}});
    for tool in [
        json!({"type": "function", "function": function}),
        with(function.clone(), json!({"type": "function"})),
    ] {
        let (status, answer) = server.ask(PATH, &body(json!({"tools": [tool]}))).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(status, 400, "{answer}");
        assert!(
            message.contains("`tools[0].type`") && message.contains("`input_schema`"),
            "{message}"
        );
    }
}
