//! Tokens of images: what stands for them, what is counted, and what is a text that looks like one.

use super::*;

#[tokio::test]
async fn every_route_counts_the_same_tokens() {
    let server = server(PARTS, &[]).await;
    let body = chat(json!([image_url(PNG), text("What?")]));
    let answer = server.good("/v1/chat/completions", &body).await;
    let count = answer["usage"]["prompt_tokens"].as_u64().expect("a number");
    let ids = &answer["prompt_token_ids"];
    let counted = server.good("/tokenize", &body).await;
    assert_eq!(
        (&counted["count"], &counted["tokens"]),
        (&json!(count), ids)
    );
    let rendered = server.good("/v1/chat/completions/render", &body).await;
    assert_eq!(rendered["token_ids"], *ids);
    let told = server.good("/chat_tokenize", &body).await;
    let tokens = told["tokenize_response"].as_array().expect("tokens");
    assert_eq!(tokens.len() as u64, count);
    // All of an image have its place in the text.
    let text = told["templated_text"].as_str().expect("a text");
    let place = text.find("<image>").expect("a place");
    let of_image = tokens.iter().filter(|token| token["id"] == TOKEN);
    let places: Vec<(&Value, &Value)> = of_image
        .map(|token| (&token["start"], &token["stop"]))
        .collect();
    let expected = (&json!(place), &json!(place + "<image>".len()));
    assert_eq!(places, vec![expected; ROWS]);
    let inputs = json!({"inputs": format!("See ![]({})", data_url(PNG))});
    let tokens = server.good("/tokenize", &inputs).await;
    assert_eq!(tokens.as_array().map(Vec::len), Some(4 + ROWS));
}

#[tokio::test]
async fn the_token_of_images_is_text_where_a_client_types_it() {
    let server = server(PARTS, &[]).await;
    let body = chat(json!([image_url(PNG), text("<image>")]));
    let answer = server.good("/v1/chat/completions", &body).await;
    assert_eq!(prompt(&answer), format!("<user>{}<image><answer>", seen()));
    let answer = server
        .good("/v1/chat/completions", &chat(json!("<image>")))
        .await;
    assert_eq!(prompt(&answer), "<user><image><answer>");
}

#[tokio::test]
async fn the_token_of_images_is_refused_in_raw_prompts() {
    let server = server(PARTS, &[]).await;
    for (path, body) in [
        ("/generate", json!({"inputs": "a <image> b"})),
        ("/v1/completions", json!({"prompt": [5, TOKEN, 6]})),
        ("/v1/completions", json!({"prompt": "a <image> b"})),
    ] {
        let (status, answer) = server.ask(path, &body).await;
        assert_eq!(status, 422, "{path}: {answer}");
        let error = &answer["error"];
        let message = error["message"].as_str().or_else(|| error.as_str());
        let message = message.expect("a message");
        assert!(message.contains("token for an image"), "{path}: {message}");
    }
    server
        .good(
            "/v1/completions",
            &json!({"prompt": [5, 6], "max_tokens": 2}),
        )
        .await;
    server.idle().await;
}

/// Qwen's own template puts two tokens around an image.
#[tokio::test]
async fn what_a_template_would_write_around_an_image_is_written_where_none_does() {
    let config = json!({"model_type": "qwen2_vl"});
    let preprocessor =
        json!({"patch_size": 4, "merge_size": 2, "min_pixels": 64, "max_pixels": 1024});
    let files = [
        ("config.json", &config),
        ("preprocessor_config.json", &preprocessor),
    ];
    let tokens = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"];
    let flags = ["--media-rows", "256"];
    let server = Server::that_sees(seeing(), TEXTS, &files, &tokens, &flags).await;
    let body = with(
        chat(json!([image_url(PNG)])),
        json!({"return_token_strs": true}),
    );
    let in_chat = server.good("/tokenize", &body).await["token_strs"].clone();
    let markdown = json!({"inputs": format!("![]({})", data_url(PNG))});
    let in_prompt = server.good("/tokenize", &markdown).await;
    let in_prompt: Vec<&Value> = in_prompt.as_array().expect("tokens").iter().collect();
    let in_prompt: Value = in_prompt
        .iter()
        .map(|token| token["text"].clone())
        .collect();
    for told in [in_chat, in_prompt] {
        let told = told.as_array().expect("tokens");
        let is = |token: &str| told.iter().position(|text| text == token);
        let first = is(tokens[1]).expect("a start");
        let last = is(tokens[2]).expect("an end");
        assert!(last > first + 1, "{told:?}");
        assert!(told[first + 1..last].iter().all(|text| text == tokens[0]));
    }
}

