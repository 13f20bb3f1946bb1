//! Streams of both endpoints.

use super::*;

/// The transcript of a stream, an event a line, without what is the same in all.
fn transcript(events: &[Value]) -> String {
    let line = |event: &Value| format!("{} usage {}\n", event["choices"], event["usage"]);
    events.iter().map(line).collect()
}

/// The joined texts of a key of the deltas.
fn joined(events: &[Value], key: &str, index: usize) -> String {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    choices
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["delta"][key].as_str())
        .collect()
}

#[tokio::test]
async fn a_chat_begins_with_the_role_and_ends_with_usage_and_done() {
    let server = server().await;
    let body = chat(
        "Hi",
        json!({"max_tokens": 2, "stream_options": {"include_usage": true}}),
    );
    let events = events(&server, "/v1/chat/completions", &body).await;
    insta::assert_snapshot!(transcript(&events), @r#"
    [{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}] usage null
    [{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}] usage null
    [{"index":0,"delta":{"content":"b"},"logprobs":null,"finish_reason":null}] usage null
    [{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}] usage null
    [] usage {"prompt_tokens":16,"completion_tokens":2,"total_tokens":18,"prompt_tokens_details":{"cached_tokens":0}}
    "#);
    for event in &events {
        assert_eq!(event["id"], events[0]["id"]);
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["model"], "test/model");
    }
}

#[tokio::test]
async fn usage_comes_only_when_asked_for() {
    let server = server().await;
    let events = events(
        &server,
        "/v1/chat/completions",
        &chat("Hi", json!({"max_tokens": 1})),
    )
    .await;
    assert!(
        events
            .iter()
            .all(|event| event["usage"].is_null() && event["choices"][0].is_object())
    );
}

#[tokio::test]
async fn every_choice_has_its_own_role_text_and_end() {
    let server = server().await;
    let body = chat(
        "Hi",
        json!({"n": 3, "max_tokens": 4, "stream_options": {"include_usage": true}}),
    );
    let events = events(&server, "/v1/chat/completions", &body).await;
    for index in 0..3 {
        let own: Vec<&Value> = events
            .iter()
            .map(|event| &event["choices"][0])
            .filter(|choice| choice["index"] == index)
            .collect();
        assert_eq!(own[0]["delta"]["role"], "assistant");
        assert_eq!(joined(&events, "role", index), "assistant");
        assert_eq!(joined(&events, "content", index), "abcd");
        let ends: Vec<_> = own
            .iter()
            .filter(|choice| !choice["finish_reason"].is_null())
            .collect();
        assert_eq!(
            (ends.len(), &ends[0]["finish_reason"]),
            (1, &json!("length"))
        );
    }
    let usage = &events.last().expect("an event")["usage"];
    assert_eq!(
        *usage,
        json!({"prompt_tokens": 16, "completion_tokens": 12, "total_tokens": 28, "prompt_tokens_details": {"cached_tokens": 0}})
    );
    server.idle().await;
}

#[tokio::test]
async fn neither_stop_strings_nor_special_tokens_are_streamed() {
    let server = Server::with_template(PLAIN, saying("one two three"), &[]).await;
    let all = events(&server, "/v1/chat/completions", &chat("Hi", json!({}))).await;
    assert_eq!(joined(&all, "content", 0), "one two three");
    let stopped = events(
        &server,
        "/v1/chat/completions",
        &chat("Hi", json!({"stop": [" three"]})),
    )
    .await;
    assert_eq!(joined(&stopped, "content", 0), "one two");
    assert_eq!(
        stopped.last().expect("an event")["choices"][0]["finish_reason"],
        "stop"
    );
}

#[tokio::test]
async fn reasoning_is_streamed_apart() {
    let server =
        Server::with_template(PLAIN, saying("<think>\nwhy not\n</think>\n\nso be it"), &[]).await;
    let body = chat("Hi", json!({"separate_reasoning": true}));
    let events = events(&server, "/v1/chat/completions", &body).await;
    assert_eq!(joined(&events, "reasoning_content", 0), "why not");
    assert_eq!(joined(&events, "content", 0), "so be it");
    assert!(events.len() > 10, "piece by piece");
}

#[tokio::test]
async fn every_token_has_its_logprobs() {
    let server = Server::with_template(PLAIN, saying("né"), &[]).await;
    let body = chat("Hi", json!({"logprobs": true, "top_logprobs": 1}));
    let events = events(&server, "/v1/chat/completions", &body).await;
    let tokens: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    let bytes: Vec<u64> = tokens
        .iter()
        .filter_map(|token| token["bytes"][0].as_u64())
        .collect();
    // The last one is the end-of-sequence token.
    assert_eq!(bytes[..3], [0x6e, 0xc3, 0xa9]);
    assert_eq!(tokens.len(), 4);
    assert_eq!(joined(&events, "content", 0), "né");
}

