//! `/v1/models`, and errors of the framework below `/v1`.

use super::*;

#[tokio::test]
async fn the_served_model_is_listed_and_found_by_name() {
    let server = Server::start().await;
    let list: Value = server
        .get("/v1/models")
        .send()
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    assert_eq!(list["object"], "list");
    let model = &list["data"][0];
    assert!(
        model["created"]
            .as_u64()
            .is_some_and(|time| time > 1_700_000_000)
    );
    let name = json!("test/model");
    assert_eq!(
        (&list["has_more"], &list["first_id"], &list["last_id"]),
        (&json!(false), &name, &name)
    );
    let time = model["created_at"].as_str().expect("a time");
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    let mut plain = model.clone();
    plain["created"] = json!(0);
    plain["created_at"] = json!("");
    insta::assert_snapshot!(plain.to_string(), @r#"{"id":"test/model","object":"model","created":0,"owned_by":"test/model","max_model_len":1024,"type":"model","display_name":"test/model","created_at":"","max_input_tokens":1023,"max_tokens":1023}"#);
    for path in ["/v1/models/test/model", "/v1/models/test%2Fmodel"] {
        let found: Value = server
            .get(path)
            .send()
            .await
            .expect("an answer")
            .json()
            .await
            .expect("JSON");
        assert_eq!(&found, model, "{path}");
    }
}

#[tokio::test]
async fn the_model_has_the_names_that_it_is_served_under() {
    let server = Server::with_flags(&["--served-model-name", "first", "org/second"]).await;
    let get = async |path: &str| {
        let response = server.get(path).send().await.expect("an answer");
        common::answer(response).await
    };
    assert_eq!(get("/info").await.1["model_id"], "first");
    assert_eq!(
        get("/info").await.1["served_model_names"],
        json!(["first", "org/second"])
    );
    let (_, list) = get("/v1/models").await;
    let listed: Vec<&Value> = list["data"].as_array().expect("a list").iter().collect();
    for (model, name) in listed.iter().zip(["first", "org/second"]) {
        assert_eq!(model["id"], name);
        assert_eq!(
            get(&format!("/v1/models/{name}")).await,
            (200, (*model).clone())
        );
    }
    assert_eq!(listed.len(), 2);
    assert_eq!(get("/v1/models/test/model").await.0, 404);
    for (given, shown) in [(json!(null), "first"), (json!("org/second"), "org/second")] {
        let body = completion("Hi!", json!({"model": given}));
        assert_eq!(ask_completion(&server, &body).await["model"], shown);
    }
}

#[tokio::test]
async fn errors_have_the_shape_of_the_api_and_the_true_status() {
    let server = Server::start().await;
    for path in ["/v1/models/gpt-4", "/v1/models/%ff"] {
        let missing = server.get(path).send().await.expect("an answer");
        let (status, body) = common::answer(missing).await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (404, &json!("model_not_found"))
        );
    }
    let unknown = server
        .get("/v1/unheard/of")
        .send()
        .await
        .expect("an answer");
    let (status, body) = common::answer(unknown).await;
    assert_eq!(
        (status, &body["error"]["type"]),
        (404, &json!("invalid_request_error"))
    );
    let (status, body) = server.ask_raw("/v1/completions", "{").await;
    assert_eq!(
        (status, &body["error_type"]),
        (400, &json!("malformed_json"))
    );
    assert!(body["error"]["message"].is_string() && body["error"]["param"].is_null());
    let wrong = completion("Hi", json!({"temperature": "hot"}));
    let (status, body) = server.ask("/v1/completions", &wrong).await;
    assert_eq!(status, 422);
    assert_eq!(body["error"]["param"], "temperature");
    assert_eq!(body["error_type"], "validation");
}

#[tokio::test]
async fn overload_is_a_429_that_says_when_to_come_back() {
    let server = Server::with_flags(&["--max-concurrent-requests", "2"]).await;
    server.mock.hold();
    let held = server
        .post_json(
            "/v1/completions",
            &completion("Hi", json!({"n": 2, "stream": true})),
        )
        .await;
    assert_eq!(held.status(), 200);
    let refused = server
        .post_json("/v1/completions", &completion("Hi", json!({})))
        .await;
    assert!(!header(&refused, "retry-after").is_empty());
    let (status, body) = common::answer(refused).await;
    assert_eq!(
        (status, &body["error"]["type"]),
        (429, &json!("rate_limit_error"))
    );
    server.mock.resume();
    drop(held);
    server.idle().await;
}
