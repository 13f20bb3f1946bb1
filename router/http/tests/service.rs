//! What a server says about itself, CORS, and the documents.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use common::{Server, answer, header, until};
use serde_json::{Value, json};

#[tokio::test]
async fn info_has_the_limits_under_both_names() {
    let server = Server::with_flags(&["--max-batch-size=4"]).await;
    let info: Value = server
        .get("/info")
        .send()
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    let version = server.get("/version").send().await.expect("an answer");
    let (_, version) = common::answer(version).await;
    assert_eq!(version, json!({"version": info["version"]}));
    insta::assert_json_snapshot!("info", info);
}

#[tokio::test]
async fn health_names_the_instance_for_whoever_started_it() {
    let server = Server::with_flags(&["--router-instance=i1"]).await;
    let answer = server.get("/health").send().await.expect("an answer");
    assert_eq!(header(&answer, "x-router-instance"), "i1");
    let unnamed = Server::start().await;
    let answer = unnamed.get("/health").send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert!(!answer.headers().contains_key("x-router-instance"));
}

#[tokio::test]
async fn tokenize_gives_ids_and_byte_offsets() {
    let server = Server::start().await;
    let (status, body) = server.ask("/tokenize", &json!({"inputs": "Hi"})).await;
    assert_eq!(status, 200);
    assert_eq!(
        body,
        json!([
            {"id": 75, "text": "H", "start": 0, "stop": 1},
            {"id": 108, "text": "i", "start": 1, "stop": 2},
        ])
    );
}

#[tokio::test]
async fn chat_tokenize_gives_the_prompt_and_its_tokens() {
    let server = Server::that_chats().await;
    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let (status, answer) = server.ask("/chat_tokenize", &body).await;
    assert_eq!(status, 200);
    let text = "<user>Hi<answer>";
    assert_eq!(answer["templated_text"], text);
    let tokens = answer["tokenize_response"].as_array().expect("a list");
    assert_eq!(tokens.len(), text.len(), "no special token is added");
    assert_eq!(
        tokens[6],
        json!({"id": 75, "text": "H", "start": 6, "stop": 7})
    );
    let (status, error) = server.ask("/chat_tokenize", &json!({"messages": []})).await;
    assert_eq!((status, &error["error_type"]), (422, &json!("validation")));
}

#[tokio::test]
async fn detokenize_gives_the_text() {
    let server = Server::start().await;
    let ask = async |body: Value| server.ask("/detokenize", &body).await;
    let body = json!({"ids": [75, 108, 2]});
    assert_eq!(ask(body).await, (200, json!({"text": "Hi</s>"})));
    let body = json!({"ids": [75, 108, 2], "skip_special_tokens": true});
    assert_eq!(ask(body).await, (200, json!({"text": "Hi"})));
    assert_eq!(ask(json!({"ids": []})).await, (200, json!({"text": ""})));
    let (status, error) = ask(json!({"ids": [75, 512]})).await;
    assert_eq!((status, &error["error_type"]), (422, &json!("validation")));
    let message = error["error"].as_str().expect("a message");
    assert!(
        message.contains("`ids` contains the token id 512"),
        "{message}"
    );
    for ids in [
        json!([-1]),
        json!([4_294_967_296u64]),
        json!("75"),
        json!(null),
    ] {
        assert_eq!(ask(json!({"ids": ids})).await.0, 422, "{ids}");
    }
}

/// vLLM's bodies and answers, as lm-eval's remote tokenizer asks for them.
#[tokio::test]
async fn tokens_in_the_words_of_vllm() {
    let server = Server::that_chats().await;
    let ask = async |body: Value| server.ask("/tokenize", &body).await;
    let answer = json!({"count": 2, "max_model_len": 1024, "tokens": [75, 108]});
    let body = json!({"prompt": "Hi", "add_special_tokens": false, "model": "x"});
    assert_eq!(ask(body).await, (200, answer));
    let body = json!({"prompt": " i", "return_token_strs": true});
    let answer =
        json!({"count": 2, "max_model_len": 1024, "tokens": [35, 108], "token_strs": ["Ġ", "i"]});
    assert_eq!(ask(body).await, (200, answer));
    let empty = json!({"count": 0, "max_model_len": 1024, "tokens": []});
    assert_eq!(ask(json!({"prompt": ""})).await, (200, empty));
    let many = ask(json!({"prompt": "i".repeat(2_000)})).await.1;
    assert_eq!(many["tokens"], json!(vec![108; 2_000]));

    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "A"}]);
    let (status, chat) = ask(json!({"messages": messages})).await;
    assert_eq!(status, 200);
    let (_, text) = server
        .ask("/detokenize", &json!({"tokens": chat["tokens"]}))
        .await;
    assert_eq!(text, json!({"prompt": "<user>Hi<assistant>A<answer>"}));
    for (path, body, named) in [
        ("/tokenize", json!({"prompt": 1}), "`prompt`"),
        ("/tokenize", json!({"messages": []}), "`messages`"),
        ("/detokenize", json!({"tokens": [512]}), "`tokens`"),
        ("/detokenize", json!({"tokens": "x"}), "`tokens`"),
    ] {
        let (status, error) = server.ask(path, &body).await;
        let message = error["error"].as_str().expect("a message");
        assert!(status == 422 && message.contains(named), "{message}");
    }
}

