//! What is refused, and how the message names the field.

use super::*;

/// Status 422, and the field in `param`.
async fn refused(server: &Server, path: &str, body: &Value, param: &str) {
    let (status, answer) = server.ask(path, body).await;
    assert_eq!(status, 422, "{param}: {answer}");
    assert_eq!(answer["error"]["param"], param, "{answer}");
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.len() < 400, "{message}");
}

#[tokio::test]
async fn features_that_are_missing_are_named() {
    let server = server().await;
    let cases = [
        ("response_format", json!({"response_format": ["text"]})),
        ("stream_options", json!({"stream_options": [true]})),
        ("functions", json!({"functions": [{"name": "f"}]})),
        ("audio", json!({"audio": {"voice": "x", "format": "wav"}})),
        ("modalities", json!({"modalities": ["text", "audio"]})),
        ("verbosity", json!({"verbosity": "low"})),
        (
            "web_search_options",
            json!({"web_search_options": {"x": 1}}),
        ),
        ("chat_template", json!({"chat_template": "{{ 1 }}"})),
        ("logits_processors", json!({"logits_processors": ["a"]})),
        (
            "structured_outputs.structural_tag",
            json!({"structured_outputs": {"structural_tag": "a"}}),
        ),
        ("reasoning_effort", json!({"reasoning_effort": "huge"})),
    ];
    for (param, keys) in cases {
        refused(&server, "/v1/chat/completions", &chat("Hi", keys), param).await;
    }
}

#[tokio::test]
async fn values_out_of_range_are_named() {
    let server = server().await;
    let many: serde_json::Map<String, Value> =
        (0..1025).map(|id| (id.to_string(), json!(1))).collect();
    let cases = [
        ("temperature", json!({"temperature": -0.1})),
        ("temperature", json!({"temperature": 1e300})),
        ("top_p", json!({"top_p": 1.1})),
        ("top_p", json!({"top_p": -0.1})),
        ("top_k", json!({"top_k": -2})),
        ("min_p", json!({"min_p": 2})),
        ("min_p", json!({"min_p": 1.5, "temperature": 0})),
        ("min_p", json!({"min_p": -1, "top_p": 0})),
        ("typical_p", json!({"typical_p": -1})),
        ("repetition_penalty", json!({"repetition_penalty": 0})),
        ("frequency_penalty", json!({"frequency_penalty": 2.5})),
        ("presence_penalty", json!({"presence_penalty": -2.5})),
        ("logit_bias", json!({"logit_bias": {"5": 101}})),
        ("logit_bias", json!({"logit_bias": {"99999": 1}})),
        ("logit_bias", json!({"logit_bias": many})),
        ("logit_bias", json!({"logit_bias": [1.0]})),
        ("repetition_penalty", json!({"repetition_penalty": 1e-45})),
        ("seed", json!({"seed": 1.5})),
        ("seed", json!({"seed": "one"})),
        ("stop", json!({"stop": ["a", "b", "c", "d", "e"]})),
        ("stop", json!({"stop": ""})),
        ("stop", json!({"stop": [1]})),
        ("n", json!({"n": 0})),
        ("n", json!({"n": 129})),
        ("n", json!({"n": -1})),
        ("n", json!({"n": 4294967295u32})),
        ("max_tokens", json!({"max_tokens": 0})),
        ("max_tokens", json!({"max_tokens": -1})),
        ("max_completion_tokens", json!({"max_completion_tokens": 0})),
        (
            "max_completion_tokens",
            json!({"max_tokens": 2, "max_completion_tokens": 1}),
        ),
        ("min_tokens", json!({"min_tokens": 9, "max_tokens": 3})),
        ("top_logprobs", json!({"top_logprobs": 1})),
        (
            "top_logprobs",
            json!({"logprobs": true, "top_logprobs": 21}),
        ),
        ("logprobs", json!({"logprobs": 5})),
        ("model", json!({"model": "m".repeat(257)})),
        ("stream", json!({"stream": "yes"})),
        (
            "stream_options.include_usage",
            json!({"stream_options": {"include_usage": 1}}),
        ),
        (
            "continue_final_message",
            json!({"continue_final_message": true, "add_generation_prompt": true}),
        ),
    ];
    for (param, keys) in cases {
        refused(&server, "/v1/chat/completions", &chat("Hi", keys), param).await;
    }
}

