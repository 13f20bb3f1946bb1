//! Beam search in the words of vLLM, and in those of TGI's routes. The mock's likeliest token is the next letter; each of
//! those behind it in the alphabet is less likely by one.

use super::*;

fn searching(keys: Value) -> Value {
    let search = json!({"max_tokens": 3, "n": 2, "use_beam_search": true});
    with(search, keys)
}

fn texts(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().expect("choices");
    let texts = choices.iter().map(|choice| choice["text"].as_str());
    texts.map(|text| text.expect("a text")).collect()
}

#[tokio::test]
async fn the_most_probable_texts_come_back_the_best_first() {
    let server = server().await;
    let neutral = json!({"temperature": 0, "top_p": 1, "top_k": -1, "repetition_penalty": 1.0});
    for keys in [
        json!({}),
        neutral,
        json!({"temperature": 1, "length_penalty": 1}),
    ] {
        let asked = completion("Hi", searching(keys));
        let answer = ask_completion(&server, &asked).await;
        assert_eq!(texts(&answer)[0], "abc");
        let scores = [0, 1].map(|n| answer["choices"][n]["beam_score"].as_f64());
        assert_eq!(scores[0], Some(-0.5));
        assert!(scores[1].is_some_and(|score| (score + 2.5 / 3.0).abs() < 1e-6));
        assert_eq!(answer["usage"]["prompt_tokens"], 2);
        assert_eq!(answer["usage"]["completion_tokens"], 6);
    }
    let answer = ask_chat(&server, &chat("Hi", searching(json!({"logprobs": true})))).await;
    assert_eq!(contents(&answer)[0], "abc");
    assert_eq!(answer["choices"][0]["beam_score"], -0.5);
    let logprobs = &answer["choices"][0]["logprobs"]["content"];
    assert_eq!(logprobs[2]["logprob"], -0.5);
    let plain = ask_completion(&server, &completion("Hi", json!({"max_tokens": 3}))).await;
    assert!(plain["choices"][0].get("beam_score").is_none());
}

#[tokio::test]
async fn there_may_be_more_beams_than_choices_and_several_prompts() {
    let server = server().await;
    let keys = searching(json!({"n": 1, "best_of": 4}));
    let answer = ask_completion(&server, &completion(json!(["Hi", "You"]), keys)).await;
    assert_eq!(texts(&answer), ["abc", "abc"]);
    let keys = searching(json!({"length_penalty": 0.0, "early_stopping": "never"}));
    let answer = ask_completion(&server, &completion("Hi", keys)).await;
    assert_eq!(answer["choices"][0]["beam_score"], -1.5);
}

#[tokio::test]
async fn a_stream_brings_whole_texts_at_the_end() {
    let server = server().await;
    let body = completion("Hi", searching(json!({})));
    let events = events(&server, "/v1/completions", &body).await;
    let text = |index: u64| -> String {
        let choices = events.iter().filter_map(|event| event["choices"].get(0));
        let own = choices.filter(|choice| choice["index"] == index);
        own.filter_map(|choice| choice["text"].as_str()).collect()
    };
    let whole = ask_completion(&server, &body).await;
    assert_eq!([text(0).as_str(), text(1).as_str()], texts(&whole)[..]);
}

