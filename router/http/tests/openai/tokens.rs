//! Tokens by their ids, tokens that share a text, and how a text begins and ends: vLLM's fields.

use super::*;

/// Says single bytes of characters, of which alone nobody can tell one from another.
fn bytes() -> MockConfig {
    MockConfig {
        tokens: Arc::new(|row| BYTES + 0xf0 + row.generated),
        ..MockConfig::default()
    }
}

#[tokio::test]
async fn tokens_of_one_text_are_told_apart() {
    let server = Server::over(bytes(), &[], ServerLimits::default()).await;
    let body = completion("Hi", json!({"logprobs": 3, "max_tokens": 2}));
    let whole = ask_completion(&server, &body).await["choices"][0]["logprobs"].clone();
    assert_eq!(whole["tokens"], json!([r"bytes:\xf0", r"bytes:\xf1"]));
    let expected = json!({r"bytes:\xf0": -0.5, r"bytes:\xf1": -1.5, r"bytes:\xf2": -2.5});
    assert_eq!(whole["top_logprobs"][0], expected);
    for (token, top) in whole["tokens"]
        .as_array()
        .expect("a list")
        .iter()
        .zip(whole["top_logprobs"].as_array().expect("a list"))
    {
        // As lm-eval finds out whether a text is the greedy one.
        let top = top.as_object().expect("an object");
        let best = top
            .iter()
            .max_by(|a, b| a.1.as_f64().partial_cmp(&b.1.as_f64()).expect("numbers"));
        assert_eq!(best.map(|(name, _)| name.as_str()), token.as_str());
    }
    let events = events(&server, "/v1/completions", &body).await;
    assert_eq!(
        events[0]["choices"][0]["logprobs"]["tokens"],
        json!([r"bytes:\xf0"])
    );
    assert_eq!(
        events[0]["choices"][0]["logprobs"]["top_logprobs"][0],
        expected
    );
}

#[tokio::test]
async fn log_probabilities_name_tokens_by_their_ids() {
    let server = server().await;
    let named = json!({"return_tokens_as_token_ids": true, "max_tokens": 1});
    let body = with(
        completion("Hi", json!({"logprobs": 1, "echo": true})),
        named.clone(),
    );
    let answer = ask_completion(&server, &body).await;
    let list = &answer["choices"][0]["logprobs"];
    assert_eq!(
        list["tokens"],
        json!(["token_id:75", "token_id:108", "token_id:100"])
    );
    assert_eq!(list["top_logprobs"][2], json!({"token_id:100": -0.5}));
    assert_eq!(answer["choices"][0]["text"], "Hia");
    let body = chat(
        "Hi",
        with(named, json!({"logprobs": true, "top_logprobs": 1})),
    );
    let answer = ask_chat(&server, &body).await;
    let token = &answer["choices"][0]["logprobs"]["content"][0];
    assert_eq!(
        (&token["token"], &token["bytes"]),
        (&json!("token_id:100"), &json!([97]))
    );
    assert_eq!(token["top_logprobs"][0]["token"], "token_id:100");
    let events = events(&server, "/v1/chat/completions", &body).await;
    assert_eq!(
        events[1]["choices"][0]["logprobs"]["content"][0]["token"],
        "token_id:100"
    );
}

