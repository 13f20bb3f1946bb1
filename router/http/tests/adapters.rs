//! Adapters by name, on every API: which one answers, which names are refused, and what lists and metrics say.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use std::sync::Arc;

use common::{Server, adapters, answer, log, lora_adapters};
use serde_json::{Value, json};
use text_generation_mock_shard::MockConfig;

const NAMES: [&str; 2] = ["pirate", "ft:org:sums/2"];

/// The answer to every prompt: `a` of the base, `b` of the first adapter, `c` of the second.
fn model() -> MockConfig {
    MockConfig {
        adapters: adapters(&NAMES),
        tokens: Arc::new(|row| common::BYTES + u32::from(b'a') + row.adapter as u32),
        ..common::alphabet()
    }
}

async fn server() -> Server {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let flags = ["--served-model-name=org/base", &lora_adapters(&NAMES)];
    Server::with_template(template, model(), &flags).await
}

/// Every API that generates, with a body that names a model, and where its text is.
fn apis(model: &str) -> Vec<(&'static str, Value, &'static str)> {
    let messages = json!([{"role": "user", "content": "Hi!"}]);
    vec![
        (
            "/v1/chat/completions",
            json!({"model": model, "messages": messages, "max_tokens": 1}),
            "/choices/0/message/content",
        ),
        (
            "/v1/completions",
            json!({"model": model, "prompt": "Hi!", "max_tokens": 1}),
            "/choices/0/text",
        ),
        (
            "/v1/responses",
            json!({"model": model, "input": "Hi!", "max_output_tokens": 1}),
            "/output/0/content/0/text",
        ),
        (
            "/v1/messages",
            json!({"model": model, "messages": messages, "max_tokens": 1}),
            "/content/0/text",
        ),
    ]
}

async fn text(server: &Server, path: &str, body: &Value, pointer: &str) -> String {
    let response = server.post(path).json(body).send().await.expect("sent");
    let (status, answer) = answer(response).await;
    assert_eq!(status, 200, "{path}: {answer}");
    let text = answer.pointer(pointer).and_then(Value::as_str);
    text.expect("a text").to_owned()
}

#[tokio::test]
async fn model_names_an_adapter_on_every_api() {
    let server = server().await;
    for (name, expected) in [
        ("org/base", "a"),
        ("tgi", "a"),
        ("pirate", "b"),
        ("org/base:pirate", "b"),
        ("tgi:pirate", "b"),
        ("ft:org:sums/2", "c"),
        ("org/base:ft:org:sums/2", "c"),
    ] {
        for (path, body, pointer) in apis(name) {
            let found = text(&server, path, &body, pointer).await;
            assert_eq!(found, expected, "{path} {name}");
        }
    }
}

#[tokio::test]
async fn another_name_is_404_with_those_that_exist() {
    let server = server().await;
    for (path, body, _) in apis("parrot") {
        let response = server.post(path).json(&body).send().await.expect("sent");
        let (status, answer) = answer(response).await;
        assert_eq!(status, 404, "{path}");
        let message = answer.pointer("/error/message").and_then(Value::as_str);
        let message = message.expect("a message");
        assert!(message.contains("`org/base`"), "{message}");
        assert!(message.contains("`pirate`"), "{message}");
    }
}

