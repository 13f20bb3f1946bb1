//! What is refused, by its name and place, and harms nobody.

use super::*;

/// Asks for a chat that is refused, and gives the message.
async fn refused(server: &Server, body: &Value) -> String {
    let (status, answer) = server.ask("/v1/chat/completions", body).await;
    assert_eq!(status, 422, "{answer}");
    assert_eq!(answer["error_type"], "validation", "{answer}");
    answer["error"]["message"]
        .as_str()
        .expect("a message")
        .to_owned()
}

fn url(url: &str) -> Value {
    chat(json!([text("What?"), {"type": "image_url", "image_url": {"url": url}}]))
}

const PLACE: &str = "`messages[0].content[1]`";

#[tokio::test]
async fn what_is_no_image_is_told_with_its_place() {
    let server = server(PARTS, &["--max-image-bytes", "60000"]).await;
    let bomb = include_bytes!("../../../images/tests/oracle/pictures/bomb.png");
    for (given, told) in [
        (data_url(b"<svg/>"), "is not a JPEG, PNG, WebP or GIF file"),
        (data_url(b""), "is empty"),
        (data_url(&PNG[..PNG.len() / 2]), "is truncated or damaged"),
        (data_url(&[0; 60_003]), "--max-image-bytes"),
        (data_url(bomb), "--max-image-pixels"),
        ("data:image/png,x".to_owned(), "data:<type>;base64,<data>"),
        ("data:image/png;base64,*".to_owned(), "not base64"),
        (
            "https://example.org/a.png".to_owned(),
            "--allowed-image-domains",
        ),
        ("file:///etc/passwd".to_owned(), "data:image/png;base64"),
        ("/etc/passwd".to_owned(), "data:image/png;base64"),
    ] {
        let message = refused(&server, &url(&given)).await;
        assert!(
            message.contains(PLACE) && message.contains(told),
            "{message}"
        );
    }
    // The next request is served, the first tokens of its prompt as all others.
    server
        .good("/v1/chat/completions", &url(&data_url(PNG)))
        .await;
    server.idle().await;
}

#[tokio::test]
async fn other_media_are_refused_by_name() {
    let server = server(PARTS, &[]).await;
    for kind in ["video_url", "input_audio", "image_embeds", "file"] {
        let part = json!({"type": kind, (kind): {"url": data_url(PNG)}});
        let message = refused(&server, &chat(json!([text("What?"), part]))).await;
        let told = format!("`messages[0].content[1].type` is `{kind}`");
        assert!(
            message.contains(&told) && message.contains("`image_url`"),
            "{message}"
        );
    }
    let file = json!([{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]);
    let (status, answer) = server.ask("/v1/responses", &json!({"input": file})).await;
    assert_eq!(status, 400);
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("`input[0].content[0].image_url` must be a string"),
        "{message}"
    );
    let file = json!([{"type": "image", "source": {"type": "file", "file_id": "f"}}]);
    let body =
        json!({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": file}]});
    let (status, answer) = server.ask("/v1/messages", &body).await;
    assert_eq!(status, 400);
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(
        message.contains("`messages[0].content[0].source.type`"),
        "{message}"
    );
}

#[tokio::test]
async fn images_have_their_place_and_their_values() {
    let server = server(PARTS, &[]).await;
    let system =
        json!([{"role": "system", "content": [image_url(PNG)]}, {"role": "user", "content": "x"}]);
    let detail =
        json!([{"type": "image_url", "image_url": {"url": data_url(PNG), "detail": "most"}}]);
    for (body, told) in [
        (
            with(chat(json!("")), json!({"messages": system})),
            "`messages[0].content[0]` is an image in a system message",
        ),
        (
            chat(detail),
            "`messages[0].content[0].image_url.detail` must be",
        ),
        (
            chat(json!([{"type": "image_url", "image_url": {}}])),
            "`messages[0].content[0].image_url.url` must be a string",
        ),
        (
            with(
                chat(json!([image_url(PNG)])),
                json!({"truncate_prompt_tokens": 5}),
            ),
            "truncate",
        ),
        (
            with(chat(json!([image_url(PNG)])), json!({"prompt_logprobs": 0})),
            "prompt",
        ),
    ] {
        let message = refused(&server, &body).await;
        assert!(message.contains(told), "{message}");
    }
}

#[tokio::test]
async fn text_models_refuse_images_and_read_markdown_as_text() {
    let server = Server::that_chats().await;
    let message = refused(&server, &chat(json!([text("What?"), image_url(PNG)]))).await;
    assert!(
        message.contains("`messages[0].content[1].type` is `image_url`"),
        "{message}"
    );
    let inputs = format!("![]({})", data_url(b"file"));
    let body = json!({"inputs": inputs, "parameters": {"max_new_tokens": 2}});
    let answer = server.post_json("/generate", &body).await;
    assert_eq!(header(&answer, "x-prompt-tokens"), inputs.len().to_string());
    let info = server.get("/info").send().await.expect("an answer");
    let info: Value = info.json().await.expect("JSON");
    assert_eq!(info["images"], json!(null));
}

#[tokio::test]
async fn a_model_without_a_template_says_so() {
    let config = json!({"model_type": "llava", "vision_config": {"patch_size": 2}});
    let preprocessor = json!({"size": {"shortest_edge": 8}, "crop_size": 8});
    let files = [
        ("config.json", &config),
        ("preprocessor_config.json", &preprocessor),
        ("tokenizer_config.json", &json!({})),
    ];
    let flags = ["--media-rows", "256"];
    let server = Server::that_sees(seeing(), "", &files, &["<image>"], &flags).await;
    let body = chat(json!([image_url(PNG)]));
    let (status, answer) = server.ask("/v1/chat/completions", &body).await;
    assert_eq!(status, 422);
    assert_eq!(answer["error_type"], "template_error");
    let body = json!({"inputs": format!("![]({})", data_url(PNG))});
    server.good("/generate", &body).await;
}
