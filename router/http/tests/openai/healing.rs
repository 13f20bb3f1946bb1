//! `token_healing`: the end of a prompt is generated again. The mock has the words ` w259` to ` w511`.

use super::*;

/// The mock takes the next token instead of one that it may not: behind ` w4` that is ` w400`.
fn healing(keys: Value) -> Value {
    let healed = json!({"max_tokens": 3, "token_healing": true});
    completion("Hi w4", with(healed, keys))
}

#[tokio::test]
async fn a_completion_goes_on_from_within_a_token() {
    let server = server().await;
    let answer = ask_completion(&server, &healing(json!({}))).await;
    assert_eq!(answer["choices"][0]["text"], "00bc");
    // Those that are generated again are none of the prompt's.
    assert_eq!(answer["usage"]["prompt_tokens"], 2);
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    let plain = ask_completion(&server, &healing(json!({"token_healing": false}))).await;
    assert_eq!(plain["choices"][0]["text"], "abc");
    assert_eq!(plain["usage"]["prompt_tokens"], 5);
    let ids: Vec<u32> = b"Hi w4".map(|byte| BYTES + u32::from(byte)).to_vec();
    let by_ids = ask_completion(&server, &healing(json!({"prompt": ids}))).await;
    assert_eq!(by_ids["choices"], answer["choices"]);
}

#[tokio::test]
async fn log_probabilities_have_whole_tokens_at_their_places() {
    let server = server().await;
    let asked = |keys| healing(with(json!({"logprobs": 0, "return_token_ids": true}), keys));
    let answer = ask_completion(&server, &asked(json!({}))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["logprobs"]["tokens"], json!([" w400", "b", "c"]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 2, 3]));
    assert_eq!(choice["prompt_token_ids"].as_array().map(Vec::len), Some(2));
    for keys in [
        json!({}),
        json!({"truncate_prompt_tokens": 4}),
        json!({"prompt": b"Hi w4".map(|byte| BYTES + u32::from(byte))}),
    ] {
        let keys = with(keys, json!({"echo": true}));
        let answer = ask_completion(&server, &asked(keys)).await;
        let choice = &answer["choices"][0];
        let text = choice["text"].as_str().expect("a text");
        assert!(text == "Hi w400bc" || text == "i w400bc", "{text}");
        let tokens = choice["logprobs"]["tokens"].as_array().expect("tokens");
        let joined: String = tokens.iter().filter_map(Value::as_str).collect();
        assert_eq!(joined, text);
        let offsets = choice["logprobs"]["text_offset"]
            .as_array()
            .expect("offsets");
        for (token, offset) in tokens.iter().zip(offsets) {
            let from = offset.as_u64().expect("a number") as usize;
            assert!(text[from..].starts_with(token.as_str().expect("a text")));
        }
    }
    // A prompt that is only scored is scored as a whole.
    let scored = ask_completion(&server, &asked(json!({"echo": true, "max_tokens": 0}))).await;
    assert_eq!(scored["choices"][0]["text"], "Hi w4");
    assert_eq!(scored["usage"]["prompt_tokens"], 5);
}

#[tokio::test]
async fn streams_have_the_text_behind_the_prompt() {
    let server = server().await;
    let text = |events: String| -> String {
        let data = events.lines().filter_map(|line| line.strip_prefix("data:"));
        let values = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        values
            .filter_map(|value| {
                let text = &value["choices"][0]["text"];
                text.as_str().map(str::to_owned)
            })
            .collect()
    };
    for (keys, expected) in [(json!({}), "00bc"), (json!({"echo": true}), "Hi w400bc")] {
        let body = healing(with(keys, json!({"stream": true})));
        let answer = server.post_json("/v1/completions", &body).await;
        assert_eq!(text(answer.text().await.expect("events")), expected);
    }
}

#[tokio::test]
async fn tgis_routes_heal_too() {
    let server = server().await;
    let asked = |keys| {
        let parameters = json!({"max_new_tokens": 3, "token_healing": true, "details": true});
        json!({"inputs": "Hi w4", "parameters": with(parameters, keys)})
    };
    let answer = server.good("/generate", &asked(json!({}))).await;
    assert_eq!(answer["generated_text"], "00bc");
    let details = &answer["details"];
    assert_eq!(details["generated_tokens"], 3);
    assert_eq!(details["tokens"][0]["text"], "00");
    let full =
        asked(json!({"return_full_text": true, "grammar": {"type": "regex", "value": "[0-9]+x"}}));
    let full = server.good("/generate", &full).await;
    let text = full["generated_text"].as_str().expect("a text");
    assert!(
        text.starts_with("Hi w4") && text[5..].starts_with(char::is_numeric),
        "{text}"
    );
}

#[tokio::test]
async fn it_needs_masks_and_a_prompt_that_clients_end() {
    let plain = Server::with_flags(&["--disable-grammar-support"]).await;
    let (status, answer) = plain.ask("/v1/completions", &healing(json!({}))).await;
    assert_eq!(status, 422, "{answer}");
    assert_eq!(answer["error"]["param"], "token_healing");
    let server = server().await;
    let (status, answer) = server
        .ask(
            "/v1/chat/completions",
            &chat("Hi", json!({"token_healing": true})),
        )
        .await;
    assert_eq!(status, 422, "{answer}");
    assert_eq!(answer["error"]["param"], "token_healing");
}
