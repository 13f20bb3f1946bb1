//! Images as clients send them, over a mock model that sees: pictures become 8 x 8 pixels, which are 16 tokens.

#![allow(clippy::expect_used, reason = "tests fail by it")]

mod bodies;
#[path = "../common/mod.rs"]
mod common;
mod limits;
mod refused;
mod routes;
mod tokens;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::*;
use serde_json::{Value, json};
use text_generation_mock_shard::MockConfig;

/// Tokens of an image.
const ROWS: usize = 16;
/// The token that stands for them.
const TOKEN: u32 = 512;
const PNG: &[u8] = include_bytes!("../../../images/tests/oracle/pictures/rgb.png");
const JPEG: &[u8] = include_bytes!("../../../images/tests/oracle/pictures/420.jpg");
const GIF: &[u8] = include_bytes!("../../../images/tests/oracle/pictures/one.gif");
/// Its template writes parts.
const PARTS: &str = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}\
{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}\
{% endfor %}<answer>";
/// Its template writes texts alone.
const TEXTS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>";

/// Tells by its tokens what it has seen: letters that follow from all that came before them.
fn seeing() -> MockConfig {
    let model = MockConfig {
        vocab_size: TOKEN + 3,
        tokens: Arc::new(|row| BYTES + u32::from(b'a') + (row.content % 26) as u32),
        ..MockConfig::default()
    };
    model.with_encoder(TOKEN, 256)
}

/// A server whose model sees.
async fn server(template: &str, flags: &[&str]) -> Server {
    let config = json!({"model_type": "llava", "vision_config": {"patch_size": 2}});
    let preprocessor = json!({"size": {"shortest_edge": 8}, "crop_size": 8});
    let files = [
        ("config.json", &config),
        ("preprocessor_config.json", &preprocessor),
    ];
    let always = ["--media-rows", "256"];
    let flags: Vec<&str> = always.iter().chain(flags).copied().collect();
    Server::that_sees(seeing(), template, &files, &["<image>"], &flags).await
}

fn data_url(file: &[u8]) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(file))
}

/// A part of a chat.
fn image_url(file: &[u8]) -> Value {
    json!({"type": "image_url", "image_url": {"url": data_url(file)}})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// A chat of one message, answered the same way each time.
fn chat(content: Value) -> Value {
    json!({
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 4,
        "temperature": 0,
        "return_token_ids": true,
    })
}

/// The prompt of an answered chat as text, with `#` for each token of an image.
fn prompt(answer: &Value) -> String {
    let ids = answer["prompt_token_ids"].as_array().expect("ids");
    let bytes = ids.iter().map(|id| {
        let id = id.as_u64().expect("an id") as u32;
        match id {
            TOKEN => b'#',
            id => u8::try_from(id - BYTES).expect("a byte"),
        }
    });
    String::from_utf8(bytes.collect()).expect("text")
}

/// What is seen of an image.
fn seen() -> String {
    "#".repeat(ROWS)
}
