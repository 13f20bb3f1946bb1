//! Large images in bodies: they are bytes before the body is read, and whoever sends something else gets what it is.

use super::*;

/// Bytes of a large image; behind its end a file may have anything.
const LARGE: usize = 300_001;

fn large() -> Vec<u8> {
    let behind = (0..LARGE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8);
    GIF.iter().copied().chain(behind).collect()
}

/// The first tokens of the answer of each API to `url`, an image as a data URL.
async fn answers(server: &Server, url: &str) -> Vec<String> {
    let (_, base64) = url.split_once(',').expect("a data URL");
    let texts = |body: Value, route: &'static str, pointer: &'static str| async move {
        // As libraries of PHP write slashes.
        let body = body.to_string().replace("/", "\\/");
        let request = server
            .post(route)
            .header("content-type", "application/json");
        let (status, answer) = answer(request.body(body).send().await.expect("an answer")).await;
        assert_eq!(status, 200, "{answer}");
        let text = answer.pointer(pointer).expect("a text").to_string();
        text.replace(url, "<url>")
    };
    let source = json!({"type": "base64", "media_type": "image/gif", "data": base64});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [
        {"type": "image", "source": {"type": "url", "url": url}}
    ]});
    let message = json!({"model": "m", "max_tokens": 4, "temperature": 0, "messages": [
        {"role": "user", "content": [{"type": "image", "source": source}, result]}
    ]});
    let image = json!({"type": "input_image", "image_url": url});
    let input = json!([{"role": "user", "content": [image]}]);
    let response = json!({"model": "m", "max_output_tokens": 16, "temperature": 0, "input": input});
    let parameters = json!({"max_new_tokens": 4});
    let inputs =
        json!({"inputs": format!("See ![]({url}), ![]({url})."), "parameters": parameters});
    let content = json!([{"type": "image_url", "image_url": {"url": url, "detail": "low"}}]);
    let chats = json!({"instances": [chat(content.clone())]});
    vec![
        texts(
            chat(content),
            "/v1/chat/completions",
            "/choices/0/message/content",
        )
        .await,
        texts(message, "/v1/messages", "/content/0/text").await,
        texts(response, "/v1/responses", "/output/0/content/0/text").await,
        texts(inputs.clone(), "/generate", "/generated_text").await,
        texts(inputs, "/invocations", "/0/generated_text").await,
        texts(chats, "/vertex", "/predictions/0").await,
    ]
}

/// Those without padding stay in the body, as small ones do.
#[tokio::test]
async fn images_are_the_same_whether_they_leave_the_body_or_not() {
    let server = server(PARTS, &[]).await;
    let file = large();
    assert_ne!(file.len() % 3, 0, "there is padding");
    let padded = data_url(&file);
    let without = padded.trim_end_matches('=');
    let left = answers(&server, &padded).await;
    assert_eq!(left, answers(&server, without).await);
    assert_eq!(left, answers(&server, &data_url(GIF)).await);
    server.idle().await;
}

/// TGI's header counts what was sent, and `/` gives it back.
#[tokio::test]
async fn prompts_are_given_back_as_they_were_sent() {
    let server = server(PARTS, &[]).await;
    let inputs = format!("\u{fdd3}0 é ![]({})", data_url(&large()));
    let body =
        json!({"inputs": inputs, "parameters": {"max_new_tokens": 2, "return_full_text": true}});
    let response = server.post_json("/generate", &body).await;
    let sent = inputs.chars().count().to_string();
    assert_eq!(header(&response, "x-compute-characters"), sent);
    let (_, answer) = answer(response).await;
    let text = answer["generated_text"].as_str().expect("a text");
    assert!(text.starts_with(&inputs), "{text:.80}");
}

/// As JSON it would count as eight times as many bytes.
#[tokio::test]
async fn a_body_with_an_image_takes_little_more_than_its_bytes() {
    let server = server(PARTS, &["--payload-limit", "2000000"]).await;
    let body = chat(json!([image_url(&large())]));
    let share = server.state.options.memory.share();
    share
        .resize(448 * 1024 * 1024 - 2 * LARGE)
        .expect("nobody holds any");
    server.good("/v1/chat/completions", &body).await;
    let text = chat(json!("x".repeat(LARGE / 2)));
    let (status, _) = server.ask("/v1/chat/completions", &text).await;
    assert_eq!(status, 429);
}

#[tokio::test]
async fn texts_that_look_like_images_stay_texts() {
    let server = server(PARTS, &[]).await;
    let base64 = STANDARD.encode(&large()[..3000]);
    let url = format!("data:image/gif;base64,{base64}");
    let answer = server
        .good("/chat_tokenize", &chat(json!([text(&url)])))
        .await;
    assert_eq!(answer["templated_text"], format!("<user>{url}<answer>"));
    let mut counts = Vec::new();
    for data in [base64, "-".repeat(4000)] {
        let source = json!({"type": "text", "media_type": "text/plain", "data": data});
        let content = json!([{"type": "document", "source": source}]);
        let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
        let answer = server.good("/v1/messages/count_tokens", &body).await;
        counts.push(answer["input_tokens"].as_u64());
    }
    assert_eq!(counts[0], counts[1]);
}

/// A mark is not what a client can use to see what others have sent.
#[tokio::test]
async fn marks_that_clients_write_name_nothing() {
    let server = server(PARTS, &[]).await;
    let body = chat(json!([image_url(&large())]));
    server.good("/v1/chat/completions", &body).await;
    let url = "data:image/gif;base64,\u{fdd3}0";
    let body = chat(json!([{"type": "image_url", "image_url": {"url": url}}]));
    let (status, answer) = server.ask("/v1/chat/completions", &body).await;
    assert_eq!(status, 422);
    assert!(answer.to_string().contains("not base64"), "{answer}");
}

#[tokio::test]
async fn bodies_that_are_no_json_are_told_so() {
    let server = server(PARTS, &[]).await;
    let body = chat(json!([image_url(&large())])).to_string();
    for cut in [
        &body[..body.len() / 2],
        &body[..body.len() - 1],
        &body.replace("}]", "}"),
    ] {
        let request = server.post("/v1/chat/completions");
        let request = request.header("content-type", "application/json");
        let response = request
            .body(cut.to_owned())
            .send()
            .await
            .expect("an answer");
        let (status, answer) = answer(response).await;
        assert_eq!(status, 400, "{answer}");
    }
    server.idle().await;
}
