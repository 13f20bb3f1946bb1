//! `prediction` of chats and `/generate`, before shards that draft and before some that do not.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use std::sync::Arc;

use common::{Server, log, saying, with};
use serde_json::{Value, json};
use text_generation_mock_shard::MockConfig;

const CHATS: &str = "/v1/chat/completions";
const ANSWER: &str = "class Account:\n    pass\n\n\nclass Accounts:\n    pass\n";
const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

/// It drafts nothing right by itself.
async fn drafting() -> Server {
    let model = MockConfig {
        widths: vec![2, 4],
        drafts: Arc::new(|_, _| 0),
        ..saying(ANSWER)
    };
    Server::with_template(TEMPLATE, model, &[]).await
}

fn chat(prediction: &Value) -> Value {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    json!({"messages": messages, "prediction": prediction})
}

fn content(text: &str) -> Value {
    json!({"type": "content", "content": text})
}

/// Accepted and rejected, as a usage says.
fn counts(usage: &Value) -> (u64, u64) {
    let details = &usage["completion_tokens_details"];
    let number = |key: &str| details[key].as_u64().expect(key);
    (
        number("accepted_prediction_tokens"),
        number("rejected_prediction_tokens"),
    )
}

#[tokio::test]
async fn usage_says_how_much_of_a_prediction_an_answer_has() {
    log::keep();
    let server = drafting().await;
    let plain = server.good(CHATS, &chat(&Value::Null)).await;
    assert_eq!(plain["usage"]["completion_tokens_details"], Value::Null);
    let text = &plain["choices"][0]["message"]["content"];
    assert_eq!(text, ANSWER);
    let plain_steps = server.mock.steps().len();
    log::take();

    let length = ANSWER.len() as u64;
    let answer = server.good(CHATS, &chat(&content(ANSWER))).await;
    assert_eq!(&answer["choices"][0]["message"]["content"], text);
    assert_eq!(counts(&answer["usage"]), (length, 0));
    let spent = &plain["usage"]["completion_tokens"];
    assert_eq!(&answer["usage"]["completion_tokens"], spent);
    let steps = server.mock.steps().len() - plain_steps;
    assert!(steps < plain_steps / 2, "{steps} and {plain_steps}");
    let line = log::take();
    assert!(
        line.contains(" drafted_tokens=") && line.contains(" accepted_draft_tokens="),
        "{line}"
    );

    // Parts of a text, in a stream, of two choices.
    let (begin, end) = ANSWER.split_at(9);
    let part = |text: &str| json!({"type": "text", "text": text});
    let parts = json!({"type": "content", "content": [part(begin), part(end), part("# the end")]});
    let keys = json!({"n": 2, "stream": true, "stream_options": {"include_usage": true}});
    let response = server.post_json(CHATS, &with(chat(&parts), keys)).await;
    let events = response.text().await.expect("a body");
    let last = events
        .lines()
        .rfind(|line| line.contains("prompt_tokens"))
        .expect("the usage");
    let last: Value = serde_json::from_str(&last["data: ".len()..]).expect("JSON");
    assert_eq!(counts(&last["usage"]), (2 * length, 18));

    let wrong = server.good(CHATS, &chat(&content("nothing of it"))).await;
    assert_eq!(&wrong["choices"][0]["message"]["content"], text);
    assert_eq!(counts(&wrong["usage"]), (0, 13));
}

#[tokio::test]
async fn tgis_route_takes_a_text_or_token_ids() {
    let server = drafting().await;
    let ask = async |prediction: Value| {
        let parameters = json!({"max_new_tokens": 20, "details": true, "prediction": prediction});
        let body = json!({"inputs": "Hi", "parameters": parameters});
        let before = server.mock.steps().len();
        let answer = server.good("/generate", &body).await;
        (answer, server.mock.steps().len() - before)
    };
    let (plain, steps) = ask(Value::Null).await;
    let ids = plain["details"]["tokens"].as_array().expect("tokens");
    let ids: Vec<&Value> = ids.iter().map(|token| &token["id"]).collect();
    let floats = ids.iter().map(|id| id.as_f64()).collect::<Vec<_>>();
    for prediction in [json!(ANSWER), json!(ids), json!(floats)] {
        let (answer, fewer) = ask(prediction).await;
        assert_eq!(answer["generated_text"], plain["generated_text"]);
        assert!(fewer < steps, "{fewer} and {steps}");
    }
}

