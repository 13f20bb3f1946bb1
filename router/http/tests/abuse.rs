//! Bodies that try to break the server: each gets an answer that says what is wrong, and the server serves on.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use std::sync::Arc;

use common::{BYTES, Server, alphabet, until};
use serde_json::{Value, json};
use text_generation_http::connection::ServerLimits;
use text_generation_mock_shard::MockConfig;
use tokio::io::AsyncWriteExt;

/// The server is as before: it answers, and nothing is left behind.
async fn unharmed(server: &Server) {
    let (status, answer) = server.ask("/generate", &json!({"inputs": "Hi!"})).await;
    assert_eq!((status, &answer["generated_text"]), (200, &json!("abc")));
    server.idle().await;
}

#[tokio::test]
async fn depth_of_json() {
    let server = Server::start().await;
    let nested = |depth: usize| {
        format!(
            r#"{{"inputs":"x","parameters":{{"grammar":{{"type":"json","value":{}{}}}}}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        )
    };
    // The three objects around it count; serde_json reads 127 levels.
    for (depth, status) in [
        (124, 422),
        (125, 400),
        (127, 400),
        (128, 400),
        (900_000, 400),
    ] {
        let (given, answer) = server.ask_raw("/generate", nested(depth)).await;
        assert_eq!(given, status, "{depth}: {answer}");
    }
    let open = format!(r#"{{"inputs":{}"#, "[".repeat(1_000_000));
    assert_eq!(server.ask_raw("/generate", open).await.0, 400);
    // Fields that nobody reads count like all others.
    let unknown = |depth: usize| {
        let (open, close) = (r#"{"a":["#.repeat(depth / 2), "]}".repeat(depth / 2));
        format!(r#"{{"inputs":"Hi!","ignored":{open}{close}}}"#)
    };
    for (depth, status) in [(126, 200), (128, 400), (200_000, 400)] {
        let (given, answer) = server.ask_raw("/generate", unknown(depth)).await;
        assert_eq!(given, status, "{depth}: {answer}");
    }
    unharmed(&server).await;
}

#[tokio::test]
async fn odd_but_valid_json() {
    let server = Server::start().await;
    for (body, status) in [
        (
            r#"{"inputs":"Hi!","unknown":1,"parameters":{"what":{"is":["this"]},"details":false}}"#,
            200,
        ),
        (r#" {"inputs" : "Hi!"}  "#, 200),
        (r#"{"inputs":"\ud83d\ude42!"}"#, 200),
        (r#"{"inputs":"a\u0000!"}"#, 200),
        (r#"{"inputs":"Hi!","parameters":{"seed":1,"seed":2}}"#, 422),
        (r#"{"inputs":"\udc00!"}"#, 200),
        (r#"{"inputs":Infinity}"#, 400),
        (
            r#"{"inputs":"Hi!","parameters":{"temperature":-Infinity}}"#,
            400,
        ),
        (r#"{"inputs":{"inputs":"Hi!"}}"#, 422),
    ] {
        let (given, answer) = server.ask_raw("/generate", body).await;
        assert_eq!(given, status, "{body}: {answer}");
    }
    unharmed(&server).await;
}

#[tokio::test]
async fn long_strings() {
    let server = Server::start().await;
    let ask = async |length: usize| {
        let (status, answer) = server
            .ask("/generate", &json!({"inputs": "x".repeat(length)}))
            .await;
        (
            status,
            answer["error"].as_str().unwrap_or_default().to_owned(),
        )
    };
    assert_eq!(ask(10_000_000).await.0, 413);
    let (status, message) = ask(100_000).await;
    assert_eq!(status, 422);
    assert!(
        message.len() < 500 && message.contains("100000 bytes"),
        "{message}"
    );
    unharmed(&server).await;
}

#[tokio::test]
async fn messages_name_long_values_in_short() {
    let server = Server::that_chats().await;
    let long = "é".repeat(50_000);
    for (route, body) in [
        (
            "/generate",
            json!({"inputs": "Hi!", "parameters": {"top_k": long}}),
        ),
        (
            "/generate",
            json!({"inputs": "Hi!", "parameters": {"grammar": {"type": long}}}),
        ),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": [{"type": long}]}], "max_tokens": 3}),
        ),
        ("/v1/responses", json!({"input": [{"type": long}]})),
    ] {
        let (status, answer) = server.ask(route, &body).await;
        // Anthropic's APIs call it 400.
        assert!(matches!(status, 400 | 422), "{route}: {status}");
        let answer = answer.to_string();
        assert!(
            answer.len() < 8000 && answer.contains("[...]"),
            "{route}: {answer:.300}"
        );
    }
    unharmed(&server).await;
}

/// Takes all the memory for large requests but so many bytes, until the share is dropped.
macro_rules! leave {
    ($server:expr, $bytes:expr) => {{
        let share = $server.state.options.memory.share();
        let all = 448 * 1024 * 1024;
        share.resize(all - $bytes).expect("nobody holds any");
        share
    }};
}

#[tokio::test]
async fn bodies_that_no_memory_is_left_for_are_told_to_come_back() {
    let server = Server::start().await;
    let taken = leave!(server, 100_000);
    let large = json!({"inputs": "Hi!", "unused": "x".repeat(90_000)});
    for route in ["/generate", "/tokenize", "/v1/completions"] {
        let response = server.post_json(route, &large).await;
        assert_eq!(common::header(&response, "retry-after"), "1");
        let (status, answer) = common::answer(response).await;
        assert_eq!((status, &answer["error_type"]), (429, &json!("overloaded")));
    }
    unharmed(&server).await;
    drop(taken);
    assert_eq!(server.ask("/generate", &large).await.0, 200);
}

#[tokio::test]
async fn small_values_count_with_what_they_take() {
    let server = Server::start().await;
    let taken = leave!(server, 1_000_000);
    let text: Value = "[0],".repeat(10_000).into();
    let lists: Value = vec![json!([0]); 10_000].into();
    let status = async |route, prompt: &str, unused: &Value| {
        let body = json!({prompt: "Hi!", "unused": unused});
        server.ask(route, &body).await.0
    };
    for (route, prompt) in [("/generate", "inputs"), ("/v1/completions", "prompt")] {
        assert_eq!(status(route, prompt, &text).await, 200);
        assert_eq!(status(route, prompt, &lists).await, 429);
    }
    drop(taken);
    assert_eq!(status("/generate", "inputs", &lists).await, 200);
}

#[tokio::test]
async fn token_ids_that_were_read_count_as_little_as_they_take() {
    let server = Server::start().await;
    server.mock.hold();
    let body = json!({"prompt": vec![65; 500], "max_tokens": 1});
    let asked = async { server.ask("/v1/completions", &body).await.0 };
    let looked = async {
        let running = async || server.state.infer.snapshot().running == 1;
        until("it is queued", running).await;
        // While it was read, the list counted as more than 200 kB.
        let _rest = leave!(server, 50_000);
        server.mock.resume();
    };
    assert_eq!(tokio::join!(asked, looked).0, 200);
}

#[tokio::test]
async fn half_a_body_holds_memory_until_it_is_given_up() {
    let server = Server::start().await;
    let _taken = leave!(server, 1_000_000);
    let body = json!({"inputs": "Hi!", "unused": "x".repeat(90_000)});
    let mut half = server.connect().await;
    let head = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
        content-length: 900001\r\n\r\n";
    let sent = [head.as_bytes(), &[b' '; 900_000]].concat();
    half.write_all(&sent).await.expect("sent");
    let status = async || server.ask("/generate", &body).await.0;
    until("there is no room for a second", async || {
        status().await == 429
    })
    .await;
    drop(half);
    until("its memory is back", async || status().await == 200).await;
}

#[tokio::test]
async fn answers_that_nobody_takes_hold_memory_and_those_that_are_taken_none() {
    const STEP: usize = 100 * 1024;
    let server = Server::start().await;
    let free = || {
        let share = server.state.options.memory.share();
        let steps = (0..).take_while(|steps| share.resize(steps * STEP).is_ok());
        steps.count()
    };
    let all = free();
    // Far more than sockets hold. Each takes a byte of the text, four of its id and eight of its place.
    let tokens = 30 * STEP / 13;
    let body = json!({"inputs": "x".repeat(tokens)});
    let response = server.post_json("/tokenize", &body).await;
    assert_eq!(response.status(), 200);
    assert!((30..=31).contains(&(all - free())), "{}", all - free());
    let list = response.text().await.expect("a list of tokens");
    assert_eq!(list.matches(r#"{"id":"#).count(), tokens);
    let (id, start) = (BYTES + u32::from(b'x'), tokens - 1);
    let last = format!(r#",{{"id":{id},"text":"x","start":{start},"stop":{tokens}}}]"#);
    assert!(list.starts_with("[{") && list.ends_with(&last));
    until("all is given back", async || free() == all).await;
}

#[tokio::test]
async fn long_texts_of_ids_are_bounded_too() {
    let server = Server::start().await;
    let _taken = leave!(server, 50_000_000);
    let many = |count: usize| json!({"ids": vec![BYTES + u32::from(b'x'); count]});
    assert_eq!(server.ask("/detokenize", &many(450_000)).await.0, 429);
    let (status, answer) = server.ask("/detokenize", &many(100_000)).await;
    assert_eq!(status, 200);
    assert_eq!(answer["text"].as_str().map(str::len), Some(100_000));
}

#[tokio::test]
async fn compressed_bodies_are_never_unpacked() {
    let server = Server::start().await;
    // The start of a gzip member; what would come out does not matter.
    let member = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03".repeat(100);
    for encoding in ["gzip", "deflate", "br", "zstd", "identity, gzip"] {
        let request = server
            .post("/generate")
            .header("content-type", "application/json");
        let request = request
            .header("content-encoding", encoding)
            .body(member.clone());
        assert_eq!(
            request.send().await.expect("an answer").status(),
            415,
            "{encoding}"
        );
    }
    unharmed(&server).await;
}

/// Numbers at and beyond the ends of their types, as JSON writes them.
const NUMBERS: [&str; 16] = [
    "-1",
    "0",
    "1",
    "2",
    "127",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "1e308",
    "-1e-308",
];

#[tokio::test]
async fn every_number_at_its_ends() {
    let server = Server::start().await;
    let fields = [
        "best_of",
        "temperature",
        "repetition_penalty",
        "frequency_penalty",
        "top_k",
        "top_p",
        "typical_p",
        "max_new_tokens",
        "truncate",
        "seed",
        "top_n_tokens",
        "min_p",
        "min_new_tokens",
    ];
    for field in fields {
        for number in NUMBERS
            .into_iter()
            .chain(["1e309", "0.5", "-0.0", "5e-324"])
        {
            // Nothing but the field under test can make the answer long.
            let body = format!(r#"{{"inputs":"Hi!","parameters":{{"{field}":{number}}}}}"#);
            for route in ["/generate", "/generate_stream"] {
                let response = server
                    .post(route)
                    .header("content-type", "application/json");
                let response = response.body(body.clone()).send().await.expect("an answer");
                let status = response.status().as_u16();
                assert!(
                    matches!(status, 200 | 400 | 422),
                    "{route} {body}: {status}"
                );
                let text = response.text().await.expect("a body");
                assert!(
                    !text.contains("\"internal\"") && !text.contains("\"generation\""),
                    "{body}: {text}"
                );
            }
        }
    }
    for number in NUMBERS {
        let (status, _) = server
            .ask_raw("/detokenize", format!(r#"{{"ids":[{number}]}}"#))
            .await;
        assert!(matches!(status, 200 | 422), "{number}: {status}");
    }
    unharmed(&server).await;
}

#[tokio::test]
async fn stop_strings() {
    let server = Server::start().await;
    let ask = async |stop: Value| {
        let body = json!({"inputs": "Hi!", "parameters": {"stop": stop}});
        let (status, answer) = server.ask("/generate", &body).await;
        (status, answer["generated_text"].clone())
    };
    let many: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    assert_eq!(ask(json!(many)).await.0, 422);
    assert_eq!(ask(json!([""])).await.0, 422);
    assert_eq!(ask(json!(["a", ""])).await.0, 422);
    // The text of a special token is not in the text, so it stops nothing.
    assert_eq!(ask(json!(["</s>"])).await, (200, json!("abc")));
    assert_eq!(ask(json!(["b"])).await, (200, json!("ab")));
    assert_eq!(ask(json!(["x".repeat(4096)])).await, (200, json!("abc")));
    assert_eq!(ask(json!(["x".repeat(4097)])).await.0, 422);
    unharmed(&server).await;
}

/// Characters of two, three and four bytes, one byte a token, with bytes between them that are none.
#[tokio::test]
async fn bytes_of_a_character_in_several_tokens_are_never_sent_broken() {
    const SAID: &[u8] = b"\xc3\xa9 \xe4\xbd\xa0\xf0\x9f\x99\x82\xff\xe4!\x80\xf0\x9f";
    let model = MockConfig {
        tokens: Arc::new(|row| BYTES + u32::from(SAID[row.generated as usize % SAID.len()])),
        ..alphabet()
    };
    let server = Server::over(model, &[], ServerLimits::default()).await;
    let parameters = json!({"max_new_tokens": SAID.len(), "details": true});
    let body = json!({"inputs": "Hi", "parameters": parameters});
    let response = server.post_json("/generate_stream", &body).await;
    let bytes = response.bytes().await.expect("a body");
    let text = std::str::from_utf8(&bytes).expect("UTF-8");
    let events = text.trim_end().split("\n\n").map(|event| {
        let json = event.strip_prefix("data: ").expect("an event");
        serde_json::from_str::<Value>(json).expect("JSON")
    });
    let events: Vec<Value> = events.collect();
    let streamed: String = events
        .iter()
        .filter_map(|event| event["token"]["text"].as_str())
        .collect();
    assert_eq!(streamed, String::from_utf8_lossy(SAID));
    assert_eq!(events.last().expect("an event")["generated_text"], streamed);
}

#[tokio::test]
async fn what_a_body_may_hold_is_bounded_on_every_route() {
    let server = Server::start().await;
    let ids = format!(r#"{{"ids":[{}0]}}"#, "0,".repeat(1_000_000));
    assert_eq!(server.ask_raw("/detokenize", ids).await.0, 413);
    let large = Server::with_flags(&["--payload-limit=10000000"]).await;
    let ids = format!(r#"{{"ids":[{}0]}}"#, "0,".repeat(1_000_000));
    let (status, answer) = large.ask_raw("/detokenize", ids).await;
    assert_eq!(status, 422);
    let message = answer["error"].as_str().expect("a message");
    assert!(
        message.contains("`ids` supports up to 1000000 token ids. Given: 1000001"),
        "{message}"
    );
}

#[tokio::test]
async fn a_template_that_doubles_what_it_has_refuses_chats_and_nothing_else() {
    for step in [
        "{% set ns.a = ns.a ~ ns.a %}",
        "{% set ns.l = ns.l + ns.l %}",
        "{% set ns.l = [ns.l, ns.l] %}{{ ns.l }}",
    ] {
        let template = format!(
            "{{% set ns = namespace(a='aaaaaaaa', l=[1]) %}}{{% for i in range(1000) %}}{step}{{% endfor %}}{{{{ ns.a }}}}"
        );
        let config = json!({"chat_template": template});
        let server = Server::with_model_file(alphabet(), "tokenizer_config.json", &config).await;
        let chat = json!({"messages": [{"role": "user", "content": "Hi!"}]});
        let (status, answer) = server.ask("/v1/chat/completions", &chat).await;
        assert_eq!(status, 422, "{answer}");
        assert_eq!(answer["error_type"], "template_error", "{answer}");
        server.good("/generate", &json!({"inputs": "Hi!"})).await;
    }
}
