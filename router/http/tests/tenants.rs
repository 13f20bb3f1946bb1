//! What an API key may have of the server, and who is told apart behind a gateway.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};

use common::{BYTES, Server, answer, header, log};
use reqwest::Response;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use text_generation_http::connection::ServerLimits;
use text_generation_mock_shard::MockConfig;

const TENANT: &str = "x-gateway-inference-fairness-id";
const PRIORITY: &str = "x-priority";

fn file(content: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    file.write_all(content.as_bytes()).expect("written");
    file
}

/// A server with these lines in its file of keys.
async fn over(model: MockConfig, keys: &str, flags: &[&str]) -> Server {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let template = file(&json!({"chat_template": template}).to_string());
    let keys = file(keys);
    let given = [
        format!("--api-key-file={}", keys.path().display()),
        format!("--tokenizer-config-path={}", template.path().display()),
    ];
    let flags = flags
        .iter()
        .copied()
        .chain(given.iter().map(String::as_str));
    let flags: Vec<&str> = flags.collect();
    Server::over(model, &flags, ServerLimits::default()).await
}

async fn server(keys: &str, flags: &[&str]) -> Server {
    over(common::alphabet(), keys, flags).await
}

async fn send(server: &Server, path: &str, body: &Value, headers: &[(&str, &str)]) -> Response {
    let headers = headers.iter();
    let request = headers.fold(server.post(path).json(body), |request, (name, value)| {
        request.header(*name, *value)
    });
    request.send().await.expect("an answer")
}

/// Each API that refuses, with a body, and the `type` that its clients read.
fn apis() -> [(&'static str, Value, Option<&'static str>); 5] {
    let messages = json!([{"role": "user", "content": "Hi!"}]);
    let openai = Some("rate_limit_error");
    [
        ("/generate", json!({"inputs": "Hi!"}), None),
        ("/v1/completions", json!({"prompt": "Hi!"}), openai),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "stream": true}),
            openai,
        ),
        ("/v1/responses", json!({"input": "Hi!"}), openai),
        (
            "/v1/messages",
            json!({"max_tokens": 4, "messages": messages}),
            Some("rate_limit_error"),
        ),
    ]
}

/// Every API refuses a request with this key, in its own words, because of `limit`; returns when to come back.
async fn assert_refused(server: &Server, key: &str, limit: &str) -> u64 {
    let mut least = u64::MAX;
    for (path, body, kind) in apis() {
        let response = send(server, path, &body, &[("x-api-key", key)]).await;
        let seconds = header(&response, "retry-after").parse().expect("seconds");
        least = least.min(seconds);
        let (status, body) = answer(response).await;
        assert_eq!(status, 429, "{path}: {body}");
        let error = &body["error"];
        let text = error.as_str().or_else(|| error["message"].as_str());
        let text = text.expect("a message");
        assert!(text.contains(limit), "{path}: {text}");
        if limit.contains("tokens") {
            assert!(
                text.ends_with(&format!("try again in {seconds} s")),
                "{text}"
            );
        }
        assert_eq!(body["error_type"], "overloaded", "{path}");
        if let Some(kind) = kind {
            assert_eq!(error["type"], kind, "{path}");
        }
    }
    least
}

#[tokio::test]
async fn a_refusal_names_the_limit_of_the_key_or_of_the_server() {
    let keys = "few key=few max_concurrent_requests=1\nfree\n";
    let server = server(keys, &["--max-concurrent-requests=2"]).await;
    server.mock.hold();
    let body = json!({"inputs": "Hi!"});
    let of_few = send(&server, "/generate_stream", &body, &[("x-api-key", "few")]).await;
    assert_refused(&server, "few", "`max_concurrent_requests` of this key").await;
    let of_free = send(&server, "/generate_stream", &body, &[("x-api-key", "free")]).await;
    assert_refused(&server, "free", "`--max-concurrent-requests`").await;
    server.mock.resume();
    for running in [of_few, of_free] {
        running.text().await.expect("a stream");
    }
    server.idle().await;
    let response = send(&server, "/generate", &body, &[("x-api-key", "few")]).await;
    assert_eq!(response.status(), 200);
    let two = json!({"prompt": ["Hi!", "Hi!"]});
    let response = send(&server, "/v1/completions", &two, &[("x-api-key", "few")]).await;
    let (status, body) = answer(response).await;
    assert_eq!(status, 422);
    let text = body["error"]["message"].as_str().expect("a message");
    assert!(
        text.contains("at most 1 generations (`max_concurrent_requests`)"),
        "{text}"
    );
}

#[tokio::test]
async fn tokens_of_a_minute_are_prompts_and_answers_and_a_refusal_says_when_there_are_more() {
    let server = server("slow key=slow tokens_per_minute=60\nfree\n", &[]).await;
    let ask = async |prompt: String, key| {
        let body = json!({"inputs": prompt});
        send(&server, "/generate", &body, &[("x-api-key", key)]).await
    };
    let (status, body) = answer(ask("x".repeat(61), "slow").await).await;
    assert_eq!(status, 422, "{body}");
    let text = body["error"].as_str().expect("a message");
    assert!(text.contains("`tokens_per_minute`"), "{text}");
    // 58 tokens, and 4 of the answer: 3 of a prompt are there again after 5 seconds.
    let response = ask("x".repeat(57) + "!", "slow").await;
    assert_eq!(response.status(), 200);
    let seconds = assert_refused(&server, "slow", "`tokens_per_minute` of this key, 60,").await;
    assert!((1..=5).contains(&seconds), "{seconds}");
    assert_eq!(ask("Hi!".to_owned(), "free").await.status(), 200);
}

