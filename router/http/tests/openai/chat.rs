//! Whole answers of `/v1/chat/completions`.

use super::*;

#[tokio::test]
async fn the_answer_has_the_keys_of_the_api() {
    let server = server().await;
    let answer = ask_chat(&server, &chat("Hi", json!({"max_tokens": 3}))).await;
    insta::assert_snapshot!(redacted(&answer), @r#"{"object":"chat.completion","id":"chatcmpl","created":0,"model":"test/model","system_fingerprint":"0.1.0-native","choices":[{"index":0,"message":{"role":"assistant","content":"abc"},"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":16,"completion_tokens":3,"total_tokens":19,"prompt_tokens_details":{"cached_tokens":0}}}"#);
    let again = ask_chat(&server, &chat("Hi", json!({"max_tokens": 3}))).await;
    assert_ne!(answer["id"], again["id"]);
}

#[tokio::test]
async fn headers_tell_times_and_sizes() {
    let server = server().await;
    let body = chat("né", json!({"max_tokens": 5, "n": 2}));
    let response = server.post_json("/v1/chat/completions", &body).await;
    assert_eq!(header(&response, "x-compute-characters"), "16");
    assert_eq!(header(&response, "x-prompt-tokens"), "17");
    assert_eq!(header(&response, "x-generated-tokens"), "10");
    assert!(header(&response, "x-total-time").parse::<u64>().is_ok());
}

#[tokio::test]
async fn an_end_of_sequence_token_is_a_stop_and_no_text() {
    let server = Server::with_template(PLAIN, saying("Yes."), &[]).await;
    let answer = ask_chat(&server, &chat("Hi", json!({}))).await;
    assert_eq!(contents(&answer), ["Yes."]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 5);
}

#[tokio::test]
async fn the_conversation_reaches_the_template_intact() {
    let server = Server::with_template("{{ messages | tojson }}", repeating(), &[]).await;
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}});
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "No jokes."},
        {"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}], "name": "Ann"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "call_1"},
    ]);
    let answer = ask_chat(&server, &json!({ "messages": &messages })).await;
    let rendered: Value = serde_json::from_str(contents(&answer)[0]).expect("JSON");
    assert_eq!(rendered, messages);
}

#[tokio::test]
async fn the_prompt_ends_as_asked_for() {
    let server = Server::with_template(PLAIN, repeating(), &[]).await;
    let user = json!({"role": "user", "content": "Hi"});
    let assistant = json!({"role": "assistant", "content": "Well"});
    for (messages, keys, expected) in [
        (json!([user]), json!({}), "<user>Hi<answer>"),
        (
            json!([user]),
            json!({"add_generation_prompt": false}),
            "<user>Hi",
        ),
        (
            json!([user, assistant]),
            json!({}),
            "<user>Hi<assistant>Well",
        ),
        (
            json!([user, assistant]),
            json!({"add_generation_prompt": true}),
            "<user>Hi<assistant>Well<answer>",
        ),
        (
            json!([{"role": "assistant", "content": "Well", "tool_calls": [{"function": {"name": "f"}}]}]),
            json!({}),
            "<assistant>Well\n{\"name\":\"f\",\"parameters\":{}}<answer>",
        ),
        (
            json!([{"role": "assistant", "content": "Well", "tool_calls": []}]),
            json!({}),
            "<assistant>Well",
        ),
        (
            json!([user]),
            json!({"continue_final_message": true}),
            "<user>Hi",
        ),
    ] {
        let answer = ask_chat(&server, &with(json!({ "messages": messages }), keys)).await;
        assert_eq!(contents(&answer), [expected]);
    }
}