/// Before each image of MiniCPM-V stands its number, and between lines of slices a new line.
#[tokio::test]
async fn slices_of_an_image_stand_in_lines_behind_its_number() {
    let config = json!({"model_type": "minicpmv", "query_num": 4});
    let preprocessor = json!({
        "scale_resolution": 16, "patch_size": 4, "image_feature_size": 4, "use_image_id": true,
    });
    let files = [
        ("config.json", &config),
        ("preprocessor_config.json", &preprocessor),
    ];
    // The tokenizer has `<unk>`.
    let tokens = [
        "<image>",
        "</image>",
        "<slice>",
        "</slice>",
        "<image_id>",
        "</image_id>",
    ];
    let model = MockConfig {
        vocab_size: TOKEN + 6,
        ..seeing()
    };
    let model = model.with_encoder(0, 256);
    let flags = ["--media-rows", "256"];
    let server = Server::that_sees(model, TEXTS, &files, &tokens, &flags).await;
    let content = json!([
        image_url(PNG),
        image_url(PNG),
        text("(<image>./</image>) 2?")
    ]);
    let body = with(chat(content), json!({"return_token_strs": true}));
    let told = server.good("/tokenize", &body).await["token_strs"].clone();
    let told: Vec<&str> = told
        .as_array()
        .expect("tokens")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let rows = "<unk>".repeat(4);
    let slice = format!("<slice>{rows}</slice>");
    // The picture has more pixels than nine views, and 3 x 3 have the form nearest to its own.
    let slices = [slice.repeat(3), slice.repeat(3), slice.repeat(3)].join("Ċ");
    let image = |number| format!("<image_id>{number}</image_id><image>{rows}</image>{slices}Ċ");
    let expected = format!(
        "<user>{}{}(<image>./</image>)Ġ2?<answer>",
        image(0),
        image(1)
    );
    assert_eq!(told.concat(), expected);
    assert_eq!(told.iter().filter(|text| **text == "<image>").count(), 2);
    server.good("/v1/chat/completions", &body).await;
    server.idle().await;
}

/// Qwen-VL counts the images of a conversation, and a new line stands behind each.
#[tokio::test]
async fn images_of_qwen_vl_have_their_numbers_before_them() {
    let visual = json!({"image_size": 8, "n_queries": 4});
    let architectures = ["QWenLMHeadModel"];
    let config = json!({"model_type": "qwen", "architectures": architectures, "visual": visual});
    let generation = json!({"chat_format": "chatml"});
    let settings = json!({});
    let files = [
        ("config.json", &config),
        ("generation_config.json", &generation),
        ("tokenizer_config.json", &settings),
    ];
    // The first stands for images.
    let tokens = ["<imgpad>", "<img>", "</img>"];
    let flags = ["--media-rows", "256"];
    let content = json!([
        text("See"),
        image_url(PNG),
        image_url(PNG),
        text("<img></img>?")
    ]);
    let body = with(chat(content), json!({"return_token_strs": true}));
    let rows = |number: usize| format!("Picture {number}:<img>{}</img>\n", "<imgpad>".repeat(4));
    let images = [rows(1), rows(2)].concat();
    let server = Server::that_sees(seeing(), "", &files, &tokens, &flags).await;
    let written = told(&server, &body).await;
    let question = format!("<|im_start|>user\nSee{images}<img></img>?<|im_end|>");
    assert!(written.contains(&question), "{written}");
    server.good("/v1/chat/completions", &body).await;
    let markdown = format!("![]({0})![]({0})What?", data_url(PNG));
    let in_prompt = told(&server, &json!({"inputs": markdown})).await;
    assert_eq!(in_prompt, format!("{images}What?"));
    server.idle().await;
    // A template of texts has them before the text.
    let server = Server::that_sees(seeing(), TEXTS, &files[..1], &tokens, &flags).await;
    let written = told(&server, &body).await;
    assert_eq!(written, format!("<user>{images}See<img></img>?<answer>"));
}

/// The tokens of a prompt as text.
async fn told(server: &Server, body: &Value) -> String {
    let answer = server.good("/tokenize", body).await;
    let of_chat = answer["token_strs"].as_array().cloned();
    let tokens = of_chat.or_else(|| {
        let tokens = answer.as_array()?.iter();
        Some(tokens.map(|token| token["text"].clone()).collect())
    });
    let tokens = tokens.expect("tokens");
    let texts: Vec<&str> = tokens.iter().filter_map(Value::as_str).collect();
    texts.concat().replace('Ġ', " ").replace('Ċ', "\n")
}

/// InternLM-XComposer 2 begins what stands behind an image as it begins a text.
#[tokio::test]
async fn a_token_begins_what_stands_behind_an_image_of_xcomposer() {
    let architectures = ["InternLMXComposer2ForCausalLM"];
    let vision = json!({"patch_size": 14});
    let config = json!({"architectures": architectures, "img_size": 28, "vision_config": vision});
    let settings = json!({});
    let files = [
        ("config.json", &config),
        ("tokenizer_config.json", &settings),
    ];
    let model = MockConfig {
        vocab_size: TOKEN + 2,
        ..seeing()
    };
    // The tokenizer has `<unk>`, which stands for images.
    let model = model.with_encoder(0, 256);
    let flags = ["--media-rows", "256"];
    let server = Server::that_sees(model, "", &files, &["<s>"], &flags).await;
    let content = json!([image_url(PNG), text("<unk>?")]);
    let body = with(chat(content), json!({"return_token_strs": true}));
    let written = told(&server, &body).await;
    let image = format!("{}<s>", "<unk>".repeat(4));
    assert_eq!(
        written,
        format!(
            "<s>[UNUSED_TOKEN_146]user\n{image}<unk>?[UNUSED_TOKEN_145]\n[UNUSED_TOKEN_146]assistant\n"
        )
    );
    server.good("/v1/chat/completions", &body).await;
    server.idle().await;
}