#[tokio::test]
async fn the_tokenizer_is_described() {
    let server = Server::that_chats().await;
    let response = server.get("/tokenizer_info").send().await;
    let (status, info) = common::answer(response.expect("an answer")).await;
    assert_eq!(status, 200);
    assert_eq!(
        (&info["bos_token"], &info["eos_token"]),
        (&json!("<s>"), &json!("</s>"))
    );
    assert!(info["tokenizer_class"].is_string());
    let template = info["chat_template"].as_str().expect("a template");
    assert!(template.contains("{{ m.content }}"), "{template}");
    // Without any file, what the model itself says.
    let plain = Server::start().await;
    let response = plain.get("/tokenizer_info").send().await;
    let (_, info) = common::answer(response.expect("an answer")).await;
    assert_eq!(
        (&info["eos_token"], info.get("chat_template")),
        (&json!("</s>"), None)
    );
}

#[tokio::test]
async fn health_follows_the_shards() {
    let server = Server::start().await;
    for path in ["/", "/health", "/ping", "/ready"] {
        let response = server.get(path).send().await.expect("an answer");
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.text().await.expect("a body"), "");
    }
    server.mock.set_healthy(false);
    until("the next check finds out", async || {
        let response = server.get("/health").send().await;
        response.expect("an answer").status() == 503
    })
    .await;
    for path in ["/", "/health", "/ping", "/ready"] {
        let response = server.get(path).send().await.expect("an answer");
        let (status, body) = common::answer(response).await;
        assert_eq!(status, 503);
        assert_eq!(
            (&body["error"], &body["error_type"]),
            (&json!("unhealthy"), &json!("healthcheck"))
        );
    }
    let live = server.get("/live").send().await.expect("an answer");
    assert_eq!(live.status(), 200, "the process answers");
}

#[tokio::test]
async fn metrics_are_there_after_one_request() {
    let server = Server::start().await;
    server.ask("/generate", &json!({"inputs": "Hi!"})).await;
    let response = server.get("/metrics").send().await.expect("an answer");
    assert_eq!(
        header(&response, "content-type"),
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let page = response.text().await.expect("a page");
    for name in [
        "tgi_log_dropped 0",
        "tgi_request_count ",
        "tgi_request_success ",
        "tgi_request_duration_bucket{le=",
        "tgi_request_validation_duration_bucket{le=",
        "tgi_request_queue_duration_bucket{le=",
        "tgi_request_inference_duration_bucket{le=",
        "tgi_request_mean_time_per_token_duration_bucket{le=",
        "tgi_request_generated_tokens_bucket{le=",
        "tgi_request_input_length_bucket{le=",
        "tgi_request_max_new_tokens_bucket{le=",
        "tgi_request_skipped_tokens_bucket{le=",
        "tgi_request_time_to_first_token_duration_bucket{le=",
        "tgi_request_time_between_tokens_duration_bucket{le=",
        "tgi_batch_next_size_bucket{le=",
        "tgi_batch_inference_duration_bucket{method=\"prefill\",le=",
        "tgi_batch_forward_duration_bucket{method=\"decode\",le=",
        "tgi_batch_max_total_tokens 16384",
        "tgi_kv_slots_total 16384",
        "tgi_queue_size ",
    ] {
        assert!(page.contains(name), "{name} is not in\n{page}");
    }
}

#[tokio::test]
async fn any_origin_may_call_unless_some_are_named() {
    let preflight = async |server: &Server, origin: &'static str| {
        let request = server
            .http
            .request(reqwest::Method::OPTIONS, format!("{}/generate", server.url));
        let request = request
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header(
                "access-control-request-headers",
                "anthropic-version,authorization,content-type,x-stainless-os",
            );
        request.send().await.expect("an answer")
    };
    let open = Server::start().await;
    let response = preflight(&open, "https://a.example").await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "access-control-allow-origin"), "*");
    assert_eq!(
        header(&response, "access-control-allow-headers"),
        "anthropic-version,authorization,content-type,x-stainless-os"
    );
    let request = open.get("/info").header("origin", "https://a.example");
    let response = request.send().await.expect("an answer");
    assert!(header(&response, "access-control-expose-headers").contains("x-request-id"));

    let flags = [
        "--cors-allow-origin=https://a.example",
        "--cors-allow-origin=https://b.example",
    ];
    let closed = Server::with_flags(&flags).await;
    for origin in ["https://a.example", "https://b.example"] {
        let response = preflight(&closed, origin).await;
        assert_eq!(header(&response, "access-control-allow-origin"), origin);
    }
    let response = preflight(&closed, "https://c.example").await;
    assert_eq!(header(&response, "access-control-allow-origin"), "");
}

