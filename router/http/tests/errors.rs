//! Every refusal is JSON with `error` and `error_type`, and the right status.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use common::{Server, answer, header};
use serde_json::{Value, json};

const ROUTES: [&str; 5] = [
    "/",
    "/generate",
    "/generate_stream",
    "/tokenize",
    "/invocations",
];

fn error(body: &Value) -> (&str, &str) {
    let keys: Vec<&String> = body.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["error", "error_type", "request_id"]);
    let text = |key: &str| body[key].as_str().expect("a string");
    (text("error"), text("error_type"))
}

#[tokio::test]
async fn bodies_that_are_not_json() {
    let server = Server::start().await;
    let deep = format!(
        r#"{{"inputs":"x","parameters":{{"grammar":{{"type":"json","value":{}1{}}}}}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    let bodies: Vec<Vec<u8>> = vec![
        b"{".to_vec(),
        b"xyz".to_vec(),
        br#"{"inputs":"x"} trailing"#.to_vec(),
        br#"{"inputs":"x",}"#.to_vec(),
        br#"{"inputs":NaN}"#.to_vec(),
        br#"{"inputs":"x","parameters":{"temperature":1e999}}"#.to_vec(),
        b"{\"inputs\":\"\xff\"}".to_vec(),
        b"{\"inputs\":\"a\nb\"}".to_vec(),
        b"\xef\xbb\xbf{\"inputs\":\"x\"}".to_vec(),
        deep.into_bytes(),
    ];
    for route in ROUTES {
        for body in &bodies {
            let (status, answer) = server.ask_raw(route, body.clone()).await;
            let shown = String::from_utf8_lossy(body);
            assert_eq!(status, 400, "{route} {shown}");
            let (message, kind) = error(&answer);
            assert_eq!(kind, "malformed_json", "{route} {shown}");
            assert!(message.starts_with("malformed JSON: "), "{message}");
        }
    }
}

#[tokio::test]
async fn what_an_empty_body_lacks_is_told_on_every_route() {
    let server = Server::that_chats().await;
    let document = serde_json::to_value(text_generation_http::routes::openapi()).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let routes: Vec<&String> = paths
        .iter()
        .filter(|(_, methods)| methods["post"]["requestBody"].is_object())
        .map(|(path, _)| path)
        .collect();
    assert!(routes.len() > 10, "{routes:?}");
    for route in routes {
        let message = |answer: &Value| {
            let error = &answer["error"];
            let message = error["message"].as_str().or_else(|| error.as_str());
            message.expect("a message").to_owned()
        };
        for empty in ["", " \n"] {
            let (status, answer) = server.ask_raw(route, empty).await;
            assert_eq!(status, 400, "{route}");
            let expected = "the request body is empty: send a JSON object";
            assert_eq!(message(&answer), expected, "{route}");
        }
        let (status, answer) = server.ask_raw(route, "{}").await;
        let said = message(&answer);
        let lacks = ["this server loads no adapters", "has no classes"];
        if lacks.iter().any(|lack| said.contains(lack)) {
            // Nothing that the body may have would help.
            continue;
        }
        assert!([400, 422].contains(&status), "{route}: {said}");
        let told = said.contains("` is missing") || said.contains("the body must have `inputs`");
        assert!(told, "{route}: {said}");
    }
}