#[tokio::test]
async fn adapter_id_names_one_in_tgis_api() {
    let server = server().await;
    for (id, expected) in [
        (json!("pirate"), "b"),
        (json!("ft:org:sums/2"), "c"),
        (json!("org/base:pirate"), "b"),
        (json!(null), "a"),
        (json!(""), "a"),
        (json!("org/base"), "a"),
        (json!("tgi"), "a"),
    ] {
        let parameters = json!({"adapter_id": id, "max_new_tokens": 1, "return_full_text": false});
        let one = json!({"inputs": "Hi!", "parameters": parameters});
        let instances = json!({"instances": [one.clone()]});
        for (path, body, pointer) in [
            ("/generate", &one, "/generated_text"),
            ("/", &one, "/0/generated_text"),
            ("/invocations", &one, "/0/generated_text"),
            ("/vertex", &instances, "/predictions/0"),
        ] {
            let found = text(&server, path, body, pointer).await;
            assert_eq!(found, expected, "{path} {id}");
        }
    }
    let body = json!({"inputs": "Hi!", "parameters": {"adapter_id": "parrot"}});
    let response = server
        .post("/generate")
        .json(&body)
        .send()
        .await
        .expect("sent");
    let (status, answer) = answer(response).await;
    assert_eq!(status, 422);
    assert_eq!(answer["error_type"], "validation");
    let message = answer["error"].as_str().expect("a message");
    assert!(
        message.contains("`adapter_id` names no adapter"),
        "{message}"
    );
    assert!(message.contains("`pirate`"), "{message}");
}

#[tokio::test]
async fn adapter_id_in_another_place_is_refused_with_the_field_to_send() {
    let server = server().await;
    let mut bodies: Vec<_> = apis("org/base")
        .into_iter()
        .map(|(path, body, _)| (path, body, "send `model` instead"))
        .collect();
    bodies.push((
        "/generate",
        json!({"inputs": "Hi!"}),
        "it belongs inside `parameters`",
    ));
    for (path, mut body, remedy) in bodies {
        body["adapter_id"] = json!("pirate");
        let response = server.post(path).json(&body).send().await.expect("sent");
        let status = response.status();
        let answer = response.text().await.expect("an answer");
        assert!(status.is_client_error(), "{path}: {status}");
        assert!(
            answer.contains("adapter_id") && answer.contains(remedy),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn lists_have_the_adapters() {
    let server = server().await;
    let (_, list) = answer(server.get("/v1/models").send().await.expect("sent")).await;
    let found = list["data"].as_array().expect("a list").iter();
    let found: Vec<_> = found
        .map(|model| [&model["id"], &model["root"], &model["parent"]])
        .collect();
    let null = Value::Null;
    assert_eq!(
        found,
        [
            [&json!("org/base"), &null, &null],
            [&json!("pirate"), &json!("/srv/pirate"), &json!("org/base")],
            [
                &json!("ft:org:sums/2"),
                &json!("/srv/ft:org:sums/2"),
                &json!("org/base")
            ],
        ]
    );
    let one = server.get("/v1/models/ft:org:sums/2").send().await;
    let (status, one) = answer(one.expect("sent")).await;
    assert_eq!((status, &one["parent"]), (200, &json!("org/base")));
    let (_, info) = answer(server.get("/info").send().await.expect("sent")).await;
    assert_eq!(
        info["adapters"][0],
        json!({"name": "pirate", "rank": 16, "source": "/srv/pirate", "state": "device"})
    );
}

#[tokio::test]
async fn without_adapters_every_model_is_the_base() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let server = Server::with_template(template, model(), &[]).await;
    for (path, body, pointer) in apis("whatever") {
        assert_eq!(text(&server, path, &body, pointer).await, "a");
    }
}

#[tokio::test]
async fn the_log_names_the_adapter_of_a_request() {
    log::keep();
    let server = server().await;
    let parameters = json!({"adapter_id": "pirate", "max_new_tokens": 1});
    let tgi = json!({"inputs": "Hi!", "parameters": parameters});
    let mut bodies = vec![("/generate", tgi.clone()), ("/generate_stream", tgi)];
    for (path, mut body, _) in apis("pirate") {
        bodies.push((path, body.clone()));
        body["stream"] = json!(true);
        bodies.push((path, body));
    }
    for (path, body) in bodies {
        let response = server.post(path).json(&body).send().await.expect("sent");
        response.text().await.expect("an answer");
        let log = log::take();
        assert!(log.contains("adapter=\"pirate\""), "{path}: {log}");
    }
    server.good("/generate", &json!({"inputs": "Hi!"})).await;
    let log = log::take();
    assert!(log.contains("Success") && !log.contains("adapter"), "{log}");
}
