//! Limits of images, and what one request may cost others.

use super::*;

#[tokio::test]
async fn flags_are_told_and_obeyed() {
    let flags = [
        "--max-images-per-request",
        "2",
        "--allowed-image-domains",
        "example.org,*.example.net",
    ];
    let server = server(PARTS, &flags).await;
    let info: Value = server
        .get("/info")
        .send()
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    let expected = json!({
        "max_image_bytes": 20_000_000,
        "max_image_pixels": 25_000_000,
        "max_images_per_request": 2,
        "allowed_image_domains": ["example.org", "*.example.net"],
        "media_rows": 256,
    });
    assert_eq!(info["images"], expected);
    let images = vec![image_url(PNG); 3];
    let (status, answer) = server
        .ask("/v1/chat/completions", &chat(json!(images)))
        .await;
    assert_eq!(status, 422);
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.contains("--max-images-per-request"), "{message}");
    for url in ["https://example.com/a.png", "http://127.0.0.1/a.png"] {
        let image = json!([{"type": "image_url", "image_url": {"url": url}}]);
        let (status, answer) = server.ask("/v1/chat/completions", &chat(image)).await;
        assert_eq!((status, &answer["error_type"]), (422, &json!("validation")));
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(
            message.contains("`messages[0].content[0]` is of the host"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn bodies_may_be_larger_where_the_model_sees() {
    let long = json!({"inputs": "x", "padding": " ".repeat(3_000_000)});
    let body = with(long, json!({"parameters": {"max_new_tokens": 1}}));
    let server = server(PARTS, &[]).await;
    server.good("/generate", &body).await;
    let text_alone = Server::start().await;
    let (status, _) = text_alone.ask("/generate", &body).await;
    assert_eq!(status, 413);
}

/// A file of 35 bytes is 16 tokens here, and would be thousands elsewhere.
#[tokio::test]
async fn more_images_than_a_prompt_may_have_are_refused_before_they_take_memory() {
    let server = server(PARTS, &[]).await;
    let tiny = b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff!\xf9\x04\0\0\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";
    let many = vec![image_url(tiny); 100];
    let (status, answer) = server.ask("/v1/chat/completions", &chat(json!(many))).await;
    assert_eq!(status, 400, "{answer}");
    assert_eq!(answer["error"]["code"], "context_length_exceeded");
    let body = chat(json!(many));
    let (status, _) = server.ask("/tokenize", &body).await;
    assert_eq!(status, 422);
    // As many as fit: the same image takes its rows once.
    let some = vec![image_url(tiny); 50];
    let answer = server
        .good("/v1/chat/completions", &chat(json!(some)))
        .await;
    assert_eq!(prompt(&answer).matches('#').count(), 50 * ROWS);
    server.idle().await;
}

/// Of a body with images little is left once they are files.
#[tokio::test]
async fn images_of_running_requests_do_not_count_as_text() {
    let server = server(PARTS, &[]).await;
    // Behind its end a file may have anything.
    let file = [GIF, &[0; 3_000_000]].concat();
    server.mock.hold();
    let body = chat(json!([image_url(&file)]));
    let asked = async { server.good("/v1/chat/completions", &body).await };
    let watched = async {
        until("it runs", async || {
            server.state.infer.snapshot().running == 1
        })
        .await;
        let memory = server.state.options.memory.held();
        server.mock.resume();
        memory
    };
    let (_, memory) = tokio::join!(asked, watched);
    assert!(memory < 1_000_000, "{memory}");
    server.idle().await;
}