#[tokio::test]
async fn ids_of_prompts_and_answers_are_returned_where_they_are_asked_for() {
    let server = server().await;
    let wish = json!({"return_token_ids": true, "max_tokens": 3, "n": 2});
    let body = completion(json!(["Hi", "!"]), wish.clone());
    let answer = ask_completion(&server, &body).await;
    for (index, prompt) in [
        (0, json!([75, 108])),
        (1, json!([75, 108])),
        (2, json!([36])),
    ] {
        let choice = &answer["choices"][index];
        assert_eq!(choice["prompt_token_ids"], prompt);
        assert_eq!(choice["token_ids"], json!([100, 101, 102]));
    }
    let streamed = events(&server, "/v1/completions", &body).await;
    for index in 0..4 {
        let own = streamed.iter().map(|event| &event["choices"][0]);
        let own: Vec<&Value> = own.filter(|choice| choice["index"] == index).collect();
        let ids: Vec<&Value> = own.iter().map(|choice| &choice["token_ids"][0]).collect();
        assert_eq!(ids, [&json!(100), &json!(101), &json!(102)]);
        let prompts = own
            .iter()
            .map(|choice| choice["prompt_token_ids"].is_array());
        assert_eq!(prompts.collect::<Vec<_>>(), [true, false, false]);
    }
    let answer = ask_chat(&server, &chat("Hi", wish.clone())).await;
    let prompt = answer["prompt_token_ids"]
        .as_array()
        .expect("a list")
        .clone();
    let text = server.good("/detokenize", &json!({"ids": prompt})).await;
    assert!(text.to_string().contains("<user>Hi<answer>"), "{text}");
    assert_eq!(answer["choices"][1]["token_ids"], json!([100, 101, 102]));
    let streamed = events(&server, "/v1/chat/completions", &chat("Hi", wish)).await;
    assert_eq!(streamed[0]["prompt_token_ids"], json!(prompt));
    let of_first = streamed.iter().map(|event| &event["choices"][0]);
    let of_first = of_first.filter(|choice| choice["index"] == 0);
    let ids: Vec<&Value> = of_first
        .filter_map(|choice| choice["token_ids"].get(0))
        .collect();
    assert_eq!(ids, [&json!(100), &json!(101), &json!(102)]);
    // Nobody else gets them.
    let plain = ask_chat(&server, &chat("Hi", json!({"max_tokens": 1})))
        .await
        .to_string();
    assert!(!plain.contains("token_ids"), "{plain}");
}

