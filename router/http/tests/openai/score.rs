//! `/v1/score`. Every token of a prompt has the log-probability -1 in the mock.

use super::*;

async fn ask(server: &Server, body: Value) -> Value {
    server.good("/v1/score", &body).await
}

/// Score, mean and number of tokens of each choice.
fn scores(answer: &Value) -> Vec<(f64, f64, u64)> {
    let data = answer["data"].as_array().expect("scores");
    let number = |value: &Value| value.as_f64().expect("a number");
    data.iter()
        .enumerate()
        .map(|(index, each)| {
            assert_eq!(each["index"], index);
            let tokens = each["tokens"].as_u64().expect("a number");
            (
                number(&each["score"]),
                number(&each["mean_logprob"]),
                tokens,
            )
        })
        .collect()
}

#[tokio::test]
async fn each_choice_has_its_score_in_order() {
    let server = server().await;
    let body = json!({"prompt": "Hi", "choices": ["a", "bcd", "ab"]});
    let answer = ask(&server, body).await;
    assert_eq!(
        scores(&answer),
        [(-1.0, -1.0, 1), (-3.0, -1.0, 3), (-2.0, -1.0, 2)]
    );
    assert_eq!(answer["object"], "list");
    assert_eq!(answer["model"], "test/model");
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 12, "completion_tokens": 0, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 0}})
    );
    let ids = |text: &str| -> Vec<u32> { text.bytes().map(|b| BYTES + u32::from(b)).collect() };
    let body = json!({"prompt": ids("Hi"), "choices": [ids("a"), ids("bcd"), ids("ab")]});
    assert_eq!(ask(&server, body).await["data"], answer["data"]);
    server.idle().await;
}

#[tokio::test]
async fn the_prompt_is_computed_once() {
    let server = server().await;
    let prompt = "x".repeat(200);
    let body = json!({"prompt": prompt, "choices": ["a", "bc", "d"]});
    let answer = ask(&server, body).await;
    assert_eq!(
        scores(&answer),
        [(-1.0, -1.0, 1), (-2.0, -1.0, 2), (-1.0, -1.0, 1)]
    );
    // The last token of the prompt predicts the first of a choice, and is computed for each.
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(*cached, 2 * 199);
    // A later request finds all of it.
    let answer = ask(&server, json!({"prompt": prompt, "choices": ["e"]})).await;
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(*cached, 199);
    assert_eq!(scores(&answer), [(-1.0, -1.0, 1)]);
    server.idle().await;
}

#[tokio::test]
async fn what_cannot_be_scored_is_refused_by_name() {
    let server = server().await;
    let many = vec!["a"; 33];
    for (body, param) in [
        (json!({"prompt": "Hi", "choices": []}), "choices"),
        (json!({"prompt": "Hi", "choices": many}), "choices"),
        (json!({"prompt": "Hi", "choices": ["a", ""]}), "choices[1]"),
        (json!({"prompt": "Hi", "choices": [[100]]}), "choices"),
        (json!({"prompt": [100], "choices": ["a"]}), "choices"),
        (json!({"prompt": [100], "choices": [[99_999]]}), "choices"),
        (json!({"prompt": [99_999], "choices": [[100]]}), "prompt"),
        (
            json!({"prompt": "Hi", "choices": ["a", "x".repeat(1500)]}),
            "choices[1]",
        ),
        (json!({"prompt": "", "choices": ["a"]}), "prompt"),
        (
            json!({"prompt": "x".repeat(2000), "choices": ["a"]}),
            "prompt",
        ),
        (json!({"prompt": "Hi"}), "choices"),
        (json!({"choices": ["a"]}), "prompt"),
        (
            json!({"prompt": "Hi", "choices": ["a"], "text_1": "b"}),
            "text_1",
        ),
    ] {
        let (status, answer) = server.ask("/v1/score", &body).await;
        assert!((400..500).contains(&status), "{answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
    }
    server.idle().await;
}
