//! What the parameters of sampling become.

use std::sync::{Arc, Mutex};

use super::*;

#[tokio::test]
async fn parameters_mean_what_openai_means() {
    let seen = Arc::new(Mutex::new(None));
    let model = MockConfig {
        tokens: {
            let seen = seen.clone();
            Arc::new(move |row| {
                *seen.lock().expect("a lock") = Some((row.parameters.clone(), row.seed));
                EOS
            })
        },
        ..MockConfig::default()
    };
    let server = Server::with_template(PLAIN, model, &[]).await;
    let sent = async |keys| {
        ask_chat(&server, &chat("Hi", keys)).await;
        seen.lock().expect("a lock").take().expect("a request")
    };
    let (default, _) = sent(json!({"seed": 3})).await;
    assert!(default.do_sample && default.temperature == 1.0 && default.top_p == 1.0);
    assert!(default.penalize_output_only);
    // "Off" in the words of other servers, and OpenAI's own defaults.
    let (off, _) = sent(json!({"seed": 3, "top_p": 1, "top_k": -1, "min_p": 0, "typical_p": 1, "n": 1, "user": "me",
        "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": null, "stop": null, "store": false,
        "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": true, "tools": [], "tool_choice": "auto",
        "response_format": {"type": "text"}, "modalities": ["text"], "verbosity": "medium", "stop_token_ids": []})).await;
    assert_eq!(format!("{off:?}"), format!("{:?}", default));
    for greedy in [
        json!({"temperature": 0, "top_k": 5, "top_p": 0.5}),
        json!({"top_p": 0}),
    ] {
        assert!(!sent(greedy).await.0.do_sample);
    }
    let (all, seed) = sent(json!({"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.25, "typical_p": 0.75,
        "repetition_penalty": 1.5, "frequency_penalty": -2, "presence_penalty": 2, "logit_bias": {"5": -100, "9": 1.5},
        "seed": 42})).await;
    assert_eq!(
        (all.temperature, all.top_p, all.top_k, all.min_p),
        (0.5, 0.9, 7, 0.25)
    );
    assert_eq!((all.typical_p, all.repetition_penalty), (0.75, 1.5));
    assert_eq!((all.frequency_penalty, all.presence_penalty), (-2.0, 2.0));
    let bias: Vec<_> = all
        .logit_bias
        .iter()
        .map(|bias| (bias.id, bias.bias))
        .collect();
    assert_eq!((bias, seed), (vec![(5, -100.0), (9, 1.5)], 42));
    assert_eq!(sent(json!({"seed": -1})).await.1, u64::MAX);
}

#[tokio::test]
async fn end_of_sequence_tokens_can_be_ignored() {
    let server = Server::with_template(PLAIN, saying("ab"), &[]).await;
    let answer = ask_chat(
        &server,
        &chat(
            "Hi",
            json!({"ignore_eos": true, "min_tokens": 2, "max_tokens": 4}),
        ),
    )
    .await;
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}