#[tokio::test]
async fn a_tenant_that_waits_is_not_behind_all_that_another_sent_before() {
    let started = Arc::new(Mutex::new(String::new()));
    let order = started.clone();
    let model = MockConfig {
        tokens: Arc::new(move |row| {
            let last = row.input_ids.last().copied().unwrap_or(0);
            if row.generated == 0 {
                let byte = u8::try_from(last - BYTES).unwrap_or(0);
                order.lock().expect("a list").push(byte.into());
            }
            last
        }),
        ..MockConfig::default()
    };
    let server = over(model, "a key=a\nb key=b\n", &["--max-batch-size=1"]).await;
    server.mock.hold();
    let mut answers = Vec::new();
    for (queued, key) in ["a", "a", "a", "a", "b"].into_iter().enumerate() {
        let body = json!({"prompt": key, "max_tokens": 1});
        let request = server.post("/v1/completions").bearer_auth(key).json(&body);
        answers.push(tokio::spawn(request.send()));
        common::until("the first runs and the others wait", async || {
            let gauges = server.state.infer.snapshot();
            (gauges.running, gauges.queued) == (1, queued)
        })
        .await;
    }
    server.mock.resume();
    for answer in answers {
        let answer = answer.await.expect("a request").expect("an answer");
        assert_eq!(answer.status(), 200);
    }
    assert_eq!(*started.lock().expect("a list"), "aabaa");
}

#[tokio::test]
async fn the_log_says_whose_request_it_was_and_no_key() {
    log::keep();
    let keys = "acme key=hunter2 weight=2\nhunter3\n";
    let flag = format!("--tenant-header={TENANT}");
    for (flags, of_named, of_plain) in [
        (&[][..], "acme", "key 2"),
        (&[flag.as_str()][..], "acme/team-a", "key 2/team-a"),
    ] {
        let server = server(keys, flags).await;
        for (key, tenant) in [("hunter2", of_named), ("hunter3", of_plain)] {
            for (path, body) in [
                ("/generate", json!({"inputs": "Hi!"})),
                ("/generate_stream", json!({"inputs": "Hi!"})),
                ("/v1/completions", json!({"prompt": "Hi!"})),
                ("/v1/completions", json!({"prompt": "Hi!", "stream": true})),
            ] {
                let headers = [("x-api-key", key), (TENANT, "team-a")];
                let response = send(&server, path, &body, &headers).await;
                response.text().await.expect("an answer");
                let log = log::take();
                assert!(log.contains(&format!("tenant=\"{tenant}\"")), "{log}");
                assert!(!log.contains("hunter"), "{log}");
            }
        }
    }
    let open = Server::start().await;
    open.ask("/generate", &json!({"inputs": "Hi!"})).await;
    let log = log::take();
    assert!(log.contains("Success") && !log.contains("tenant"), "{log}");
}

#[tokio::test]
async fn headers_of_a_gateway_count_where_they_are_asked_for() {
    let flags = [
        format!("--tenant-header={TENANT}"),
        format!("--priority-header={PRIORITY}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let reading = Server::with_flags(&flags).await;
    let deaf = Server::start().await;
    // The body alone would be refused.
    let body = json!({"prompt": "Hi!", "priority": i32::MIN});
    let long = "a".repeat(129);
    for (headers, status, name) in [
        (&[][..], 422, "priority"),
        (&[(PRIORITY, "-3"), (TENANT, "team a@b")][..], 400, TENANT),
        (&[(TENANT, long.as_str())][..], 400, TENANT),
        (&[(TENANT, "a"), (TENANT, "b")][..], 400, TENANT),
        (&[(TENANT, ""), (TENANT, "b")][..], 400, TENANT),
        (&[(PRIORITY, "high")][..], 400, PRIORITY),
        (&[(PRIORITY, "1"), (PRIORITY, "2")][..], 400, PRIORITY),
        (&[(PRIORITY, "-3"), (TENANT, "team-a")][..], 200, ""),
        (&[(PRIORITY, "-3"), (TENANT, "")][..], 200, ""),
    ] {
        let response = send(&reading, "/v1/completions", &body, headers).await;
        let (given, answer) = answer(response).await;
        assert_eq!(given, status, "{headers:?}: {answer}");
        assert!(answer.to_string().contains(name), "{headers:?}: {answer}");
        let response = send(&deaf, "/v1/completions", &body, headers).await;
        assert_eq!(response.status(), 422, "{headers:?}");
    }
    let probe = reading
        .get("/health")
        .header(TENANT, "no name")
        .send()
        .await;
    assert_eq!(probe.expect("an answer").status(), 200);
}
