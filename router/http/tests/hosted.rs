//! The routes that hosting platforms call: SageMaker's `/invocations` and Vertex AI's `/vertex`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use common::{Server, header};
use serde_json::{Value, json};

#[tokio::test]
async fn invocations_with_inputs_are_requests_to_the_root() {
    let server = Server::start().await;
    let mut body = json!({"inputs": "Hi!", "parameters": {"details": true}});
    let (status, answer) = server.ask("/invocations", &body).await;
    assert_eq!(status, 200);
    assert_eq!(answer, server.ask("/", &body).await.1);
    assert_eq!(answer[0]["generated_text"], "Hi!abc");

    body["stream"] = json!(true);
    let response = server.post_json("/invocations", &body).await;
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    let text = response.text().await.expect("a body");
    assert!(text.contains(r#""generated_text":"Hi!abc""#), "{text}");
}

#[tokio::test]
async fn invocations_with_messages_or_a_prompt_are_requests_to_the_openai_routes() {
    let server = Server::that_chats().await;
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3});
    let (status, answer) = server.ask("/invocations", &chat).await;
    assert_eq!(
        (status, &answer["object"]),
        (200, &json!("chat.completion"))
    );
    assert_eq!(answer["choices"][0]["message"]["content"], "abc");
    let completion = json!({"prompt": "Hi", "max_tokens": 2, "stream": true});
    let response = server.post_json("/invocations", &completion).await;
    let text = response.text().await.expect("a body");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let (status, error) = server.ask("/invocations", &json!({"messages": []})).await;
    assert_eq!((status, &error["error_type"]), (422, &json!("validation")));
    assert!(
        error["error"].is_string(),
        "the shape is that of TGI: {error}"
    );
}

#[tokio::test]
async fn invocations_say_what_a_body_lacks() {
    let server = Server::start().await;
    for body in [json!({}), json!({"inputs": null}), json!({"text": "Hi"})] {
        let (status, answer) = server.ask("/invocations", &body).await;
        assert_eq!((status, &answer["error_type"]), (422, &json!("validation")));
        let message = answer["error"].as_str().expect("a message");
        for key in ["`inputs`", "`messages`", "`prompt`"] {
            assert!(message.contains(key), "{message}");
        }
    }
}

#[tokio::test]
async fn vertex_answers_each_instance_in_order() {
    let server = Server::that_chats().await;
    let body = json!({"instances": [
        {"inputs": "Hi!"},
        {"inputs": "Hi", "parameters": {"max_new_tokens": 2, "do_sample": false}},
        {"inputs": "Hi", "parameters": {"max_new_tokens": 1, "return_full_text": true}},
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    ]});
    let answer = server.ask("/vertex", &body).await;
    assert_eq!(
        answer,
        (200, json!({"predictions": ["abc", "ab", "Hia", "abcd"]}))
    );
}

#[tokio::test]
async fn vertex_refuses_the_whole_body_and_names_the_instance() {
    let server = Server::with_flags(&["--max-client-batch-size=4"]).await;
    let good = json!({"inputs": "Hi!"});
    for (instances, message) in [
        (
            json!([good, good, good, good, good]),
            "`instances` supports up to 4 requests (`--max-client-batch-size`). Given: 5",
        ),
        (
            json!([good, {"question": "Hi"}]),
            "`instances[1].inputs` is missing",
        ),
        (
            json!([good, ["Hi"]]),
            "`instances[1]` must be an object (given: a list)",
        ),
        (
            json!([{"inputs": 1}]),
            "`instances[0].inputs` must be a string (given: 1)",
        ),
        (
            json!([{"inputs": "Hi", "parameters": {"top_k": "5"}}]),
            "`instances[0].parameters.top_k` must be a whole number",
        ),
        (
            json!([good, {"inputs": "Hi", "parameters": {"top_k": 0}}]),
            "`top_k` must be strictly positive",
        ),
    ] {
        let (status, answer) = server
            .ask("/vertex", &json!({"instances": instances}))
            .await;
        assert_eq!(
            (status, &answer["error_type"]),
            (422, &Value::from("validation")),
            "{message}"
        );
        let given = answer["error"].as_str().expect("a message");
        assert!(given.contains(message), "{given}");
    }
    // Not the last of them, as where a body is read before its kind is known.
    for (instance, key) in [
        (r#"{"inputs":"x","inputs":"y"}"#, "inputs"),
        (
            r#"{"inputs":"x","parameters":{"top_k":1,"top_k":2}}"#,
            "top_k",
        ),
        (r#"{"messages":[],"messages":[]}"#, "messages"),
        (
            r#"{"messages":[],"max_tokens":1,"max_tokens":2}"#,
            "max_tokens",
        ),
    ] {
        let body = format!(r#"{{"instances":[{instance}]}}"#);
        let (status, answer) = server.ask_raw("/vertex", body).await;
        let message = answer["error"].as_str().expect("a message");
        let expected = format!("{key}` is there twice");
        assert!(status == 422 && message.contains(&expected), "{message}");
    }
    let (status, answer) = server.ask("/vertex", &json!({"instances": []})).await;
    assert_eq!(
        (status, &answer["error_type"]),
        (422, &json!("Input validation error"))
    );
    server.idle().await;
}

#[tokio::test]
async fn vertex_starts_all_instances_or_none() {
    let server = Server::with_flags(&["--max-concurrent-requests=2"]).await;
    let instance = json!({"inputs": "Hi!"});
    let ask = async |count| {
        let body = json!({"instances": vec![&instance; count]});
        server.ask("/vertex", &body).await
    };
    let (status, answer) = ask(3).await;
    let message = answer["error"].as_str().expect("a message");
    assert!(message.contains("`--max-concurrent-requests`"), "{message}");
    assert_eq!((status, &answer["error_type"]), (422, &json!("validation")));
    server.mock.hold();
    let running = server.post_json("/generate_stream", &instance).await;
    assert_eq!(ask(2).await.0, 429);
    drop(running);
    server.mock.resume();
    server.idle().await;
    assert_eq!(ask(2).await, (200, json!({"predictions": ["abc", "abc"]})));
}
