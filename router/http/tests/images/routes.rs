//! Forms in which the clients of each API send images.

use super::*;

/// What a model has called, in a chat.
fn called(id: &str, name: &str, arguments: &str) -> Value {
    let function = json!({"name": name, "arguments": arguments});
    let call = json!({"id": id, "type": "function", "function": function});
    json!({"role": "assistant", "content": null, "tool_calls": [call]})
}

/// The prompt of a chat with this content, by the same template.
async fn asked(server: &Server, content: Value) -> String {
    prompt(&server.good("/v1/chat/completions", &chat(content)).await)
}

#[tokio::test]
async fn chats_keep_the_order_of_their_parts() {
    let server = server(PARTS, &[]).await;
    let see = seen();
    for (content, expected) in [
        (
            json!([image_url(PNG), text("What?")]),
            format!("{see}What?"),
        ),
        (
            json!([text("What?"), image_url(PNG)]),
            format!("What?{see}"),
        ),
        (
            json!([image_url(PNG), text(" or "), image_url(GIF)]),
            format!("{see} or {see}"),
        ),
        // As some clients write it.
        (
            json!([{"type": "image_url", "image_url": data_url(JPEG)}]),
            see.clone(),
        ),
    ] {
        let expected = format!("<user>{expected}<answer>");
        assert_eq!(asked(&server, content).await, expected);
    }
    server.idle().await;
}

#[tokio::test]
async fn templates_of_texts_get_images_first() {
    let server = server(TEXTS, &[]).await;
    let see = seen();
    let content = json!([text("What?"), image_url(PNG), text(" Why?"), image_url(GIF)]);
    let expected = format!("<user>{see}\n{see}\nWhat? Why?<answer>");
    assert_eq!(asked(&server, content).await, expected);
}

#[tokio::test]
async fn answers_follow_from_images() {
    let server = server(PARTS, &[]).await;
    let mut answers = Vec::new();
    for file in [PNG, JPEG, GIF, PNG] {
        let body = chat(json!([image_url(file), text("What?")]));
        let answer = server.good("/v1/chat/completions", &body).await;
        answers.push(answer["choices"][0]["message"]["content"].clone());
    }
    assert_eq!(answers[0], answers[3]);
    assert_ne!(answers[0], answers[1]);
    assert_ne!(answers[0], answers[2]);
}