#[tokio::test]
async fn tgis_route_refuses_what_is_neither_by_name() {
    let server = drafting().await;
    for (body, expected) in [
        (
            json!({"inputs": "Hi", "parameters": {"prediction": [1, 1.5]}}),
            "`parameters.prediction[1]` must be a whole number from 0 to 4294967295 (given: 1.5)",
        ),
        (
            json!({"inputs": "Hi", "parameters": {"prediction": 3}}),
            "`parameters.prediction` must be a string or a list of token ids (given: 3)",
        ),
        (
            json!({"inputs": "Hi", "prediction": "abc", "parameters": {}}),
            "`prediction`: it belongs inside `parameters`",
        ),
    ] {
        let (status, answer) = server.ask("/generate", &body).await;
        assert_eq!(status, 422, "{answer}");
        let message = answer["error"].as_str().expect("a message");
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_draft_ignores_predictions() {
    let server = Server::with_template(TEMPLATE, saying(ANSWER), &[]).await;
    let longer = "x".repeat(5000);
    let answer = server.good(CHATS, &chat(&content(&longer))).await;
    assert_eq!(answer["choices"][0]["message"]["content"], ANSWER);
    assert_eq!(answer["usage"]["completion_tokens_details"], Value::Null);
    assert!(server.mock.steps().iter().all(|step| step.hints == 0));
    let info = common::answer(server.get("/info").send().await.expect("an answer")).await;
    assert_eq!(
        (&info.1["speculate"], &info.1["speculation"]),
        (&json!(0), &Value::Null)
    );
}

#[tokio::test]
async fn info_says_how_drafts_are_made() {
    let server = drafting().await;
    let info = common::answer(server.get("/info").send().await.expect("an answer")).await;
    assert_eq!(info.1["speculate"], 3);
    assert_eq!(
        info.1["speculation"],
        json!({"method": "ngram", "widths": [2, 4], "answer_index_mib": 0})
    );
    let model = MockConfig {
        widths: vec![2, 4],
        ..saying(ANSWER)
    };
    let server = Server::with_template(TEMPLATE, model, &["--answer-index-mib", "3"]).await;
    let info = common::answer(server.get("/info").send().await.expect("an answer")).await;
    assert_eq!(
        info.1["speculation"],
        json!({"method": "suffix", "widths": [2, 4], "answer_index_mib": 3})
    );
}

#[tokio::test]
async fn predictions_of_another_form_or_length_are_refused_by_name() {
    let server = drafting().await;
    for (prediction, expected) in [
        (json!("text"), "`prediction`"),
        (json!({"content": "a"}), "type"),
        (
            json!({"type": "tool", "content": "a"}),
            "`prediction.type` must be \"content\". Given: \"tool\"",
        ),
        (
            json!({"type": "content", "content": 3}),
            "`prediction.content` must be a string or a list of parts of the type `text`",
        ),
        (
            json!({"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "image", "text": "b"}]}),
            "`prediction.content[1].type` must be \"text\". Given: \"image\"",
        ),
        (
            content(&"x".repeat(5000)),
            "`prediction` must have at most 1023 tokens, as a prompt. Given: at least 5000",
        ),
    ] {
        let (status, answer) = server.ask(CHATS, &chat(&prediction)).await;
        assert_eq!(status, 422, "{answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains(expected), "{message}");
        let param = answer["error"]["param"].as_str().expect("a field");
        assert!(param.starts_with("prediction"), "{answer}");
    }
}
