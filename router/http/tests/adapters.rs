//! Adapters by name, on every API: which one answers, which names are refused, and what lists and metrics say.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Server, adapters, answer, log, lora_adapters};
use serde_json::{Value, json};
use tempfile::TempDir;
use text_generation_http::connection::ServerLimits;
use text_generation_mock_shard::MockConfig;
use text_generation_proto::v1::LoadAdapterResponse;

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
    server.until_adapters_are_there().await;
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

const ADMIN: &str = "the-admin";

/// A server that loads adapters, from folders below `root` alone.
async fn loading(root: &Path, model: MockConfig) -> Server {
    let folder = format!("--lora-dir={}", root.display());
    let flags = [
        "--served-model-name=org/base",
        "--allow-adapter-loading",
        "--admin-api-key",
        ADMIN,
        &folder,
        "--adapter-pages=2",
    ];
    Server::over(model, &flags, ServerLimits::default()).await
}

/// Folders with adapters; the last letter of a name tells its generation.
fn folders(names: &[&str]) -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    for name in names {
        let folder = root.path().join(name);
        std::fs::create_dir_all(&folder).expect("made");
        std::fs::write(folder.join("adapter_config.json"), "{}").expect("written");
    }
    root
}

/// The answer to every prompt is the last letter of the folder, or `_` of the base.
fn by_letter() -> MockConfig {
    MockConfig {
        adapters: Arc::new(|load| match load.request.source.bytes().last() {
            Some(b'!') => Err(("adapter_invalid", "half a pair".to_owned())),
            last => Ok(LoadAdapterResponse {
                generation: last.map_or(0, u64::from),
                rank: 8,
                pages: 1,
                bytes: 1 << 20,
            }),
        }),
        tokens: Arc::new(|row| {
            let letter = if row.adapter == 0 {
                u64::from(b'_')
            } else {
                row.adapter
            };
            common::BYTES + letter as u32
        }),
        ..common::alphabet()
    }
}

async fn as_admin(server: &Server, path: &str, body: &Value) -> (u16, String) {
    let request = server.post(path).bearer_auth(ADMIN).json(body);
    let response = request.send().await.expect("sent");
    let status = response.status().as_u16();
    (status, response.text().await.expect("an answer"))
}

async fn asked(server: &Server, adapter: &str) -> (u16, Value) {
    let parameters = json!({"adapter_id": adapter, "max_new_tokens": 1, "return_full_text": false});
    let body = json!({"inputs": "Hi!", "parameters": parameters});
    server.ask("/generate", &body).await
}

#[tokio::test]
async fn an_administrator_loads_and_unloads_in_vllms_words() {
    let root = folders(&["a", "b", "bad!"]);
    let server = loading(root.path(), by_letter()).await;
    let load = "/v1/load_lora_adapter";
    let body = json!({"lora_name": "one", "lora_path": root.path().join("a")});
    let added = "Success: LoRA adapter 'one' added successfully.".to_owned();
    assert_eq!(as_admin(&server, load, &body).await, (200, added.clone()));
    assert_eq!(asked(&server, "one").await.1["generated_text"], "a");
    let (status, again) = as_admin(&server, load, &body).await;
    assert_eq!(status, 400);
    assert!(again.contains("'one' has already been loaded"), "{again}");
    let other = json!({"lora_name": "one", "lora_path": "b", "load_inplace": true, "is_3d_lora_weight": false});
    assert_eq!(as_admin(&server, load, &other).await, (200, added));
    assert_eq!(asked(&server, "one").await.1["generated_text"], "b");
    let (_, info) = answer(server.get("/info").send().await.expect("sent")).await;
    assert_eq!(info["adapters"][0]["name"], "one");

    let unload = "/v1/unload_lora_adapter";
    let body = json!({"lora_name": "one"});
    let removed = "Success: LoRA adapter 'one' removed successfully.".to_owned();
    assert_eq!(as_admin(&server, unload, &body).await, (200, removed));
    assert_eq!(asked(&server, "one").await.0, 422);
    let (status, gone) = as_admin(&server, unload, &body).await;
    assert_eq!(status, 404);
    assert!(gone.contains("'one' cannot be found."), "{gone}");
    server.idle().await;
}

#[tokio::test]
async fn loads_that_cannot_be_are_refused_with_the_reason() {
    let root = folders(&["in/a", "bad!", "out/b"]);
    let server = loading(&root.path().join("in"), by_letter()).await;
    let out = root.path().join("out/b");
    for (body, status, reason) in [
        (json!({"lora_path": "a"}), 400, "must be provided"),
        (json!({"lora_name": "x"}), 400, "must be provided"),
        (
            json!({"lora_name": "x", "lora_path": "none"}),
            404,
            "cannot be found",
        ),
        (
            json!({"lora_name": "x", "lora_path": "../out/b"}),
            404,
            "cannot be found",
        ),
        (
            json!({"lora_name": "x", "lora_path": out}),
            404,
            "cannot be found",
        ),
        (
            json!({"lora_name": "org/base", "lora_path": "a"}),
            400,
            "name of the model",
        ),
        (
            json!({"lora_name": "tgi", "lora_path": "a"}),
            400,
            "the base",
        ),
        (json!({"lora_name": 3, "lora_path": "a"}), 422, "lora_name"),
    ] {
        for path in ["/v1/load_lora_adapter", "/load_lora_adapter"] {
            let (found, text) = as_admin(&server, path, &body).await;
            assert_eq!(found, status, "{text}");
            assert!(text.contains(reason), "{text}");
        }
    }
    assert_eq!(server.mock.loads().len(), 0);
}