/// Clients that cut a text at a number of UTF-16 units send half a pair.
#[tokio::test]
async fn half_a_surrogate_pair_is_the_replacement_character() {
    let server = Server::start().await;
    let ids = async |inputs: &str| {
        let body = format!(r#"{{"inputs":"{inputs}"}}"#);
        let (status, answer) = server.ask_raw("/tokenize", body).await;
        assert_eq!(status, 200, "{inputs}: {answer}");
        answer
    };
    let replaced = ids("a\u{fffd}b").await;
    for half in [r"a\ud83db", r"a\uDE00b"] {
        assert_eq!(ids(half).await, replaced, "{half}");
    }
    assert_eq!(ids(r"\ud83d\ude00").await, ids("\u{1f600}").await);
}

#[tokio::test]
async fn json_of_the_wrong_shape_names_the_path() {
    let server = Server::start().await;
    for (body, path) in [
        ("{}", "`inputs`"),
        (r#"{"inputs":1}"#, "`inputs`"),
        (r#"{"inputs":null}"#, "`inputs`"),
        (r#"{"inputs":"x","inputs":"y"}"#, "`inputs` is there twice"),
        (r#"{"inputs":"x","parameters":null}"#, "`parameters`"),
        // Not the first of the parameters in their order.
        (r#"{"inputs":"x","parameters":[1]}"#, "`parameters`"),
        (
            r#"{"inputs":"x","parameters":{"do_sample":null}}"#,
            "`parameters.do_sample`",
        ),
        (
            r#"{"inputs":"x","parameters":{"stop":["a",1]}}"#,
            "`parameters.stop[1]`",
        ),
        (
            r#"{"inputs":"x","parameters":{"stop":"a"}}"#,
            "`parameters.stop`",
        ),
        (
            r#"{"inputs":"x","parameters":{"max_new_tokens":-1}}"#,
            "`parameters.max_new_tokens`",
        ),
        (
            r#"{"inputs":"x","parameters":{"max_new_tokens":4294967296}}"#,
            "`parameters.max_new_tokens`",
        ),
        (
            r#"{"inputs":"x","parameters":{"max_new_tokens":1.5}}"#,
            "`parameters.max_new_tokens`",
        ),
        (
            r#"{"inputs":"x","parameters":{"seed":18446744073709551616}}"#,
            "`parameters.seed`",
        ),
        (
            r#"{"inputs":"x","parameters":{"top_k":"5"}}"#,
            "`parameters.top_k`",
        ),
        (
            r#"{"inputs":"x","parameters":{"logit_bias":{"a":1}}}"#,
            "`parameters.logit_bias",
        ),
        (r#"["x"]"#, "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("\"x\"", "must be a JSON object"),
    ] {
        for route in ROUTES {
            let (status, answer) = server.ask_raw(route, body).await;
            assert_eq!(status, 422, "{route} {body}");
            let (message, kind) = error(&answer);
            assert_eq!(kind, "validation");
            assert!(message.contains(path), "{body}: {message}");
            assert!(!message.contains(" at line "), "{message}");
        }
    }
}

/// Nobody who sends JSON has to know the types of Rust.
#[tokio::test]
async fn wrong_values_are_told_in_plain_words() {
    let server = Server::start().await;
    for (route, body, message) in [
        (
            "/generate",
            json!({"inputs": "x", "parameters": {"max_new_tokens": "x"}}),
            "`parameters.max_new_tokens` must be a whole number from 0 to 4294967295 (given: the text \"x\")",
        ),
        (
            "/generate",
            json!({"inputs": "x", "parameters": {"temperature": "hot"}}),
            "`parameters.temperature` must be a number (given: the text \"hot\")",
        ),
        (
            "/generate",
            json!({"inputs": "x", "parameters": {"stop": "a"}}),
            "`parameters.stop` must be a list (given: the text \"a\")",
        ),
        (
            "/generate",
            json!({"inputs": "x", "parameters": 5}),
            "`parameters` must be an object (given: 5)",
        ),
        (
            "/generate",
            json!({"inputs": "x", "parameters": {"grammar": 5}}),
            "`parameters.grammar` must be an object (given: 5)",
        ),
        (
            "/generate",
            json!({"inputs": "x", "parameters": {"grammar": {"type": "yaml", "value": ""}}}),
            "`parameters.grammar.type` must be one of `json`, `json_object`, `json_schema`, `regex` (given: the text \"yaml\")",
        ),
        (
            "/generate",
            json!({"inputs": "x", "parameters": {"grammar": {"type": 5, "value": ""}}}),
            "`parameters.grammar.type` must be a string",
        ),
        ("/generate", json!({}), "`inputs` is missing"),
        (
            "/tokenize",
            json!({}),
            "`inputs` is missing: send a text as `inputs` or `prompt`, or a chat as `messages`",
        ),
        (
            "/tokenize",
            json!({"prompt": "x", "add_special_tokens": "yes"}),
            "`add_special_tokens` must be true or false (given: the text \"yes\")",
        ),
        (
            "/detokenize",
            json!({}),
            "`ids` is missing: send token ids as `ids` or `tokens`",
        ),
    ] {
        let (status, answer) = server.ask(route, &body).await;
        let expected = format!("Input validation error: {message}");
        assert_eq!(
            (status, error(&answer)),
            (422, (expected.as_str(), "validation")),
            "{route} {body}"
        );
    }
}

/// The table itself is tested in `core`; here, that its errors come out of the front door.
#[tokio::test]
async fn rules_of_validation() {
    let server = Server::start().await;
    for (inputs, parameters, message) in [
        (
            "x",
            json!({"best_of": 3, "do_sample": true}),
            "`best_of` must be > 0 and <= 2. Given: 3",
        ),
        (
            "x",
            json!({"best_of": 0}),
            "`best_of` must be > 0 and <= 2. Given: 0",
        ),
        (
            "x",
            json!({"best_of": 2}),
            "you must use sampling when `best_of` is > 1",
        ),
        (
            "x",
            json!({"best_of": 2, "do_sample": true, "seed": 1}),
            "`seed` must not be set when `best_of` > 1",
        ),
        (
            "x",
            json!({"top_n_tokens": 6}),
            "`top_n_tokens` must be >= 0 and <= 5. Given: 6",
        ),
        (
            "x",
            json!({"temperature": 0}),
            "`temperature` must be strictly positive",
        ),
        (
            "x",
            json!({"temperature": 1e300}),
            "`temperature` must be <= 3.4028235e38",
        ),
        (
            "x",
            json!({"repetition_penalty": 1e300}),
            "`repetition_penalty` must be >= 1e-30 and <= 1e30. Given: more than 3.4028235e38",
        ),
        (
            "x",
            json!({"logit_bias": {"5": -1e300}}),
            "`logit_bias` must be >= -100.0 and <= 100.0. Given: less than -3.4028235e38 for the token id 5",
        ),
        (
            "x",
            json!({"repetition_penalty": -1}),
            "`repetition_penalty` must be strictly positive",
        ),
        (
            "x",
            json!({"repetition_penalty": 1e-45}),
            "`repetition_penalty` must be >= 1e-30 and <= 1e30. Given: 1e-45",
        ),
        (
            "x",
            json!({"frequency_penalty": 2.1}),
            "`frequency_penalty` must be >= -2.0 and <= 2.0",
        ),
        (
            "x",
            json!({"top_p": 1.0}),
            "`top_p` must be > 0.0 and < 1.0",
        ),
        (
            "x",
            json!({"top_k": 0}),
            "`top_k` must be strictly positive",
        ),
        (
            "x",
            json!({"typical_p": 1.5}),
            "`typical_p` must be > 0.0 and < 1.0",
        ),
        (
            "x",
            json!({"truncate": 0}),
            "`truncate` must be strictly positive and less than 1023. Given: 0",
        ),
        (
            "x",
            json!({"max_new_tokens": 0}),
            "`max_new_tokens` must be strictly positive",
        ),
        (
            "x",
            json!({"max_new_tokens": 1024}),
            "`inputs` tokens + `max_new_tokens` must be <= 1024. Given: 1 `inputs` tokens and 1024 `max_new_tokens`",
        ),
        ("", json!({}), "`inputs` cannot be empty"),
        (
            "x",
            json!({"stop": ["a", "b", "c", "d", "e"]}),
            "`stop` supports up to 4 stop sequences. Given: 5",
        ),
        (
            "x",
            json!({"stop": [""]}),
            "`stop` must not contain an empty string",
        ),
        (
            "x",
            json!({"grammar": {"type": "regex", "value": "("}}),
            "`grammar` is not valid: the regex cannot be used: unclosed group, at `(`",
        ),
    ] {
        let body = json!({"inputs": inputs, "parameters": parameters});
        let (status, answer) = server.ask("/generate", &body).await;
        assert_eq!(status, 422, "{body}");
        let expected = format!("Input validation error: {message}");
        assert_eq!(error(&answer), (expected.as_str(), "validation"), "{body}");
    }
    let long = json!({"inputs": "x".repeat(1024), "parameters": {"max_new_tokens": 1}});
    assert_eq!(server.ask("/generate", &long).await.0, 422);
}

#[tokio::test]
async fn content_types() {
    let server = Server::start().await;
    let ask = async |name: &'static str, value: &'static str| {
        let request = server.post("/generate").header(name, value);
        let request = request.body(r#"{"inputs":"Hi!"}"#);
        answer(request.send().await.expect("an answer")).await
    };
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "garbage"] {
        let (status, body) = ask("content-type", content_type).await;
        assert_eq!((status, error(&body).1), (415, "unsupported_media_type"));
    }
    assert_eq!(ask("accept", "*/*").await.0, 415, "no content type at all");
    assert_eq!(
        ask("content-type", "application/json; charset=utf-8")
            .await
            .0,
        200
    );
    let gzip = server.post("/generate").header("content-encoding", "gzip");
    let gzip = gzip
        .json(&json!({"inputs": "Hi!"}))
        .send()
        .await
        .expect("an answer");
    assert_eq!(gzip.status(), 415);
}

#[tokio::test]
async fn bodies_over_the_limit_with_and_without_a_length() {
    let server = Server::with_flags(&["--payload-limit=1000"]).await;
    let body = |length: usize| format!(r#"{{"inputs":"{}"}}"#, "x".repeat(length - 13));
    assert_eq!(server.ask_raw("/tokenize", body(1000)).await.0, 200);
    let (status, answer) = server.ask_raw("/tokenize", body(1001)).await;
    assert_eq!((status, error(&answer).1), (413, "payload_too_large"));
    assert!(error(&answer).0.contains("--payload-limit"));
    let pieces = vec![
        Ok::<_, std::io::Error>("{\"inputs\":\"x"),
        Ok("x".repeat(2000).leak()),
    ];
    let chunked = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
    let (status, answer) = server.ask_raw("/tokenize", chunked).await;
    assert_eq!((status, error(&answer).1), (413, "payload_too_large"));
}

#[tokio::test]
async fn a_body_far_over_the_limit_gets_its_answer() {
    let server = Server::start().await;
    let body = format!(r#"{{"inputs":"{}"}}"#, "x".repeat(10_000_000));
    let (status, answer) = server.ask_raw("/generate", body).await;
    assert_eq!((status, error(&answer).1), (413, "payload_too_large"));
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods() {
    let server = Server::start().await;
    for (path, hint) in [
        ("/nope", "`/docs` lists the routes"),
        ("/v2/health", "`/docs` lists the routes"),
        ("/generate/", "did you mean `/generate`?"),
        ("//generate", "did you mean `/generate`?"),
        ("/chat/completions", "did you mean `/v1/chat/completions`?"),
    ] {
        let response = server.get(path).send().await.expect("an answer");
        let (status, body) = answer(response).await;
        let (message, kind) = error(&body);
        assert_eq!((status, kind), (404, "not_found"), "{path}");
        assert!(message.ends_with(hint), "{message}");
    }
    // Below `/v1` in the shape that its clients read.
    for path in ["/v1/v1/chat/completions", "//v1/chat/completions/"] {
        let (status, body) = server.ask(path, &json!({})).await;
        let message = body["error"]["message"].as_str().expect("a message");
        assert_eq!(status, 404);
        assert!(message.contains("`/v1/chat/completions`"), "{message}");
    }
    let (_, body) = server.ask("//v1/messages", &json!({})).await;
    assert_eq!(body["error"]["type"], "not_found_error");
    let response = server.get("/generate").send().await.expect("an answer");
    assert_eq!(header(&response, "allow"), "POST");
    let (status, body) = answer(response).await;
    assert_eq!((status, error(&body).1), (405, "method_not_allowed"));
    let (status, _) = server.ask("/info", &json!({})).await;
    assert_eq!(status, 405);
}

#[tokio::test]
async fn overload_says_when_to_come_back() {
    let server = Server::with_flags(&["--max-concurrent-requests=1"]).await;
    server.mock.hold();
    let body = json!({"inputs": "Hi"});
    let running = server.post_json("/generate_stream", &body).await;
    let response = server.post_json("/generate", &body).await;
    assert_eq!(header(&response, "retry-after"), "1");
    let (status, answer) = answer(response).await;
    assert_eq!(status, 429);
    let message =
        "Model is overloaded: not enough of the 1 places of `--max-concurrent-requests` are free";
    assert_eq!(error(&answer), (message, "overloaded"));
    drop(running);
}

#[tokio::test]
async fn a_failed_step_is_a_failed_dependency_and_the_next_request_is_served() {
    let server = Server::start().await;
    server.mock.fail_next_step("out of memory");
    let body = json!({"inputs": "Hi!"});
    let (status, answer) = server.ask("/generate", &body).await;
    assert_eq!(status, 424);
    assert_eq!(
        error(&answer),
        (
            "Request failed during generation: Server error: out of memory",
            "generation"
        )
    );
    assert_eq!(server.ask("/generate", &body).await.0, 200);
}

#[tokio::test]
async fn odd_heads_are_refused_and_harm_nobody() {
    let server = Server::start().await;
    let mut request = server.get("/info");
    for n in 0..200 {
        request = request.header(format!("x-{n}"), "1");
    }
    assert_eq!(request.send().await.expect("an answer").status(), 431);
    let large = server.get("/info").header("x-large", "x".repeat(100_000));
    assert_eq!(large.send().await.expect("an answer").status(), 431);
    assert_eq!(
        server
            .get("/info")
            .send()
            .await
            .expect("an answer")
            .status(),
        200
    );
}