#[tokio::test]
async fn what_is_said_of_a_wrong_value() {
    let server = server().await;
    for (keys, message) in [
        (
            json!({"temperature": 1e308}),
            "`temperature` must be <= 3.4028235e38",
        ),
        (
            json!({"temperature": -1e308}),
            "`temperature` must be >= 0. Given: less than -3.4028235e38",
        ),
        (
            json!({"top_p": 1e308}),
            "`top_p` must be >= 0 and <= 1. Given: more than 3.4028235e38",
        ),
        (
            json!({"min_p": 1.5}),
            "`min_p` must be >= 0 and <= 1. Given: 1.5",
        ),
        (json!({"n": 0}), "`n` must be >= 1 and <= 128. Given: 0"),
        (
            json!({"truncate_prompt_tokens": 0}),
            "`truncate_prompt_tokens` must be -1, or >= 1 and <= 1023. Given: 0",
        ),
        (
            json!({"truncate_prompt_tokens": 1024}),
            "`truncate_prompt_tokens` must be -1, or >= 1 and <= 1023. Given: 1024",
        ),
        (
            json!({"stop": 5}),
            "`stop` must be a string or a list of strings",
        ),
        (
            json!({"stop_token_ids": {"a": 1}}),
            "`stop_token_ids` must be a list (given: an object)",
        ),
        (
            json!({"logit_bias": [1]}),
            "`logit_bias` must be an object (given: a list)",
        ),
        (
            json!({"chat_template_kwargs": "a"}),
            "`chat_template_kwargs` must be an object (given: the text \"a\")",
        ),
        (
            json!({"seed": 0.5}),
            "`seed` must be a whole number from -9223372036854775808 to 18446744073709551615",
        ),
        (
            json!({"tools": [{"type": "function", "function": {"name": 5}}]}),
            "`tools[0].function.name` must be a string (given: 5)",
        ),
    ] {
        let (status, answer) = server.ask("/v1/chat/completions", &chat("Hi", keys)).await;
        assert_eq!(
            (status, answer["error"]["message"].as_str()),
            (
                422,
                Some(format!("Input validation error: {message}").as_str())
            )
        );
    }
    let body = completion(json!(["a", "b"]), json!({"n": 65}));
    let (_, answer) = server.ask("/v1/completions", &body).await;
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("`n` must be >= 1 and <= 64, which are 128 choices of all 2 prompts"),
        "{message}"
    );
    let item = json!({"type": "function_call", "name": 5, "call_id": "a", "arguments": "{}"});
    let (status, answer) = server.ask("/v1/responses", &json!({"input": [item]})).await;
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(
        status == 400 && message.contains("`input[0].name` must be a string (given: 5)"),
        "{message}"
    );
}

