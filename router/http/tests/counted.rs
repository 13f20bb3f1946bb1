//! Every request that generates is counted once, also where it is refused. A test alone in its process: the recorder is
//! the process's own.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use common::Server;
use serde_json::json;

#[tokio::test]
async fn refusals_are_counted_by_their_reason() {
    let flags = [
        "--max-concurrent-requests=2",
        "--payload-limit=1000",
        "--client-timeout=1",
    ];
    let server = Server::with_flags(&flags).await;
    // A body that never comes is refused in a second, beside all others.
    let late = b"POST /invocations HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
        content-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    let (late, ()) = tokio::join!(server.ask_bytes(late), refuse_and_serve(&server));
    assert!(late.starts_with("HTTP/1.1 408 "), "{late}");
    let response = server.get("/metrics").send().await.expect("an answer");
    let page = response.text().await.expect("a page");
    for line in [
        "tgi_request_count 15",
        "tgi_request_success 2",
        r#"tgi_request_failure{err="validation"} 6"#,
        r#"tgi_request_failure{err="template"} 2"#,
        r#"tgi_request_failure{err="overloaded"} 1"#,
        r#"tgi_request_failure{err="malformed_json"} 1"#,
        r#"tgi_request_failure{err="unsupported_media_type"} 1"#,
        r#"tgi_request_failure{err="payload_too_large"} 1"#,
        r#"tgi_request_failure{err="request_timeout"} 1"#,
        r#"tgi_request_failure{err="dropped"} 0"#,
        r#"tgi_http_errors{status="408",error_type="request_timeout"} 1"#,
        r#"tgi_http_errors{status="413",error_type="payload_too_large"} 1"#,
        r#"tgi_http_errors{status="429",error_type="overloaded"} 1"#,
        r#"tgi_http_errors{status="404",error_type="not_found"} 1"#,
        r#"tgi_http_errors{status="405",error_type="method_not_allowed"} 1"#,
    ] {
        assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
    }
}

/// Eight requests that say too much or too little, four that cannot be read (one of them beside this), one too many,
/// two that succeed; and three that generate nothing.
async fn refuse_and_serve(server: &Server) {
    let message = json!([{"role": "user", "content": "Hi"}]);
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let refused = [
        // A tool that is not there, then a model without a template.
        (
            "/v1/chat/completions",
            json!({"messages": message, "tools": tool, "tool_choice": "none_such"}),
            422,
        ),
        ("/v1/chat/completions", json!({"messages": message}), 422),
        ("/v1/completions", json!({"prompt": vec!["a"; 33]}), 422),
        (
            "/v1/completions",
            json!({"prompt": "a", "suffix": "b"}),
            422,
        ),
        ("/v1/completions", json!({"prompt": ["a", "b", "c"]}), 422),
        ("/vertex", json!({"instances": []}), 422),
        (
            "/vertex",
            json!({"instances": [{"inputs": "a"}, {"messages": message}]}),
            422,
        ),
        ("/generate", json!({"inputs": ""}), 422),
    ];
    for (path, body, status) in &refused {
        let (given, answer) = server.ask(path, body).await;
        assert_eq!(given, *status, "{path}: {answer}");
    }
    server.mock.hold();
    let running = server
        .post_json("/generate_stream", &json!({"inputs": "Hi!"}))
        .await;
    let (status, _) = server
        .ask("/v1/completions", &json!({"prompt": ["a", "b"]}))
        .await;
    assert_eq!(status, 429);
    server.mock.resume();
    running.text().await.expect("a stream");
    let two = json!({"prompt": ["a!", "b!"]});
    assert_eq!(server.ask("/v1/completions", &two).await.0, 200);
    let unread = server.post("/generate").body("Hi").send().await;
    assert_eq!(unread.expect("an answer").status(), 415);
    assert_eq!(server.ask_raw("/v1/completions", "{").await.0, 400);
    let long = json!({"inputs": "a".repeat(1000)});
    assert_eq!(server.ask("/generate", &long).await.0, 413);
    // These are no requests to generate.
    assert_eq!(server.ask_raw("/tokenize", "3").await.0, 422);
    assert_eq!(server.ask("/nowhere", &json!({})).await.0, 404);
    let wrong = server.get("/generate").send().await;
    assert_eq!(wrong.expect("an answer").status(), 405);
}
