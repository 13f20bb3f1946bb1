//! Whole answers: `/generate` and `/`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, which may fail"
)]

mod common;

use common::{Server, header};
use serde_json::{Value, json};

fn ask(inputs: &str, parameters: Value) -> Value {
    json!({"inputs": inputs, "parameters": parameters})
}

#[tokio::test]
async fn the_answer_is_the_text_alone_without_details() {
    let server = Server::start().await;
    let (status, body) = server
        .ask("/generate", &ask("Hi", json!({"max_new_tokens": 3})))
        .await;
    assert_eq!(status, 200);
    assert_eq!(body.to_string(), r#"{"generated_text":"abc"}"#);
}

#[tokio::test]
async fn details_have_the_keys_of_tgi_in_its_order() {
    let server = Server::start().await;
    let (_, body) = server
        .ask(
            "/generate",
            &ask("Hi", json!({"max_new_tokens": 2, "details": true})),
        )
        .await;
    insta::assert_snapshot!(body.to_string(), @r#"{"generated_text":"ab","details":{"finish_reason":"length","generated_tokens":2,"seed":null,"prefill":[],"tokens":[{"id":100,"text":"a","logprob":-0.5,"special":false},{"id":101,"text":"b","logprob":-0.5,"special":false}]}}"#);
}

#[tokio::test]
async fn end_of_sequence_is_a_token_but_no_text() {
    let server = Server::start().await;
    let (_, body) = server
        .ask("/generate", &ask("Hi!", json!({"details": true})))
        .await;
    assert_eq!(body["generated_text"], "abc");
    assert_eq!(body["details"]["finish_reason"], "eos_token");
    assert_eq!(body["details"]["generated_tokens"], 4);
    assert_eq!(
        body["details"]["tokens"][3],
        json!({"id": 2, "text": "</s>", "logprob": -0.5, "special": true})
    );
}

#[tokio::test]
async fn a_stop_string_ends_the_text_and_stays_in_it() {
    let server = Server::start().await;
    let parameters = json!({"max_new_tokens": 20, "stop": ["cd"], "details": true});
    let (_, body) = server.ask("/generate", &ask("Hi", parameters)).await;
    assert_eq!(body["generated_text"], "abcd");
    assert_eq!(body["details"]["finish_reason"], "stop_sequence");
}

#[tokio::test]
async fn top_tokens_and_the_full_text_come_when_asked_for() {
    let server = Server::start().await;
    let parameters =
        json!({"max_new_tokens": 2, "top_n_tokens": 2, "details": true, "return_full_text": true});
    let (_, body) = server.ask("/generate", &ask("Hi ", parameters)).await;
    assert_eq!(body["generated_text"], "Hi ab");
    let top = body["details"]["top_tokens"].as_array().expect("a list");
    assert_eq!(top.len(), 2);
    assert_eq!(
        top[1][1],
        json!({"id": 102, "text": "c", "logprob": -1.5, "special": false})
    );
}

#[tokio::test]
async fn prompt_logprobs_need_the_flag_and_imply_details() {
    let parameters = json!({"max_new_tokens": 1, "decoder_input_details": true});
    let body = ask("Hi", parameters);
    let without = Server::start().await.ask("/generate", &body).await.1;
    assert_eq!(without["details"]["prefill"], json!([]));
    let server = Server::with_flags(&["--enable-prefill-logprobs"]).await;
    let (_, with) = server.ask("/generate", &body).await;
    assert_eq!(
        with["details"]["prefill"],
        json!([{"id": 75, "text": "H", "logprob": null}, {"id": 108, "text": "i", "logprob": -1.0}])
    );
}

#[tokio::test]
async fn best_of_returns_the_others_too() {
    let server = Server::start().await;
    let parameters = json!({"max_new_tokens": 2, "best_of": 2, "do_sample": true, "details": true});
    let (status, body) = server.ask("/generate", &ask("Hi", parameters)).await;
    assert_eq!(status, 200);
    let others = body["details"]["best_of_sequences"]
        .as_array()
        .expect("a list");
    assert_eq!(others.len(), 1);
    assert_eq!(others[0]["generated_text"], "ab");
    let keys: Vec<&String> = others[0].as_object().expect("an object").keys().collect();
    assert_eq!(
        keys,
        [
            "generated_text",
            "finish_reason",
            "generated_tokens",
            "seed",
            "prefill",
            "tokens"
        ]
    );
    assert!(others[0]["seed"].is_u64());
}

#[tokio::test]
async fn without_parameters_the_text_is_sampled_and_with_them_it_is_not() {
    let server = Server::start().await;
    let sampled = server.post_json("/", &json!({"inputs": "Hi!"})).await;
    assert_eq!(sampled.status(), 200);
    let seed =
        async |body: Value| server.ask("/generate", &body).await.1["details"]["seed"].clone();
    assert!(seed(ask("Hi!", json!({"details": true}))).await.is_null());
    let given = ask(
        "Hi!",
        json!({"details": true, "do_sample": true, "seed": 7}),
    );
    assert_eq!(seed(given).await, 7);
}

#[tokio::test]
async fn null_stands_for_a_missing_number_but_not_for_parameters() {
    let server = Server::start().await;
    let nulls = json!({
        "best_of": null, "temperature": null, "repetition_penalty": null, "frequency_penalty": null, "top_k": null,
        "top_p": null, "typical_p": null, "max_new_tokens": 2, "return_full_text": null, "truncate": null,
        "seed": null, "top_n_tokens": null, "grammar": null, "adapter_id": null, "some_new_key": {"a": 1},
    });
    let (status, body) = server.ask("/generate", &ask("Hi", nulls)).await;
    assert_eq!((status, body), (200, json!({"generated_text": "ab"})));
    let (status, body) = server.ask("/generate", &ask("Hi", Value::Null)).await;
    assert_eq!(status, 422);
    assert_eq!(body["error_type"], "validation");
}

#[tokio::test]
async fn the_older_route_wraps_the_answer_and_repeats_the_prompt() {
    let server = Server::start().await;
    let (_, body) = server
        .ask("/", &ask("Hi ", json!({"max_new_tokens": 2})))
        .await;
    assert_eq!(body.to_string(), r#"[{"generated_text":"Hi ab"}]"#);
    let parameters = json!({"max_new_tokens": 2, "return_full_text": false});
    let (_, body) = server.ask("/", &ask("Hi ", parameters)).await;
    assert_eq!(body, json!([{"generated_text": "ab"}]));
}

#[tokio::test]
async fn headers_tell_times_and_sizes() {
    let server = Server::start().await;
    let response = server
        .post_json("/generate", &ask("né", json!({"max_new_tokens": 5})))
        .await;
    assert_eq!(header(&response, "x-compute-type"), "1-cpu");
    assert_eq!(header(&response, "x-compute-characters"), "2");
    assert_eq!(header(&response, "x-prompt-tokens"), "3");
    assert_eq!(header(&response, "x-generated-tokens"), "5");
    let seconds: f64 = header(&response, "x-compute-time")
        .parse()
        .expect("seconds");
    let milliseconds = |name| {
        header(&response, name)
            .parse::<u64>()
            .expect("milliseconds")
    };
    let parts = milliseconds("x-validation-time")
        + milliseconds("x-queue-time")
        + milliseconds("x-inference-time");
    let total = milliseconds("x-total-time");
    assert!(parts <= total && total <= parts + 3, "{parts} of {total}");
    assert_eq!((seconds * 1000.0) as u64, total);
    assert!(milliseconds("x-time-per-token") <= total);
}

#[tokio::test]
async fn the_request_id_is_made_or_echoed() {
    let server = Server::start().await;
    let response = server.get("/info").send().await.expect("an answer");
    assert_eq!(header(&response, "x-request-id").len(), 36);
    let request = server.post("/generate").header("x-request-id", "mine-1");
    let response = request
        .json(&json!({"inputs": ""}))
        .send()
        .await
        .expect("an answer");
    assert_eq!(response.status(), 422);
    assert_eq!(header(&response, "x-request-id"), "mine-1");
}

#[tokio::test]
async fn every_form_of_a_grammar_is_enforced() {
    let server = Server::start().await;
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    for grammar in [
        json!({"type": "json", "value": schema}),
        json!({"type": "json", "value": schema.to_string()}),
        json!({"type": "json_schema", "value": {"name": "n", "schema": schema}}),
    ] {
        let parameters = json!({"grammar": grammar, "max_new_tokens": 60});
        let (status, body) = server.ask("/generate", &ask("Hi", parameters)).await;
        assert_eq!(status, 200, "{body}");
        let text = body["generated_text"].as_str().expect("a text");
        let value: Value =
            serde_json::from_str(text).unwrap_or_else(|_| panic!("{grammar}: {text}"));
        assert!(value["ok"].is_boolean(), "{text}");
    }
    let parameters = json!({"grammar": {"type": "regex", "value": "x[0-9]"}});
    let (_, body) = server.ask("/generate", &ask("Hi", parameters)).await;
    let text = body["generated_text"].as_str().expect("a text");
    assert!(text.len() == 2 && text.starts_with('x'), "{text}");
    server.idle().await;
}