#[tokio::test]
async fn every_token_of_a_chat_has_its_id_also_where_it_shows_nothing() {
    let server = Server::with_template(PLAIN, saying("é"), &[]).await;
    let body = chat("Hi", json!({"return_token_ids": true}));
    let streamed = events(&server, "/v1/chat/completions", &body).await;
    let ids = streamed
        .iter()
        .filter_map(|event| event["choices"][0]["token_ids"].get(0));
    let expected = [BYTES + 0xc3, BYTES + 0xa9, EOS].map(|id| json!(id));
    assert_eq!(ids.cloned().collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn prompts_are_cut_at_their_beginning() {
    let server = server().await;
    let keys = json!({"truncate_prompt_tokens": 2, "echo": true, "max_tokens": 1, "logprobs": 0});
    let body = completion("Hello", keys);
    let answer = ask_completion(&server, &body).await;
    assert_eq!(answer["choices"][0]["text"], "loa");
    assert_eq!(
        answer["choices"][0]["logprobs"]["tokens"],
        json!(["l", "o", "a"])
    );
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    // As many as there is room for.
    let long = "x".repeat(3000);
    let body = completion(
        long.as_str(),
        json!({"truncate_prompt_tokens": -1, "max_tokens": 5}),
    );
    assert!(ask_completion(&server, &body).await["usage"]["prompt_tokens"].as_u64() > Some(500));
    let body = chat(&long, json!({"truncate_prompt_tokens": 9, "max_tokens": 1}));
    assert_eq!(ask_chat(&server, &body).await["usage"]["prompt_tokens"], 9);
    let rendered = server.good("/v1/chat/completions/render", &body).await;
    assert_eq!(rendered["token_ids"].as_array().map(Vec::len), Some(9));
    let body = completion("Hello", json!({"truncate_prompt_tokens": 2}));
    let rendered = server.good("/v1/completions/render", &body).await;
    assert_eq!(rendered[0]["token_ids"].as_array().map(Vec::len), Some(2));
    for (wrong, field) in [
        (
            json!({"truncate_prompt_tokens": 0}),
            "truncate_prompt_tokens",
        ),
        (
            json!({"truncate_prompt_tokens": -2}),
            "truncate_prompt_tokens",
        ),
        (json!({"truncation_side": "right"}), "truncation_side"),
    ] {
        let (status, answer) = server
            .ask("/v1/completions", &completion("Hi", wrong))
            .await;
        assert!((400..500).contains(&status), "{answer}");
        assert_eq!(answer["error"]["param"], field, "{answer}");
    }
}

#[tokio::test]
async fn texts_end_as_they_are_asked_to() {
    let server = server().await;
    let text = async |keys: Value| {
        let keys = with(json!({"max_tokens": 6}), keys);
        let completion = ask_completion(&server, &completion("Hi", keys.clone())).await;
        let chat = ask_chat(&server, &chat("Hi", keys.clone())).await;
        let choice = &completion["choices"][0];
        assert_eq!(choice["text"], contents(&chat)[0], "{keys}");
        format!(
            "{} {}",
            choice["text"].as_str().expect("a text"),
            choice["finish_reason"]
        )
    };
    let c = 102;
    for (keys, expected) in [
        (json!({"stop": "cd"}), "ab \"stop\""),
        (
            json!({"stop": "cd", "include_stop_str_in_output": true}),
            "abcd \"stop\"",
        ),
        (json!({"stop": "cd", "min_tokens": 3}), "ab \"stop\""),
        (json!({"stop": "cd", "min_tokens": 4}), "abcdef \"length\""),
        (json!({"stop_token_ids": [c]}), "ab \"stop\""),
        (
            json!({"stop_token_ids": [c], "include_stop_str_in_output": true}),
            "abc \"stop\"",
        ),
        (
            json!({"stop_token_ids": [c], "min_tokens": 3}),
            "abcdef \"length\"",
        ),
        (json!({"bad_words": ["bc", "e"]}), "abddff \"length\""),
        (
            json!({"stop_token_ids": null, "bad_words": null, "skip_special_tokens": null}),
            "abcdef \"length\"",
        ),
    ] {
        assert_eq!(text(keys.clone()).await, expected, "{keys}");
    }
}

#[tokio::test]
async fn lists_of_tokens_and_words_are_checked() {
    let server = server().await;
    for (field, wrong) in [
        ("stop_token_ids", json!([99_999])),
        ("stop_token_ids", json!(vec![1; 1025])),
        ("stop_token_ids", json!("a")),
        ("bad_words", json!(["a", " "])),
        ("bad_words", json!(vec!["a"; 257])),
        ("bad_words", json!(["a".repeat(5000)])),
        ("bad_words", json!([1])),
    ] {
        let mut keys = json!({});
        keys[field] = wrong;
        for (path, body) in [
            ("/v1/completions", completion("Hi", keys.clone())),
            ("/v1/chat/completions", chat("Hi", keys.clone())),
            ("/generate", json!({"inputs": "Hi", "parameters": keys})),
        ] {
            let (status, answer) = server.ask(path, &body).await;
            assert!((400..500).contains(&status), "{answer}");
            assert!(answer.to_string().contains(field), "{answer}");
        }
    }
    let plain = Server::with_flags(&["--disable-grammar-support"]).await;
    let (status, answer) = plain
        .ask(
            "/v1/completions",
            &completion("Hi", json!({"bad_words": ["a"]})),
        )
        .await;
    assert!((400..500).contains(&status), "{answer}");
    assert_eq!(answer["error"]["param"], "bad_words");
}

#[tokio::test]
async fn special_tokens_are_shown_where_they_are_asked_for() {
    let model = MockConfig {
        tokens: Arc::new(|row| [100, 1, 101, EOS][row.generated.min(3) as usize]),
        ..MockConfig::default()
    };
    let server = Server::with_template(PLAIN, model, &[]).await;
    for (keys, expected) in [
        (json!({}), "ab"),
        (json!({"skip_special_tokens": false}), "a<s>b"),
        (
            json!({"skip_special_tokens": false, "include_stop_str_in_output": true}),
            "a<s>b</s>",
        ),
    ] {
        let answer = ask_completion(&server, &completion("Hi", keys.clone())).await;
        assert_eq!(answer["choices"][0]["text"], expected);
        let streamed = events(&server, "/v1/completions", &completion("Hi", keys.clone())).await;
        let texts = streamed
            .iter()
            .filter_map(|event| event["choices"][0]["text"].as_str());
        assert_eq!(texts.collect::<String>(), expected);
        let answer = ask_chat(&server, &chat("Hi", keys)).await;
        assert_eq!(contents(&answer), [expected]);
    }
}

#[tokio::test]
async fn reasoning_is_left_out_where_nobody_wants_it() {
    let server = Server::with_template(PLAIN, saying("<think>hm</think>So."), &[]).await;
    let keys = json!({"separate_reasoning": true, "include_reasoning": false});
    let answer = ask_chat(&server, &chat("Hi", keys.clone())).await;
    let expected = json!({"role": "assistant", "content": "So."});
    assert_eq!(answer["choices"][0]["message"], expected);
    let streamed = events(&server, "/v1/chat/completions", &chat("Hi", keys)).await;
    assert!(
        !json!(streamed).to_string().contains("reasoning"),
        "{streamed:?}"
    );
}