#[tokio::test]
async fn streams_and_several_choices_see_too() {
    let server = server(PARTS, &[]).await;
    let body = chat(json!([image_url(PNG), text("What?")]));
    let told = server.good("/v1/chat/completions", &body).await;
    let two = with(body.clone(), json!({"n": 2}));
    let two = server.good("/v1/chat/completions", &two).await;
    let text = |answer: &Value, n: usize| answer["choices"][n]["message"]["content"].clone();
    assert_eq!(text(&two, 0), text(&told, 0));
    assert_eq!(text(&two, 1), text(&told, 0));
    let body = with(
        body,
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    let stream = server.post_json("/v1/chat/completions", &body).await;
    let stream = stream.text().await.expect("a stream");
    let usage = format!(r#""prompt_tokens":{}"#, told["usage"]["prompt_tokens"]);
    assert!(stream.contains(&usage), "{stream}");
    server.idle().await;
}

#[tokio::test]
async fn responses_take_images_in_messages_and_outputs() {
    let server = server(PARTS, &[]).await;
    let image = json!({"type": "input_image", "image_url": data_url(PNG), "detail": "auto"});
    let message = json!({"role": "user", "content": [
        {"type": "input_text", "text": "What?"}, image,
    ]});
    let like = |content: Value| json!({"role": "user", "content": content});
    for (input, messages) in [
        (
            json!([message]),
            json!([like(json!([text("What?"), image_url(PNG)]))]),
        ),
        (
            json!([
                {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": [
                    {"type": "input_text", "text": "seen"}, image,
                ]},
            ]),
            json!([
                called("c", "look", "{}"),
                {"role": "tool", "tool_call_id": "c", "content": "seen"},
                like(json!([image_url(PNG)])),
            ]),
        ),
        (
            json!([
                {"type": "custom_tool_call", "call_id": "c", "name": "look", "input": "x"},
                {"type": "custom_tool_call_output", "call_id": "c", "output": [image]},
            ]),
            json!([
                called("c", "look", r#"{"input": "x"}"#),
                {"role": "tool", "tool_call_id": "c", "content": ""},
                like(json!([image_url(PNG)])),
            ]),
        ),
    ] {
        let body = json!({"input": input, "max_output_tokens": 16});
        let answer = server.good("/v1/responses", &body).await;
        let body = with(chat(json!("")), json!({"messages": messages}));
        let chat = server.good("/v1/chat/completions", &body).await;
        let tokens = &answer["usage"]["input_tokens"];
        assert_eq!(*tokens, chat["usage"]["prompt_tokens"], "{input}");
        let body = json!({"input": input});
        let counted = server.good("/v1/responses/input_tokens", &body).await;
        assert_eq!(*tokens, counted["input_tokens"]);
    }
}

#[tokio::test]
async fn messages_take_blocks_and_results_of_tools() {
    let server = server(PARTS, &[]).await;
    let base64 = json!({"type": "image", "source": {
        "type": "base64", "media_type": "image/png", "data": STANDARD.encode(PNG),
    }, "cache_control": {"type": "ephemeral"}});
    let url = json!({"type": "image", "source": {"type": "url", "url": data_url(PNG)}});
    let result =
        json!({"type": "tool_result", "tool_use_id": "t", "content": [text("seen"), base64]});
    let call = json!({"type": "tool_use", "id": "t", "name": "look", "input": {}});
    let user = |content: Value| json!({"role": "user", "content": content});
    for (messages, like) in [
        (
            json!([user(json!([base64, text("What?")]))]),
            json!([user(json!([image_url(PNG), text("What?")]))]),
        ),
        (
            json!([user(json!([url, text("What?")]))]),
            json!([user(json!([image_url(PNG), text("What?")]))]),
        ),
        (
            json!([{"role": "assistant", "content": [call]}, user(json!([result, text("Well?")]))]),
            json!([
                called("t", "look", "{}"),
                {"role": "tool", "tool_call_id": "t", "content": "seen"},
                user(json!([image_url(PNG), text("Well?")])),
            ]),
        ),
    ] {
        let body = json!({"model": "m", "max_tokens": 4, "messages": messages});
        let answer = server.good("/v1/messages", &body).await;
        let like = with(chat(json!("")), json!({"messages": like}));
        let like = server.good("/v1/chat/completions", &like).await;
        let tokens = &answer["usage"]["input_tokens"];
        let cached = &answer["usage"]["cache_read_input_tokens"];
        let all = tokens.as_u64().unwrap_or(0) + cached.as_u64().unwrap_or(0);
        assert_eq!(json!(all), like["usage"]["prompt_tokens"], "{answer}");
        let counted = server.good("/v1/messages/count_tokens", &body).await;
        assert_eq!(counted["input_tokens"], json!(all));
    }
}

#[tokio::test]
async fn prompts_of_tgi_take_markdown() {
    let server = server(PARTS, &[]).await;
    let image = format!("![]({})", data_url(PNG));
    let length = |answer: &Value| answer["details"]["prefill"].as_array().map(Vec::len);
    let parameters = json!({"max_new_tokens": 4, "details": true});
    let ask = async |inputs: String| {
        let body = json!({"inputs": inputs, "parameters": parameters});
        let answer = server.post_json("/generate", &body).await;
        assert_eq!(answer.status(), 200);
        let tokens = header(&answer, "x-prompt-tokens").to_owned();
        let answer: Value = answer.json().await.expect("JSON");
        assert_eq!(length(&answer), Some(0));
        tokens.parse::<usize>().expect("a number")
    };
    assert_eq!(
        ask(format!("See {image} and {image}!")).await,
        10 + 2 * ROWS
    );
    // No image: another text, no address, no end.
    for inputs in ["![a](data:,)", "![](picture.png)", "![](data:"] {
        assert_eq!(ask(inputs.to_owned()).await, inputs.len());
    }
    let body = json!({"inputs": format!("See {image}!"), "parameters": {"max_new_tokens": 4}});
    let stream = server.post_json("/generate_stream", &body).await;
    assert!(
        stream
            .text()
            .await
            .expect("a stream")
            .contains("generated_text")
    );
    let answer = server.good("/", &body).await;
    assert!(answer[0]["generated_text"].is_string());
    server.idle().await;
}
