//! `/v1/classify`. The logits of the mock are the id of the last token modulo 8, divided by 1, by 2, and so on.

use super::*;
use crate::common::alphabet;

/// A server over a classifier of three classes, whose `config.json` says so.
async fn classifier(config: &Value) -> Server {
    let model = MockConfig {
        classes: 3,
        ..alphabet()
    };
    Server::with_model_file(model, "config.json", config).await
}

fn named() -> Value {
    json!({"id2label": {"0": "no", "1": "perhaps", "2": "yes"}})
}

fn probs(answer: &Value) -> Vec<Vec<f64>> {
    let data = answer["data"].as_array().expect("classes");
    let numbers = |each: &Value| serde_json::from_value(each["probs"].clone()).expect("numbers");
    data.iter().map(numbers).collect()
}

/// Of texts that end with `a`, and of the id 100.
const LOGITS: [f64; 3] = [4.0, 2.0, (4.0_f32 / 3.0) as f64];

fn softmax() -> Vec<f64> {
    let powers = LOGITS.map(f64::exp);
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

#[tokio::test]
async fn each_text_has_its_classes_in_order() {
    let server = classifier(&named()).await;
    let body = json!({"input": ["Hi a", "Bye a"], "model": "tgi"});
    let answer = server.good("/v1/classify", &body).await;
    assert_eq!(answer["object"], "list");
    assert_eq!(answer["model"], "test/model");
    assert!(
        answer["id"]
            .as_str()
            .expect("an id")
            .starts_with("classify-")
    );
    for (index, each) in answer["data"].as_array().expect("two").iter().enumerate() {
        assert_eq!(each["index"], index);
        assert_eq!(each["label"], "no");
        assert_eq!(each["num_classes"], 3);
    }
    let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9);
    assert!(
        probs(&answer).iter().all(|each| close(each, &softmax())),
        "{answer}"
    );
    assert_eq!(answer["usage"]["prompt_tokens"], 9);
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    assert_eq!(answer["usage"]["total_tokens"], 9);
    let body = json!({"input": [200, 100], "use_activation": false});
    let one = server.good("/v1/classify", &body).await;
    assert_eq!(probs(&one), [LOGITS]);
    server.idle().await;
}

#[tokio::test]
async fn logits_are_there_for_the_asking_and_where_they_are_values() {
    let server = classifier(&named()).await;
    for field in ["use_activation", "activation"] {
        let body = json!({"input": [[7, 100]], field: false});
        assert_eq!(probs(&server.good("/v1/classify", &body).await), [LOGITS]);
    }
    let both = json!({"input": [[7, 100]], "use_activation": false, "activation": true});
    let (status, refused) = server.ask("/v1/classify", &both).await;
    assert_eq!(status, 422, "{refused}");
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(message.contains("`use_activation`"), "{message}");
    let server = classifier(&json!({"problem_type": "regression"})).await;
    let answer = server
        .good("/v1/classify", &json!({"input": [7, 100]}))
        .await;
    assert_eq!(probs(&answer), [LOGITS]);
    assert_eq!(answer["data"][0]["label"], "LABEL_0");
    let info = answer_of(server.get("/info")).await;
    assert_eq!(info["model_pipeline_tag"], "text-classification");
    let labels = ["LABEL_0", "LABEL_1", "LABEL_2"];
    assert_eq!(
        info["classifier"],
        json!({"labels": labels, "activation": "none"})
    );
}

async fn answer_of(request: reqwest::RequestBuilder) -> Value {
    let answer = request.send().await.expect("an answer");
    answer.json().await.expect("JSON")
}