#[tokio::test]
async fn only_the_admin_key_loads_and_only_where_it_is_allowed() {
    let root = folders(&["a"]);
    let server = loading(root.path(), by_letter()).await;
    let body = json!({"lora_name": "one", "lora_path": "a"});
    let (status, refusal) = server.ask("/v1/load_lora_adapter", &body).await;
    assert_eq!(
        (status, &refusal["error_type"]),
        (401, &json!("unauthorized"))
    );
    // The key of the administrator is no other key's.
    assert_eq!(asked(&server, "").await.0, 200);
    let fixed = Server::with_flags(&["--api-key=k", "--admin-api-key", ADMIN]).await;
    let (status, text) = as_admin(&fixed, "/v1/load_lora_adapter", &body).await;
    assert_eq!(status, 404);
    assert!(text.contains("--allow-adapter-loading"), "{text}");
    let of_client = fixed
        .post("/v1/load_lora_adapter")
        .bearer_auth("k")
        .json(&body);
    assert_eq!(of_client.send().await.expect("sent").status().as_u16(), 401);
}

#[tokio::test]
async fn sglangs_routes_answer_as_sglang_does() {
    let root = folders(&["a"]);
    let server = loading(root.path(), by_letter()).await;
    let body = json!({"lora_name": "one", "lora_path": "a", "pinned": true});
    let (status, text) = as_admin(&server, "/load_lora_adapter", &body).await;
    let source = root.path().canonicalize().expect("there").join("a");
    let expected = json!({"success": true, "loaded_adapters": {"one": source}});
    let read: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((status, read), (200, expected));
    let (status, text) = as_admin(
        &server,
        "/unload_lora_adapter",
        &json!({"lora_name": "one"}),
    )
    .await;
    let read: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (status, read),
        (200, json!({"success": true, "loaded_adapters": {}}))
    );
}

#[tokio::test]
async fn a_folder_of_adapters_is_asked_when_a_request_names_one() {
    let root = folders(&["a", "org/b", "bad!"]);
    let server = loading(root.path(), by_letter()).await;
    for (name, expected) in [
        ("a", "a"),
        ("org/b", "b"),
        ("org/base:org/b", "b"),
        ("tgi:a", "a"),
    ] {
        for (path, body, pointer) in apis(name) {
            if path != "/v1/completions" {
                continue;
            }
            assert_eq!(
                text(&server, path, &body, pointer).await,
                expected,
                "{path} {name}"
            );
        }
    }
    assert_eq!(server.mock.loads().len(), 2);
    let unknown = json!({"model": "c", "prompt": "Hi!", "max_tokens": 1});
    assert_eq!(server.ask("/v1/completions", &unknown).await.0, 404);
    assert_eq!(asked(&server, "../a").await.0, 422);
    let (status, refused) = asked(&server, "bad!").await;
    assert_eq!(status, 422);
    assert!(
        refused["error"]
            .as_str()
            .is_some_and(|text| text.contains("half a pair")),
        "{refused}"
    );
    server.idle().await;
}

#[tokio::test]
async fn adapters_that_a_key_may_not_use_are_as_unknown() {
    let keys = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(
        keys.path(),
        "acme key=k adapters=pirate,later\nother key=o\n",
    )
    .expect("written");
    let file = keys.path().display().to_string();
    let flags = ["--api-key-file", &file, &lora_adapters(&NAMES)];
    let server = Server::over(model(), &flags, ServerLimits::default()).await;
    let get = async |key: &str, path: &str| {
        let sent = server.get(path).bearer_auth(key).send().await;
        answer(sent.expect("sent")).await
    };
    let completion = async |key: &str, model: &str| {
        let body = json!({"model": model, "prompt": "Hi!", "max_tokens": 1});
        let request = server.post("/v1/completions").bearer_auth(key).json(&body);
        answer(request.send().await.expect("sent")).await
    };
    for (key, count) in [("k", 2), ("o", 3)] {
        let (_, list) = get(key, "/v1/models").await;
        assert_eq!(list["data"].as_array().map(Vec::len), Some(count), "{list}");
        let (_, info) = get(key, "/info").await;
        assert_eq!(info["adapters"].as_array().map(Vec::len), Some(count - 1));
        assert_eq!(completion(key, "pirate").await.0, 200);
    }
    assert_eq!(completion("o", "ft:org:sums/2").await.0, 200);
    let (status, refused) = completion("k", "ft:org:sums/2").await;
    let message = refused["error"]["message"].as_str().expect("a message");
    assert_eq!(status, 404);
    assert!(
        message.contains("`pirate`") && !message.contains("sums"),
        "{message}"
    );
    assert_eq!(get("k", "/v1/models/ft:org:sums/2").await.0, 404);
    let tgi = json!({"inputs": "Hi!", "parameters": {"adapter_id": "ft:org:sums/2"}});
    let request = server.post("/generate").bearer_auth("k").json(&tgi);
    assert_eq!(answer(request.send().await.expect("sent")).await.0, 422);
}