#[tokio::test]
async fn templates_take_the_variables_that_they_know() {
    let template =
        "{{ messages[0].content }}{{ enable_thinking }}{{ reasoning_effort }}{{ bos_token }}";
    let server = Server::with_template(template, repeating(), &[]).await;
    let body = chat(
        "Hi ",
        json!({"chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "low"}),
    );
    assert_eq!(contents(&ask_chat(&server, &body).await), ["Hi Falselow"]);
    for name in ["bos_token", "messages", "unheard_of"] {
        let body = chat("Hi", json!({"chat_template_kwargs": {name: "x"}}));
        let (status, answer) = server.ask("/v1/chat/completions", &body).await;
        assert_eq!(status, 422);
        assert_eq!(
            answer["error"]["param"],
            format!("chat_template_kwargs.{name}")
        );
    }
}

#[tokio::test]
async fn documents_reach_a_template_that_reads_them() {
    let documents = json!([{"title": "T", "text": "x"}]);
    let template = "{{ messages[0].content }}{% for d in documents or [] %} {{ d.title }}:{{ d.text }}{% endfor %}";
    let reading = Server::with_template(template, repeating(), &[]).await;
    for keys in [
        json!({ "documents": &documents }),
        json!({"chat_template_kwargs": {"documents": &documents}}),
    ] {
        let answer = ask_chat(&reading, &chat("Hi", keys)).await;
        assert_eq!(contents(&answer), ["Hi T:x"]);
    }
    let other = server().await;
    let body = chat("Hi", json!({ "documents": &documents }));
    let (status, answer) = other.ask("/v1/chat/completions", &body).await;
    assert_eq!(status, 422);
    assert_eq!(answer["error"]["param"], "documents");
    let body = chat("Hi", json!({"documents": []}));
    ask_chat(&other, &body).await;
}

#[tokio::test]
async fn special_tokens_of_clients_are_text_where_that_is_asked_for() {
    let template = "<s>{{ messages[0].content }}";
    let messages = json!({"messages": [{"role": "user", "content": "<s>é"}]});
    // The token of the template, that of the client as a token or as its bytes, and two bytes.
    for (flags, tokens, ids) in [
        (&[][..], 4, json!([1, 1])),
        (&["--escape-special-tokens"], 6, json!([1, BYTES + 60])),
    ] {
        let server = Server::with_template(template, repeating(), flags).await;
        let answer = ask_chat(&server, &messages).await;
        assert_eq!(answer["usage"]["prompt_tokens"], tokens, "{flags:?}");
        let response = server.post_json("/v1/chat/completions", &messages).await;
        assert_eq!(header(&response, "x-compute-characters"), "7");
        let (status, tokenized) = server.ask("/chat_tokenize", &messages).await;
        assert_eq!(status, 200);
        assert_eq!(tokenized["templated_text"], "<s><s>é");
        let listed = &tokenized["tokenize_response"];
        assert_eq!(listed.as_array().map(Vec::len), Some(tokens));
        assert_eq!(json!([listed[0]["id"], listed[1]["id"]]), ids);
        assert_eq!(listed[tokens - 1]["stop"], "<s><s>é".len());
    }
}

#[tokio::test]
async fn an_unknown_role_is_refused_where_it_could_make_a_special_token() {
    let body = json!({"messages": [{"role": "/s", "content": "Hi"}]});
    let server = Server::with_template(PLAIN, repeating(), &["--escape-special-tokens"]).await;
    let (status, answer) = server.ask("/v1/chat/completions", &body).await;
    assert_eq!(status, 422);
    assert_eq!(answer["error"]["param"], "messages[0].role");
}

#[tokio::test]
async fn choices_share_the_prompt() {
    let server = server().await;
    let content = "Hi".repeat(50);
    let answer = ask_chat(&server, &chat(&content, json!({"n": 3, "max_tokens": 2}))).await;
    assert_eq!(contents(&answer), ["ab", "ab", "ab"]);
    let indexes: Vec<_> = answer["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(|choice| &choice["index"])
        .collect();
    assert_eq!(indexes, [0, 1, 2]);
    // The first choice computed the prompt: it found nothing.
    assert_eq!(
        answer["usage"],
        json!({
            "prompt_tokens": 114, "completion_tokens": 6, "total_tokens": 120,
            "prompt_tokens_details": {"cached_tokens": 0}
        })
    );
    // The others computed its last token, which brings the first of their own.
    let computed: u32 = server
        .mock
        .steps()
        .iter()
        .map(|step| step.chunk_tokens)
        .sum();
    assert_eq!(computed, 114 + 2);
    server.idle().await;
}

#[tokio::test]
async fn stop_strings_end_the_text_and_are_not_in_it() {
    let server = server().await;
    for stop in [json!("de"), json!(["xyz", "de"])] {
        let answer = ask_chat(&server, &chat("Hi", json!({ "stop": stop }))).await;
        assert_eq!(contents(&answer), ["abc"]);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(answer["usage"]["completion_tokens"], 5);
    }
}

#[tokio::test]
async fn both_names_of_the_token_limit_hold() {
    let server = server().await;
    for keys in [
        json!({"max_tokens": 2}),
        json!({"max_completion_tokens": 2}),
        json!({"max_tokens": 2, "max_completion_tokens": 2}),
    ] {
        let answer = ask_chat(&server, &chat("Hi", keys)).await;
        assert_eq!(contents(&answer), ["ab"]);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
}

#[tokio::test]
async fn logprobs_come_with_bytes_and_alternatives() {
    let server = server().await;
    let body = chat(
        "Hi",
        json!({"logprobs": true, "top_logprobs": 1, "max_tokens": 1}),
    );
    let answer = ask_chat(&server, &body).await;
    let expected = json!({"content": [{
        "token": "a", "logprob": -0.5, "bytes": [97],
        "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]
    }]});
    assert_eq!(answer["choices"][0]["logprobs"], expected);
    let body = chat("Hi", json!({"logprobs": true, "max_tokens": 1}));
    let answer = ask_chat(&server, &body).await;
    assert_eq!(
        answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
        json!([])
    );
}

#[tokio::test]
async fn reasoning_is_split_off_when_asked_for() {
    let text = "<think>\nLet me see.\n</think>\n\nSo it is.";
    let server = Server::with_template(PLAIN, saying(text), &[]).await;
    let message =
        async |keys| ask_chat(&server, &chat("Hi", keys)).await["choices"][0]["message"].clone();
    let expected =
        json!({"role": "assistant", "content": "So it is.", "reasoning_content": "Let me see."});
    assert_eq!(message(json!({"separate_reasoning": true})).await, expected);
    assert_eq!(
        message(json!({})).await,
        json!({"role": "assistant", "content": text})
    );
    // A template that begins the reasoning itself.
    let template = "{{ messages[0].content }}<think>\n";
    let server = Server::with_template(template, saying("why</think>so"), &[]).await;
    let answer = ask_chat(&server, &chat("Hi", json!({"separate_reasoning": true}))).await;
    assert_eq!(
        answer["choices"][0]["message"],
        json!({"role": "assistant", "content": "so", "reasoning_content": "why"})
    );
}

#[tokio::test]
async fn the_answer_repeats_the_name_of_the_model() {
    let server = server().await;
    for (given, expected) in [
        ("gpt-x", "gpt-x"),
        ("tgi", "test/model"),
        ("", "test/model"),
    ] {
        let answer = ask_chat(
            &server,
            &chat("Hi!", json!({"model": given, "max_tokens": 1})),
        )
        .await;
        assert_eq!(answer["model"], expected);
    }
}

#[tokio::test]
async fn a_model_without_a_template_refuses_chats_alone() {
    let server = Server::start().await;
    let (status, answer) = server
        .ask("/v1/chat/completions", &chat("Hi", json!({})))
        .await;
    assert_eq!(
        (status, &answer["error_type"]),
        (422, &json!("template_error"))
    );
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.contains("no chat template"), "{message}");
    let answer = ask_completion(&server, &completion("Hi", json!({"max_tokens": 2}))).await;
    assert_eq!(answer["choices"][0]["text"], "ab");
}

#[tokio::test]
async fn a_conversation_that_the_template_refuses_is_the_clients_error() {
    let server =
        Server::with_template("{{ raise_exception('no systems') }}", repeating(), &[]).await;
    let (status, answer) = server
        .ask("/v1/chat/completions", &chat("Hi", json!({})))
        .await;
    assert_eq!(
        (status, &answer["error_type"]),
        (422, &json!("template_error"))
    );
    assert!(
        answer["error"]["message"]
            .as_str()
            .is_some_and(|text| text.contains("no systems"))
    );
}