#[tokio::test]
async fn a_prefix_is_computed_once_and_a_long_text_in_chunks() {
    let model = MockConfig {
        classes: 2,
        ..alphabet()
    };
    let flags = ["--max-batch-prefill-tokens", "64"];
    let server = Server::over(model, &flags, ServerLimits::default()).await;
    let text = "x".repeat(500);
    let body = json!({"input": [format!("{text}a")], "use_activation": false});
    let first = server.good("/v1/classify", &body).await;
    assert_eq!(probs(&first), [[4.0, 2.0]]);
    let body = json!({"input": format!("{text}b"), "use_activation": false});
    let second = server.good("/v1/classify", &body).await;
    assert_eq!(probs(&second), [[5.0, 2.5]]);
    let cached = &second["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(*cached, 500);
    let body = json!({"input": format!("{text}ab"), "truncate_prompt_tokens": 2});
    let cut = server.good("/v1/classify", &body).await;
    assert_eq!(cut["usage"]["prompt_tokens"], 2);
    let body = json!({"input": "x".repeat(2_000), "truncate_prompt_tokens": -1});
    let cut = server.good("/v1/classify", &body).await;
    assert_eq!(cut["usage"]["prompt_tokens"], 1_023);
    server.idle().await;
}

#[tokio::test]
async fn a_conversation_is_what_its_template_makes_of_it() {
    let model = MockConfig {
        classes: 2,
        ..alphabet()
    };
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}\
        {% if add_generation_prompt %}z{% endif %}";
    let server = Server::with_template(template, model, &[]).await;
    let messages =
        json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}]);
    for (more, last) in [
        (json!({}), "a"),
        (json!({"add_generation_prompt": true}), "z"),
        (json!({"chat_template_kwargs": {"mood": "b"}}), "b"),
    ] {
        let mut body = json!({"messages": messages, "use_activation": false});
        body.as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("one").clone());
        let id = f64::from(BYTES + u32::from(last.as_bytes()[0]));
        let answer = server.good("/v1/classify", &body).await;
        assert_eq!(probs(&answer), [[id % 8.0, id % 8.0 / 2.0]], "{body}");
    }
    server.idle().await;
}

#[tokio::test]
async fn what_cannot_be_classified_is_refused_by_name() {
    let server = classifier(&named()).await;
    let hi = json!([{"role": "user", "content": "Hi"}]);
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": vec!["a"; 33]}), "input"),
        (json!({"input": ["a", ""]}), "input"),
        (json!({"input": [99_999]}), "input"),
        (json!({"input": "x".repeat(2_000)}), "input"),
        (json!({"input": "a", "messages": hi}), "messages"),
        (json!({"messages": []}), "messages"),
        (
            json!({"messages": [{"role": "user"}]}),
            "messages[0].content",
        ),
        (
            json!({"input": "a", "truncate_prompt_tokens": -2}),
            "truncate_prompt_tokens",
        ),
        (json!({"input": "a", "max_tokens": 3}), "max_tokens"),
        (json!({"input": "a", "prompt": "b"}), "prompt"),
    ] {
        let (status, answer) = server.ask("/v1/classify", &body).await;
        assert!((400..500).contains(&status), "{body}: {answer}");
        assert_eq!(answer["error"]["param"], param, "{body}: {answer}");
    }
    server.idle().await;
}

#[tokio::test]
async fn a_classifier_refuses_to_generate_and_says_what_it_does() {
    let server = classifier(&named()).await;
    let hi = json!([{"role": "user", "content": "Hi"}]);
    for (path, body) in [
        ("/", json!({"inputs": "Hi"})),
        ("/generate", json!({"inputs": "Hi"})),
        ("/generate_stream", json!({"inputs": "Hi"})),
        ("/invocations", json!({"messages": hi})),
        ("/invocations", json!({"inputs": "Hi"})),
        ("/vertex", json!({"instances": [{"inputs": "Hi"}]})),
        ("/v1/chat/completions", json!({"messages": hi})),
        ("/v1/completions", json!({"prompt": "Hi"})),
        ("/v1/score", json!({"prompt": "Hi", "choices": ["a"]})),
        ("/v1/responses", json!({"input": "Hi"})),
        ("/v1/messages", json!({"messages": hi, "max_tokens": 3})),
    ] {
        let (status, answer) = server.ask(path, &body).await;
        assert!((400..500).contains(&status), "{path}: {answer}");
        let says = answer["error"]
            .as_str()
            .unwrap_or(answer["error"]["message"].as_str().unwrap_or_default());
        assert!(says.contains("/v1/classify"), "{path}: {answer}");
    }
    let health = server.get("/health").send().await.expect("an answer");
    assert_eq!(health.status(), 200);
    server.idle().await;
}

#[tokio::test]
async fn a_model_that_generates_has_no_classes() {
    let server = server().await;
    let (status, answer) = server.ask("/v1/classify", &json!({"input": "Hi"})).await;
    assert_eq!(status, 422);
    let says = answer["error"]["message"].as_str().expect("a message");
    assert!(says.contains("ForSequenceClassification"), "{says}");
    let info = answer_of(server.get("/info")).await;
    assert_eq!(info["classifier"], Value::Null);
    assert_eq!(info["model_pipeline_tag"], Value::Null);
}
