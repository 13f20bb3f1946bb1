//! API keys, request ids, and paths that try to get around the keys.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use common::{Server, answer, header};
use reqwest::Method;
use serde_json::{Value, json};

/// Every documented route with its methods.
fn routes() -> Vec<(Method, String)> {
    let document = text_generation_http::routes::openapi();
    let document: Value = serde_json::from_str(&document.to_json().expect("JSON")).expect("JSON");
    let paths = document["paths"].as_object().expect("paths").iter();
    let routes = paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods").keys();
        methods.map(|name| {
            let method = Method::from_bytes(name.to_uppercase().as_bytes());
            (method.expect("a method"), path.clone())
        })
    });
    routes.collect()
}

fn is_probe(method: &Method, path: &str) -> bool {
    matches!(path, "/health" | "/live" | "/ready" | "/ping")
        || (path == "/" && method == Method::GET)
}

#[tokio::test]
async fn every_route_but_the_probes_asks_for_a_key() {
    let server = Server::with_flags(&["--api-key=Secret"]).await;
    let send = async |method: &Method, path: &str, key: Option<(&str, &str)>| {
        let request = server
            .http
            .request(method.clone(), format!("{}{path}", server.url));
        let request = match key {
            Some((name, value)) => request.header(name, value),
            None => request,
        };
        request
            .body("not even JSON")
            .send()
            .await
            .expect("an answer")
    };
    for (method, path) in routes() {
        let open = send(&method, &path, None).await;
        if is_probe(&method, &path) {
            assert_eq!(open.status(), 200, "{method} {path}");
            continue;
        }
        for key in [
            None,
            Some(("authorization", "Bearer secret")),
            Some(("authorization", "Bearer Secret2")),
            Some(("authorization", "Bearer ")),
            Some(("authorization", "Basic Secret")),
            Some(("authorization", "Secret")),
            Some(("x-api-key", "secret")),
            Some(("x-api-key", "")),
        ] {
            let response = send(&method, &path, key).await;
            assert_eq!(header(&response, "www-authenticate"), "Bearer");
            let (status, body) = answer(response).await;
            assert_eq!(status, 401, "{method} {path} {key:?}");
            assert_eq!(body["error_type"], "unauthorized");
            assert_eq!(
                body["error"].is_object(),
                path.starts_with("/v1/"),
                "{body}"
            );
        }
        for key in [("authorization", "Bearer Secret"), ("x-api-key", "Secret")] {
            let response = send(&method, &path, Some(key)).await;
            assert_ne!(response.status(), 401, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn without_a_key_no_body_is_waited_for_and_the_connection_is_said_to_close() {
    let server = Server::with_flags(&["--api-key=Secret"]).await;
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
        content-length: 1000000\r\n\r\n{";
    let answer = server.ask_bytes(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    // Whoever is heard may go on.
    for body in ["{\"inputs\": \"Hi!\"}", "{"] {
        let request = server.post("/tokenize").bearer_auth("Secret").body(body);
        let request = request.header("content-type", "application/json");
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.headers().get("connection"), None, "{body}");
    }
}

#[tokio::test]
async fn keys_come_from_the_flag_and_from_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys");
    std::fs::write(&file, "# team a\nfirst\n\nsecond\n").expect("a file");
    let flag = format!("--api-key-file={}", file.display());
    let server = Server::with_flags(&["--api-key=third", &flag]).await;
    for (key, status) in [
        ("first", 200),
        ("second", 200),
        ("third", 200),
        ("First", 401),
        ("THIRD", 401),
        ("# team a", 401),
        ("", 401),
    ] {
        let response = server.get("/info").bearer_auth(key).send().await;
        assert_eq!(response.expect("an answer").status(), status, "{key}");
    }
}

#[tokio::test]
async fn pages_are_open_and_say_nothing_of_this_server() {
    let server = Server::with_flags(&["--api-key=Secret"]).await;
    for path in [
        "/docs",
        "/docs/",
        "/docs/swagger-ui.css",
        "/api-doc/openapi.json",
    ] {
        let response = server.get(path).send().await.expect("an answer");
        assert_eq!(response.status(), 200, "{path}");
        let policy = header(&response, "content-security-policy").to_owned();
        let allowed = [
            "default-src 'none'",
            "script-src 'self';",
            "connect-src 'self';",
        ];
        assert!(
            allowed.iter().all(|part| policy.contains(part)),
            "{path}: {policy}"
        );
    }
    let closed = server
        .get("/docs")
        .send()
        .await
        .expect("an answer")
        .text()
        .await;
    assert!(!closed.expect("a page").contains("test/model"));
}

#[tokio::test]
async fn no_spelling_of_a_path_gets_around_the_key() {
    let server = Server::with_flags(&["--api-key=Secret"]).await;
    let body = r#"{"inputs":"Hi!"}"#;
    for target in [
        "/generate",
        "//generate",
        "/./generate",
        "/health/../generate",
        "/health/%2e%2e/generate",
        "/%67enerate",
        "/generate/",
        "/generate?x=/health",
        "/generate#/health",
        "/GENERATE",
        "/Generate",
        "/health;/generate",
        "/generate%00/health",
        "/docs%2f..%2fgenerate",
        "//v1/models",
        "/v1/%2e%2e/v1/models",
        "/v1//models",
        "http://x/generate",
        "http://health/generate",
        "*",
    ] {
        for host in ["x", "x/docs?", "x/health", "localhost\\health"] {
            let request = format!(
                "POST {target} HTTP/1.1\r\nhost: {host}\r\nx-original-url: /health\r\nx-rewrite-url: /health\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let answer = server.ask_bytes(request.as_bytes()).await;
            let status = answer.split(' ').nth(1).unwrap_or_default();
            // What is no HTTP is refused before anybody asks for a key.
            assert!(matches!(status, "401" | "400"), "{target} {host}: {answer}");
        }
    }
    assert!(server.mock.steps().is_empty(), "something was computed");
}

#[tokio::test]
async fn request_ids_are_taken_over_or_made_and_come_back_everywhere() {
    let server = Server::start().await;
    let long = "x".repeat(129);
    for (given, kept) in [
        ("abc-123_X.y:z/+=@", true),
        ("", false),
        ("two words", false),
        ("quo\"te", false),
        (long.as_str(), false),
        (&long[..128], true),
    ] {
        for (path, status) in [("/info", 200), ("/nope", 404), ("/health", 200)] {
            let response = server.get(path).header("x-request-id", given).send().await;
            let response = response.expect("an answer");
            assert_eq!(response.status(), status);
            let id = header(&response, "x-request-id").to_owned();
            assert_eq!(id == given, kept, "{path} {given}: {id}");
            assert!(!id.is_empty());
            if status == 404 {
                let (_, body) = answer(response).await;
                assert_eq!(body["request_id"], id.as_str());
            }
        }
    }
    let first = server.get("/info").send().await.expect("an answer");
    let second = server.get("/info").send().await.expect("an answer");
    assert_ne!(
        header(&first, "x-request-id"),
        header(&second, "x-request-id")
    );
}

#[tokio::test]
async fn errors_below_v1_have_the_shape_of_openai() {
    let server = Server::with_flags(&["--api-key=Secret"]).await;
    let response = server.get("/v1/models").send().await.expect("an answer");
    let id = header(&response, "x-request-id").to_owned();
    let (status, body) = answer(response).await;
    assert_eq!(status, 401);
    assert_eq!(
        body,
        json!({
            "error": {
                "message": "missing or wrong API key: send the header `Authorization: Bearer <key>` or `x-api-key: <key>`",
                "type": "authentication_error", "param": null, "code": "unauthorized",
            },
            "error_type": "unauthorized", "request_id": id,
        })
    );
}
