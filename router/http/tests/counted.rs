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
    let server = Server::with_flags(&["--max-concurrent-requests=2"]).await;
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
    let response = server.get("/metrics").send().await.expect("an answer");
    let page = response.text().await.expect("a page");
    for line in [
        "tgi_request_count 11",
        "tgi_request_success 2",
        r#"tgi_request_failure{err="validation"} 6"#,
        r#"tgi_request_failure{err="template"} 2"#,
        r#"tgi_request_failure{err="overloaded"} 1"#,
    ] {
        assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains(r#"err="dropped""#), "{page}");
}