#[tokio::test]
async fn the_documents_are_served_without_network() {
    let server = Server::start().await;
    let page = server.get("/docs/").send().await.expect("an answer");
    assert_eq!(page.status(), 200);
    let html = page.text().await.expect("a page");
    assert!(
        !html.contains("http://") && !html.contains("https://"),
        "{html}"
    );
    assert!(
        html.contains("<title>text-generation API</title>"),
        "{html}"
    );
    for path in ["/docs/nope", "/docs/%ff"] {
        let nothing = server.get(path).send().await.expect("an answer");
        let (status, body) = answer(nothing).await;
        assert_eq!(
            (status, &body["error_type"]),
            (404, &"not_found".into()),
            "{path}"
        );
        assert!(body["request_id"].is_string(), "{body}");
    }
    let script = server
        .get("/docs/swagger-ui-bundle.js")
        .send()
        .await
        .expect("an answer");
    assert_eq!(script.status(), 200);
    let document: Value = server
        .get("/api-doc/openapi.json")
        .send()
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    let printed = text_generation_http::routes::openapi()
        .to_json()
        .expect("JSON");
    assert_eq!(
        document,
        serde_json::from_str::<Value>(&printed).expect("JSON")
    );
}

#[test]
fn the_openapi_document() {
    let document = text_generation_http::routes::openapi();
    insta::assert_snapshot!("openapi", document.to_pretty_json().expect("JSON"));
}

/// Whoever reads the documentation finds chats first.
#[test]
fn the_documented_routes_are_grouped_by_their_api() {
    let document = text_generation_http::routes::openapi();
    let document = serde_json::to_value(document).expect("JSON");
    assert_eq!(document["info"]["title"], "text-generation");
    let tags = document["tags"].as_array().expect("tags").iter();
    let tags: Vec<&str> = tags.filter_map(|tag| tag["name"].as_str()).collect();
    assert_eq!(tags, ["OpenAI", "Anthropic", "TGI", "Operation"]);
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            let tag = match path.as_str() {
                "/v1/messages" | "/v1/messages/count_tokens" => "Anthropic",
                path if path.ends_with("load_lora_adapter") => "Operation",
                path if path.starts_with("/v1/") => "OpenAI",
                _ if method == "get" => "Operation",
                _ => "TGI",
            };
            assert_eq!(operation["tags"], json!([tag]), "{method} {path}");
        }
    }
}

#[test]
fn every_stream_documents_the_error_that_may_end_it() {
    let document = text_generation_http::routes::openapi();
    let document = serde_json::to_value(document).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let mut streams = 0;
    for (path, operations) in paths {
        let content = &operations["post"]["responses"]["200"]["content"]["text/event-stream"];
        let Some(event) = content["schema"]["$ref"].as_str() else {
            continue;
        };
        streams += 1;
        if path == "/v1/responses" {
            // Its failures are events as the others: `response.failed`.
            continue;
        }
        let event = document
            .pointer(event.trim_start_matches('#'))
            .expect("a schema");
        let error = if path.starts_with("/v1/messages") {
            "#/components/schemas/MessageErrorResponse"
        } else if path.starts_with("/v1/") {
            "#/components/schemas/OpenAiErrorResponse"
        } else {
            "#/components/schemas/ErrorResponse"
        };
        let kinds = event["oneOf"].as_array().expect("kinds of events");
        assert!(kinds.contains(&json!({"$ref": error})), "{path}: {event}");
    }
    assert_eq!(streams, 7);
}

/// Seeds that the server draws have all 64 bits: generated clients must not read them into a signed integer.
#[test]
fn seeds_are_documented_as_unsigned() {
    let document = text_generation_http::routes::openapi();
    let document = serde_json::to_value(document).expect("JSON");
    for schema in [
        "GenerateParameters",
        "Details",
        "BestOfSequence",
        "StreamDetails",
    ] {
        let seed = &document["components"]["schemas"][schema]["properties"]["seed"];
        assert_eq!(seed["format"], "uint64", "{schema}");
    }
}