#[tokio::test]
async fn messages_are_checked() {
    let server = server().await;
    let image = json!({"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}});
    let text = json!({"type": "text", "text": "Hi"});
    let named = json!({"type": "function", "function": {"name": "f", "arguments": "{}"}});
    let cases = [
        ("messages", json!([])),
        ("messages", json!("Hi")),
        (
            "messages",
            json!(vec![json!({"role": "user", "content": "Hi"}); 4097]),
        ),
        ("messages[0]", json!(["Hi"])),
        ("messages[0].role", json!([{"content": "Hi"}])),
        ("messages[0].role", json!([{"role": 1, "content": "Hi"}])),
        ("messages[0].content", json!([{"role": "user"}])),
        (
            "messages[0].content",
            json!([{"role": "user", "content": 5}]),
        ),
        (
            "messages[0].content[1].type",
            json!([{"role": "user", "content": [text, image]}]),
        ),
        (
            "messages[0].content[0].type",
            json!([{"role": "user", "content": [{"type": "input_audio"}]}]),
        ),
        (
            "messages[0].tool_calls",
            json!([{"role": "assistant", "tool_calls": "f"}]),
        ),
        (
            "messages[0].tool_calls[1].function.name",
            json!([{"role": "assistant", "tool_calls": [named, {"type": "function", "function": {"arguments": "{}"}}]}]),
        ),
        (
            "messages[0].tool_calls[0].function.name",
            json!([{"role": "assistant", "tool_calls": [{"id": "a"}]}]),
        ),
        (
            "messages[0].tool_calls[0].function.name",
            json!([{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]),
        ),
        (
            "messages[0].tool_calls[0].name",
            json!([{"role": "assistant", "tool_calls": [{"name": ""}]}]),
        ),
        (
            "messages[0].tool_calls[0].type",
            json!([{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f", "input": ""}}]}]),
        ),
        (
            "messages[0].refusal",
            json!([{"role": "assistant", "refusal": 5}]),
        ),
        (
            "messages[0].function_call",
            json!([{"role": "assistant", "content": "", "function_call": {"name": "f"}}]),
        ),
        (
            "messages[0].tool_call_id",
            json!([{"role": "tool", "content": "", "tool_call_id": 5}]),
        ),
    ];
    for (param, messages) in cases {
        refused(
            &server,
            "/v1/chat/completions",
            &json!({ "messages": messages }),
            param,
        )
        .await;
    }
    refused(
        &server,
        "/v1/chat/completions",
        &json!({"model": "tgi"}),
        "messages",
    )
    .await;
}

#[tokio::test]
async fn keys_of_a_logit_bias_are_named() {
    let server = server().await;
    let body = chat("Hi", json!({"logit_bias": {"a": 1}}));
    let (status, answer) = server.ask("/v1/chat/completions", &body).await;
    assert_eq!((status, &answer["error_type"]), (422, &json!("validation")));
    let param = answer["error"]["param"].as_str().expect("a field");
    assert!(param.starts_with("logit_bias"), "{param}");
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("the key `a` is not a token id"),
        "{message}"
    );
}

#[tokio::test]
async fn more_than_can_ever_run_is_no_overload() {
    let server = Server::with_flags(&["--max-concurrent-requests=1"]).await;
    for (param, body) in [
        ("prompt", json!({"prompt": ["a", "b"]})),
        ("n", json!({"prompt": "a", "n": 2})),
        ("best_of", json!({"prompt": "a", "best_of": 3})),
    ] {
        refused(&server, "/v1/completions", &body, param).await;
    }
    let (_, answer) = server
        .ask("/v1/completions", &completion(json!(["a", "b"]), json!({})))
        .await;
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.contains("`--max-concurrent-requests`"), "{message}");
    let alone = completion("a!", json!({}));
    assert_eq!(server.ask("/v1/completions", &alone).await.0, 200);
}

#[tokio::test]
async fn best_of_has_the_limit_and_the_words_of_tgi() {
    let server = Server::with_flags(&["--max-best-of=3"]).await;
    let expected = "Input validation error: `best_of` must be > 0 and <= 3. Given: 4";
    let parameters = json!({"best_of": 4, "do_sample": true});
    let body = json!({"inputs": "a", "parameters": parameters});
    let (_, answer) = server.ask("/generate", &body).await;
    assert_eq!(answer["error"], expected);
    let body = completion("a", json!({"best_of": 4}));
    let (_, answer) = server.ask("/v1/completions", &body).await;
    assert_eq!(answer["error"]["message"], expected);
}

/// Agents know by these words that they have to shorten the conversation.
#[tokio::test]
async fn a_full_context_is_told_in_the_words_that_clients_look_for() {
    let server = server().await;
    let long = "x".repeat(1100);
    for (path, body, param, limit) in [
        (
            "/v1/chat/completions",
            chat(&long, json!({"max_tokens": 5})),
            "messages",
            "max_tokens",
        ),
        (
            "/v1/chat/completions",
            chat(&long, json!({"max_completion_tokens": 5, "stream": true})),
            "messages",
            "max_completion_tokens",
        ),
        (
            "/v1/completions",
            completion(long.as_str(), json!({"max_tokens": 5})),
            "prompt",
            "max_tokens",
        ),
        (
            "/v1/responses",
            json!({"input": long, "max_output_tokens": 5}),
            "input",
            "max_output_tokens",
        ),
    ] {
        let (status, answer) = server.ask(path, &body).await;
        let error = &answer["error"];
        assert_eq!(
            (status, &error["code"], &error["type"], &error["param"]),
            (
                400,
                &json!("context_length_exceeded"),
                &json!("invalid_request_error"),
                &json!(param)
            ),
            "{path}"
        );
        let message = error["message"].as_str().expect("a message");
        assert!(
            message.starts_with("This model's maximum context length is 1024 tokens"),
            "{message}"
        );
        assert!(
            message.contains(&format!("5 as `{limit}`")) && message.contains(param),
            "{message}"
        );
    }
    // Tools are in the prompt too, and often the larger part of it.
    let tool = json!({"type": "function", "name": "f", "description": long});
    let tools = |tool: Value| json!({"tools": [tool]});
    for (path, body, prompt) in [
        (
            "/v1/chat/completions",
            chat("Hi", tools(json!({"type": "function", "function": tool}))),
            "`messages` and `tools`",
        ),
        (
            "/v1/responses",
            with(json!({"input": "Hi"}), tools(tool.clone())),
            "`input` and `tools`",
        ),
    ] {
        let (status, answer) = server.ask(path, &body).await;
        assert_eq!(status, 400, "{path}: {answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        let advice = format!("reduce the length of {prompt}.");
        assert!(message.contains(&advice), "{message}");
    }
    for (keys, param) in [
        (json!({"max_tokens": 5000}), "max_tokens"),
        (json!({"max_tokens": 5000, "n": 2}), "max_tokens"),
        (
            json!({"max_completion_tokens": 5000}),
            "max_completion_tokens",
        ),
        (json!({"max_tokens": 1_u64 << 40}), "max_tokens"),
        (
            json!({"max_completion_tokens": u64::MAX}),
            "max_completion_tokens",
        ),
        (
            json!({"max_tokens": 1024, "truncate_prompt_tokens": -1}),
            "max_tokens",
        ),
    ] {
        let (status, answer) = server.ask("/v1/chat/completions", &chat("Hi", keys)).await;
        let error = &answer["error"];
        assert_eq!(
            (status, &error["code"], &error["param"]),
            (400, &json!("context_length_exceeded"), &json!(param))
        );
    }
    let keys = json!({"max_tokens": 1024, "truncate_prompt_tokens": -1});
    let (_, answer) = server.ask("/v1/chat/completions", &chat("Hi", keys)).await;
    assert_eq!(
        answer["error"]["message"],
        "This model's maximum context length is 1024 tokens. However, you requested 1024 as `max_tokens`, which leaves no \
         room for `messages`. Please reduce `max_tokens`."
    );
    // Without a limit of the client's own, and of a text that is not tokenised: no token has more than five bytes.
    for (prompt, tokens) in [(long, "1100"), ("x".repeat(100_000), "at least 20000")] {
        let body = completion(prompt.as_str(), json!({}));
        let (status, answer) = server.ask("/v1/completions", &body).await;
        assert_eq!(status, 400);
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(
            message.contains("maximum context length is 1024 tokens, of which at most 1023"),
            "{message}"
        );
        assert!(
            message.contains(&format!("resulted in {tokens} tokens")),
            "{message}"
        );
    }
    // TGI's own words stay on its routes.
    let body = json!({"inputs": "x".repeat(1100), "parameters": {"max_new_tokens": 5}});
    let (status, answer) = server.ask("/generate", &body).await;
    assert_eq!(
        (status, answer["error"].as_str().expect("a text")),
        (
            422,
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 1024. Given: 1100 `inputs` tokens and 5 \
             `max_new_tokens`"
        )
    );
}

#[tokio::test]
async fn completions_are_checked() {
    let server = Server::start().await;
    let cases = [
        ("prompt", json!({"prompt": []})),
        ("prompt", json!({"prompt": ""})),
        ("prompt", json!({"prompt": [[]]})),
        ("prompt", json!({"prompt": ["a", 5]})),
        ("prompt", json!({"prompt": [-1]})),
        ("prompt", json!({"prompt": [99999]})),
        ("prompt", json!({"prompt": [99999], "echo": true})),
        ("prompt", json!({"prompt": {"text": "a"}})),
        ("prompt", json!({"max_tokens": 1})),
        ("max_tokens", json!({"prompt": "a", "max_tokens": 0})),
        (
            "max_tokens",
            json!({"prompt": "a", "max_tokens": 0, "echo": true, "stream": true}),
        ),
        ("logprobs", json!({"prompt": "a", "logprobs": 21})),
        ("best_of", json!({"prompt": "a", "best_of": 3})),
        ("best_of", json!({"prompt": "a", "n": 2, "best_of": 1})),
        (
            "best_of",
            json!({"prompt": "a", "best_of": 2, "stream": true}),
        ),
        ("n", json!({"prompt": ["a", "b"], "n": 65})),
        ("grammar", json!({"prompt": "a", "grammar": "root ::= x"})),
    ];
    for (param, body) in cases {
        refused(&server, "/v1/completions", &body, param).await;
    }
    let (status, answer) = server
        .ask("/v1/completions", &completion("a", json!({"suffix": "b"})))
        .await;
    assert_eq!(
        (status, &answer["error_type"]),
        (422, &json!("suffix not supported"))
    );
    let (status, answer) = server
        .ask(
            "/v1/completions",
            &completion(json!(vec!["a"; 33]), json!({})),
        )
        .await;
    assert_eq!(
        (status, &answer["error_type"]),
        (422, &json!("batch size exceeded"))
    );
}