#[tokio::test]
async fn completions_are_streamed_by_prompt() {
    let server = Server::start().await;
    let body = completion(
        json!(["Hi", "Hi!"]),
        json!({"max_tokens": 5, "echo": true, "stream_options": {"include_usage": true}}),
    );
    let events = events(&server, "/v1/completions", &body).await;
    let choice = |index: usize| {
        let own: Vec<&Value> = events
            .iter()
            .filter_map(|event| event["choices"].get(0))
            .filter(|choice| choice["index"] == index)
            .collect();
        let text: String = own
            .iter()
            .filter_map(|choice| choice["text"].as_str())
            .collect();
        (text, own.last().expect("an event")["finish_reason"].clone())
    };
    assert_eq!(choice(0), ("Hiabcde".to_owned(), json!("length")));
    assert_eq!(choice(1), ("Hi!abc".to_owned(), json!("stop")));
    let usage = &events.last().expect("an event")["usage"];
    assert_eq!(
        *usage,
        json!({"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14, "prompt_tokens_details": {"cached_tokens": 0}})
    );
}

#[tokio::test]
async fn what_is_refused_before_the_stream_has_its_status() {
    let server = server().await;
    for (keys, refusal) in [
        (json!({"stream": true, "max_tokens": 100_000}), 400),
        (json!({"stream": true, "temperature": -1}), 422),
    ] {
        let (status, answer) = server.ask("/v1/chat/completions", &chat("Hi", keys)).await;
        assert_eq!(
            (status, &answer["error_type"]),
            (refusal, &json!("validation"))
        );
    }
}

#[tokio::test]
async fn a_failure_in_a_stream_is_an_event_before_the_end() {
    let server = server().await;
    server.mock.hold();
    let body = chat("Hi", json!({"stream": true, "max_tokens": 5}));
    let response = server
        .post("/v1/chat/completions")
        .header("x-request-id", "mine")
        .json(&body);
    server.mock.release(1);
    let response = response.send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    server.mock.fail_next_step("out of memory");
    server.mock.resume();
    let text = response.text().await.expect("a body");
    let last = text
        .strip_suffix("data: [DONE]\n\n")
        .expect("[DONE]")
        .trim_end()
        .rsplit("data: ")
        .next();
    let error: Value = serde_json::from_str(last.expect("an event")).expect("JSON");
    assert_eq!(error["error"]["type"], "server_error");
    assert_eq!(
        (&error["error_type"], &error["request_id"]),
        (&json!("generation"), &json!("mine"))
    );
    assert!(
        error["error"]["message"]
            .as_str()
            .is_some_and(|text| text.contains("out of memory"))
    );
    server.idle().await;
}

#[tokio::test]
async fn a_client_that_goes_cancels_all_choices() {
    let server = server().await;
    server.mock.hold();
    server.mock.release(1);
    let body = chat("Hi", json!({"stream": true, "n": 4}));
    let response = server.post_json("/v1/chat/completions", &body).await;
    assert_eq!(response.status(), 200);
    drop(response);
    server.mock.resume();
    server.idle().await;
}

#[tokio::test]
async fn a_failure_before_the_first_token_has_its_status() {
    let server = server().await;
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (path, body) in [
        ("/v1/completions", completion("Hi", json!({}))),
        ("/v1/chat/completions", chat("Hi", json!({}))),
        ("/v1/responses", json!({"input": "Hi"})),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 5}),
        ),
    ] {
        server.mock.fail_next_step("out of memory");
        let body = with(body, json!({"stream": true}));
        let (status, answer) = server.ask(path, &body).await;
        assert_eq!(status, 424, "{path}: {answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains("out of memory"), "{path}: {answer}");
    }
    server.idle().await;
}

#[tokio::test]
async fn bad_words_that_leave_nothing_are_named() {
    let server = server().await;
    let only = |text: &str| json!({"type": "regex", "value": text});
    for stream in [false, true] {
        let keys = json!({"stream": stream, "bad_words": ["a"], "response_format": only("a")});
        let (status, answer) = server.ask("/v1/chat/completions", &chat("Hi", keys)).await;
        assert_eq!(
            (status, &answer["error"]["param"]),
            (422, &json!("bad_words"))
        );
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains("`response_format`"), "{message}");
        let keys = json!({"bad_words": ["b"], "response_format": only("ab")});
        let (status, answer) = server.ask("/v1/chat/completions", &chat("Hi", keys)).await;
        assert_eq!((status, &answer["error_type"]), (422, &json!("grammar")));
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains("`bad_words`"), "{message}");
    }
    server.idle().await;
}
