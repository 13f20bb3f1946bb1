//! What requests share of each other's prompts, who shares it, and what the answers say of it.

use std::sync::Mutex;

use super::*;

/// So many tokens, as each byte is one.
const LENGTH: u32 = 100;

fn prompt() -> String {
    "Hello".repeat(LENGTH as usize / 5)
}

/// A short answer to the prompt.
fn body(keys: Value) -> Value {
    with(completion(prompt(), json!({"max_tokens": 2})), keys)
}

/// Tokens of the prompt that were cached, as the body says.
fn cached(answer: &Value) -> &Value {
    &answer["usage"]["prompt_tokens_details"]["cached_tokens"]
}

/// As the answer to a request with this key says.
async fn cached_with_key(server: &Server, key: &str, body: &Value) -> Value {
    let request = server.post("/v1/completions").bearer_auth(key).json(body);
    let (status, answer) = common::answer(request.send().await.expect("an answer")).await;
    assert_eq!(status, 200, "{answer}");
    cached(&answer).clone()
}

#[tokio::test]
async fn a_prompt_is_computed_once_and_answers_say_so() {
    let server = server().await;
    let answer = ask_completion(&server, &body(json!({}))).await;
    assert_eq!(cached(&answer), 0);
    // The last token of the prompt brings the first of the answer, so it is always computed.
    let answer = ask_completion(&server, &body(json!({}))).await;
    assert_eq!(cached(&answer), LENGTH - 1);
    let usage = json!({"stream_options": {"include_usage": true}});
    let streamed = events(&server, "/v1/completions", &body(usage)).await;
    assert_eq!(cached(streamed.last().expect("an event")), LENGTH - 1);
    let computed: Vec<u32> = server
        .mock
        .steps()
        .iter()
        .map(|step| step.chunk_tokens)
        .filter(|&tokens| tokens > 0)
        .collect();
    assert_eq!(computed, [LENGTH, 1, 1]);
    server.idle().await;
}

#[tokio::test]
async fn every_route_has_cached_tokens_in_a_header() {
    let server = server().await;
    let message = json!({"role": "user", "content": prompt()});
    let around = "<user><answer>".len() as u32;
    for (path, body, length) in [
        ("/v1/completions", body(json!({})), LENGTH),
        (
            "/v1/chat/completions",
            json!({"messages": [message], "max_tokens": 2}),
            LENGTH + around,
        ),
        (
            "/generate",
            json!({"inputs": format!("{}?", prompt()), "parameters": {"max_new_tokens": 2}}),
            LENGTH + 1,
        ),
    ] {
        server.post_json(path, &body).await;
        let again = server.post_json(path, &body).await;
        let expected = (length - 1).to_string();
        assert_eq!(header(&again, "x-cached-tokens"), expected, "{path}");
    }
}

#[tokio::test]
async fn requests_share_with_those_of_the_same_salt() {
    let server = Server::start().await;
    for (keys, expected) in [
        (json!({"cache_salt": "a"}), 0),
        (json!({"cache_salt": "b"}), 0),
        (json!({}), 0),
        (json!({"cache_salt": "a"}), LENGTH - 1),
        (json!({"cache_salt": "b"}), LENGTH - 1),
    ] {
        let answer = ask_completion(&server, &body(keys.clone())).await;
        assert_eq!(cached(&answer), expected, "{keys}");
    }
    let (status, answer) = server
        .ask(
            "/v1/completions",
            &body(json!({"cache_salt": "a".repeat(257)})),
        )
        .await;
    assert_eq!(
        (status, &answer["error"]["param"]),
        (422, &json!("cache_salt"))
    );
}

#[tokio::test]
async fn keys_share_nothing_where_the_operator_keeps_them_apart() {
    for (mode, others) in [("per-key", 0), ("true", LENGTH - 1), ("false", 0)] {
        let flags = [
            "--api-key=one\ntwo",
            &format!("--prefix-caching={mode}") as &str,
        ];
        let server = Server::with_flags(&flags).await;
        let own = if mode == "false" { 0 } else { LENGTH - 1 };
        for (key, expected) in [("one", 0), ("two", others), ("one", own), ("two", own)] {
            let cached = cached_with_key(&server, key, &body(json!({}))).await;
            assert_eq!(cached, expected, "{mode}: {key}");
        }
        server.idle().await;
    }
}

#[tokio::test]
async fn models_with_states_share_nothing_whatever_is_asked_for() {
    for mode in ["true", "per-key", "false"] {
        let model = MockConfig {
            recurrent: true,
            ..common::alphabet()
        };
        let flags = ["--api-key=one", &format!("--prefix-caching={mode}")];
        let server = Server::over(model, &flags, ServerLimits::default()).await;
        let info = server.get("/info").bearer_auth("one").send().await;
        let (_, info) = common::answer(info.expect("an answer")).await;
        assert_eq!(info["prefix_caching"], "false", "{mode}");
        let several = json!({"n": 2, "best_of": 2});
        for keys in [json!({}), json!({}), several] {
            assert_eq!(cached_with_key(&server, "one", &body(keys)).await, 0);
        }
        let computed = server
            .mock
            .steps()
            .into_iter()
            .map(|step| step.chunk_tokens);
        assert_eq!(computed.sum::<u32>(), 4 * LENGTH, "{mode}");
        server.idle().await;
    }
}

#[tokio::test]
async fn keys_that_are_kept_apart_may_have_salts_of_their_own() {
    let flags = ["--api-key=one\ntwo", "--prefix-caching=per-key"];
    let server = Server::with_flags(&flags).await;
    // As long as it may be.
    let salted = body(json!({"cache_salt": "s".repeat(256)}));
    for (key, body, expected) in [
        ("one", &salted, 0),
        ("two", &salted, 0),
        ("one", &body(json!({})), 0),
        ("one", &salted, LENGTH - 1),
    ] {
        assert_eq!(cached_with_key(&server, key, body).await, expected);
    }
}

#[tokio::test]
async fn requests_of_a_lower_priority_number_run_first() {
    let started = Arc::new(Mutex::new(Vec::new()));
    let order = started.clone();
    let model = MockConfig {
        tokens: Arc::new(move |row| {
            let last = row.input_ids.last().copied().unwrap_or(0);
            if row.generated == 0 {
                order.lock().expect("a list").push(last - BYTES);
            }
            last
        }),
        ..MockConfig::default()
    };
    let flags = ["--max-batch-size=1"];
    let server = Server::over(model, &flags, ServerLimits::default()).await;
    server.mock.hold();
    let mut answers = Vec::new();
    for (queued, (prompt, priority)) in [("a", 0), ("b", 1), ("c", 0), ("d", -1)].iter().enumerate()
    {
        let keys = json!({"priority": priority, "max_tokens": 1});
        let request = server
            .post("/v1/completions")
            .json(&completion(*prompt, keys));
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
    let started: Vec<u8> = started
        .lock()
        .expect("a list")
        .iter()
        .map(|&byte| byte as u8)
        .collect();
    assert_eq!(started, b"adcb");
}
