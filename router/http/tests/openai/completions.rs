//! Whole answers of `/v1/completions`.

use super::*;

/// The texts of all choices.
fn texts(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().expect("choices");
    choices
        .iter()
        .map(|choice| choice["text"].as_str().unwrap_or("no text"))
        .collect()
}

#[tokio::test]
async fn the_answer_has_the_keys_of_the_api() {
    let server = Server::start().await;
    let answer = ask_completion(&server, &completion("Hi", json!({"max_tokens": 3}))).await;
    insta::assert_snapshot!(redacted(&answer), @r#"{"object":"text_completion","id":"cmpl","created":0,"model":"test/model","system_fingerprint":"0.1.0-native","choices":[{"index":0,"text":"abc","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}}"#);
}

#[tokio::test]
async fn prompts_are_texts_or_token_ids_one_or_several() {
    let server = Server::with_template(PLAIN, repeating(), &[]).await;
    let id = |byte: u8| BYTES + u32::from(byte);
    for (prompt, expected) in [
        (json!("Hi"), vec!["Hi"]),
        (json!(["Hi", "you"]), vec!["Hi", "you"]),
        (json!([id(b'H'), id(b'i')]), vec!["Hi"]),
        (json!([[id(b'H')], [id(b'y'), id(b'o')]]), vec!["H", "yo"]),
    ] {
        let answer = ask_completion(&server, &completion(prompt, json!({}))).await;
        assert_eq!(texts(&answer), expected);
        let tokens: usize = expected.iter().map(|text| text.len()).sum();
        assert_eq!(answer["usage"]["prompt_tokens"], tokens);
    }
}

#[tokio::test]
async fn choices_are_in_the_order_of_the_prompts() {
    let server = Server::with_template(PLAIN, repeating(), &[]).await;
    let body = completion(json!(["one", "two"]), json!({"n": 2, "temperature": 0.5}));
    let answer = ask_completion(&server, &body).await;
    assert_eq!(texts(&answer), ["one", "one", "two", "two"]);
    assert_eq!(answer["choices"][3]["index"], 3);
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 6, "completion_tokens": 16, "total_tokens": 22, "prompt_tokens_details": {"cached_tokens": 0}})
    );
}

/// What clients send that batch by themselves: LangChain up to 20.
#[tokio::test]
async fn twenty_prompts_are_no_more_than_usual() {
    let server = Server::start().await;
    let body = completion(json!(vec!["Hi!"; 20]), json!({}));
    let answer = ask_completion(&server, &body).await;
    assert_eq!(texts(&answer), ["abc"; 20]);
    server.idle().await;
}

#[tokio::test]
async fn twenty_alternatives_may_be_asked_for() {
    let server = server().await;
    let body = completion("Hi", json!({"logprobs": 20, "max_tokens": 1}));
    ask_completion(&server, &body).await;
    let keys = json!({"logprobs": true, "top_logprobs": 20, "max_completion_tokens": 1});
    ask_chat(&server, &chat("Hi", keys)).await;
    let parameters = json!({"top_n_tokens": 6});
    let body = json!({"inputs": "Hi", "parameters": parameters});
    let (_, refused) = server.ask("/generate", &body).await;
    let expected = "Input validation error: `top_n_tokens` must be >= 0 and <= 5. Given: 6";
    assert_eq!(refused["error"], expected);
}

#[tokio::test]
async fn the_prompt_is_echoed_when_asked_for() {
    let server = Server::start().await;
    for prompt in [json!("Hi "), json!([75, 108, 35])] {
        let answer = ask_completion(
            &server,
            &completion(prompt, json!({"echo": true, "max_tokens": 2})),
        )
        .await;
        assert_eq!(texts(&answer), ["Hi ab"]);
    }
}

#[tokio::test]
async fn logprobs_are_lists_of_one_length() {
    let server = Server::start().await;
    let answer = ask_completion(
        &server,
        &completion("Hi", json!({"logprobs": 1, "max_tokens": 2})),
    )
    .await;
    let expected = json!({
        "tokens": ["a", "b"], "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"a": -0.5}, {"b": -0.5}], "text_offset": [0, 1]
    });
    assert_eq!(answer["choices"][0]["logprobs"], expected);
    let answer = ask_completion(
        &server,
        &completion("Hi", json!({"logprobs": 0, "max_tokens": 1})),
    )
    .await;
    assert!(answer["choices"][0]["logprobs"]["top_logprobs"].is_null());
}

#[tokio::test]
async fn logprobs_of_an_echoed_prompt_need_no_flag() {
    let body = completion("Hi", json!({"logprobs": 1, "echo": true, "max_tokens": 1}));
    let server = Server::start().await;
    let expected = json!({
        "tokens": ["H", "i", "a"], "token_logprobs": [null, -1.0, -0.5],
        "top_logprobs": [null, {"i": -1.0}, {"a": -0.5}], "text_offset": [0, 1, 2]
    });
    let answer = ask_completion(&server, &body).await;
    assert_eq!(answer["choices"][0]["logprobs"], expected);
    assert_eq!(answer["choices"][0]["text"], "Hia");
    // In a stream the prompt has an event of its own.
    let events = events(&server, "/v1/completions", &body).await;
    assert_eq!(events[0]["choices"][0]["text"], "Hi");
    assert_eq!(
        events[0]["choices"][0]["logprobs"]["token_logprobs"],
        json!([null, -1.0])
    );
    assert_eq!(
        events[1]["choices"][0]["logprobs"]["text_offset"],
        json!([2])
    );
}

#[tokio::test]
async fn a_prompt_alone_can_be_scored() {
    let server = Server::start().await;
    let body = completion("Hi", json!({"logprobs": 0, "echo": true, "max_tokens": 0}));
    let answer = ask_completion(&server, &body).await;
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("Hi"), &json!("length"))
    );
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -1.0]));
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}})
    );
}

#[tokio::test]
async fn the_best_texts_are_returned_and_all_are_counted() {
    let server = Server::start().await;
    let body = completion("Hi", json!({"best_of": 2, "max_tokens": 3}));
    let answer = ask_completion(&server, &body).await;
    assert_eq!(texts(&answer), ["abc"]);
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    server.idle().await;
}

#[tokio::test]
async fn a_stop_string_is_cut_off() {
    let server = Server::start().await;
    let answer = ask_completion(&server, &completion("Hi", json!({"stop": "cd"}))).await;
    assert_eq!(texts(&answer), ["ab"]);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}