#[tokio::test]
async fn what_a_search_does_not_do_is_named() {
    let server = server().await;
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let regex = json!({"regex": "a"});
    let cases = [
        ("temperature", json!({"temperature": 0.7})),
        ("top_p", json!({"top_p": 0.9})),
        ("top_k", json!({"top_k": 5})),
        ("min_p", json!({"min_p": 0.1})),
        ("typical_p", json!({"typical_p": 0.5})),
        ("seed", json!({"seed": 1})),
        ("repetition_penalty", json!({"repetition_penalty": 1.1})),
        ("frequency_penalty", json!({"frequency_penalty": 0.1})),
        ("presence_penalty", json!({"presence_penalty": 0.1})),
        ("logit_bias", json!({"logit_bias": {"5": 1}})),
        ("bad_words", json!({"bad_words": ["a"]})),
        (
            "structured_outputs.regex",
            json!({"structured_outputs": regex}),
        ),
        (
            "response_format",
            json!({"response_format": {"type": "json_object"}}),
        ),
        (
            "prediction",
            json!({"prediction": {"type": "content", "content": "a"}}),
        ),
        ("tools", json!({"tools": tool, "tool_choice": "required"})),
        ("length_penalty", json!({"length_penalty": 11})),
        ("early_stopping", json!({"early_stopping": "maybe"})),
        ("early_stopping", json!({"early_stopping": 1})),
        ("n", json!({"n": 9})),
        (
            "length_penalty",
            json!({"use_beam_search": false, "length_penalty": 2.0}),
        ),
        (
            "early_stopping",
            json!({"use_beam_search": false, "early_stopping": true}),
        ),
    ];
    for (param, keys) in cases {
        let body = chat("Hi", searching(keys));
        let (status, answer) = server.ask("/v1/chat/completions", &body).await;
        assert_eq!(status, 422, "{param}: {answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
    }
    let healed = completion("Hi", searching(json!({"token_healing": true})));
    let (_, answer) = server.ask("/v1/completions", &healed).await;
    assert_eq!(answer["error"]["param"], "token_healing");
    let wide = completion("Hi", searching(json!({"best_of": 9})));
    let (_, answer) = server.ask("/v1/completions", &wide).await;
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.contains("`best_of` must be >= 1 and <= 8 (`--max-beam-width`). Given: 9"));
}

#[tokio::test]
async fn a_server_may_have_no_searches_or_small_ones() {
    for (flag, message) in [
        ("--max-beam-width=0", "beam search is switched off"),
        ("--max-beam-width=1", "`n` must be >= 1 and <= 1"),
        (
            "--prefix-caching=false",
            "beam search needs the prefix cache",
        ),
        ("--max-concurrent-requests=1", "`n` must be > 0 and <= 1"),
    ] {
        let server = Server::with_flags(&[flag]).await;
        let body = completion("Hi", searching(json!({})));
        let (status, answer) = server.ask("/v1/completions", &body).await;
        assert_eq!(status, 422, "{flag}: {answer}");
        assert!(answer.to_string().contains(message), "{flag}: {answer}");
    }
}

#[tokio::test]
async fn the_routes_of_tgi_have_a_width() {
    let server = server().await;
    let asked = |keys| {
        let search = json!({"max_new_tokens": 3, "beam_width": 3, "details": true});
        json!({"inputs": "Hi", "parameters": with(search, keys)})
    };
    let answer = server.good("/generate", &asked(json!({}))).await;
    assert_eq!(answer["generated_text"], "abc");
    assert_eq!(answer["details"]["beam_score"], -0.5);
    let others = answer["details"]["best_of_sequences"].as_array();
    assert_eq!(others.map(Vec::len), Some(2));
    for (field, keys) in [
        ("do_sample", json!({"do_sample": true})),
        ("temperature", json!({"temperature": 0.5})),
        ("best_of", json!({"best_of": 2})),
        ("watermark", json!({"watermark": true})),
        (
            "grammar",
            json!({"grammar": {"type": "regex", "value": "a"}}),
        ),
        (
            "length_penalty",
            json!({"beam_width": null, "length_penalty": 0.5}),
        ),
        (
            "early_stopping",
            json!({"beam_width": null, "early_stopping": true}),
        ),
        ("beam_width", json!({"beam_width": 0})),
    ] {
        let (status, answer) = server.ask("/generate", &asked(keys)).await;
        let message = answer["error"].as_str().expect("a message");
        assert_eq!(status, 422, "{message}");
        assert!(message.contains(&format!("error: `{field}`")), "{message}");
    }
    let response = server
        .post_json("/generate_stream", &asked(json!({})))
        .await;
    let text = response.text().await.expect("a body");
    let last = text
        .trim_end()
        .lines()
        .last()
        .and_then(|line| line.strip_prefix("data:"));
    let last: Value = serde_json::from_str(last.expect("an event")).expect("JSON");
    assert_eq!(last["generated_text"], "abc");
    assert_eq!(last["details"]["beam_score"], -0.5);
}
