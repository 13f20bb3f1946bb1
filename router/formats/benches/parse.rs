//! How many tokens a second one core parses: `cargo bench -p text-generation-formats --bench parse` prints JSON.
//!
//! A token is a piece of 4 characters. Content is prose without markers; calls are answers that consist of them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::json;
use text_generation_formats::{Delta, Format, ParserOptions, Tool, ToolKind};

const TOKENS: usize = 300_000;
const CHARACTERS: usize = 4;

fn main() {
    let tools = vec![Tool {
        name: "get_weather".to_owned(),
        description: None,
        kind: ToolKind::Function { parameters: None },
        strict: false,
    }];
    let options = ParserOptions {
        tools: tools.into(),
        ..ParserOptions::default()
    };
    let arguments = json!({"city": "word ".repeat(2_000), "days": 3});
    let mut rows = Vec::new();
    for format in Format::all() {
        let prose = "It was one of those days, he said; and then (as ever) it began to rain. "
            .repeat(4_000);
        let call = arguments
            .as_object()
            .map(|call| format.write(&[("get_weather", call)]));
        let call = call.unwrap_or_default();
        rows.push(json!({
            "format": format.name(),
            "content_tokens_per_second": tokens_per_second(format, &options, &prose),
            "call_tokens_per_second": tokens_per_second(format, &options, &call),
        }));
    }
    println!("{:#}", json!(rows));
}

/// Parses `text` again and again until there were enough tokens.
fn tokens_per_second(format: &Format, options: &ParserOptions, text: &str) -> u64 {
    let prompt = if format.name() == "openai" {
        "<|start|>assistant"
    } else {
        ""
    };
    let pieces = pieces(text);
    let mut deltas: Vec<Delta> = Vec::new();
    let mut spent = Duration::ZERO;
    let mut count = 0;
    while count < TOKENS {
        let mut parser = format.parser(prompt, options);
        let start = Instant::now();
        for piece in &pieces {
            parser.push(black_box(piece), &mut deltas);
            black_box(&deltas);
            deltas.clear();
        }
        parser.finish(&mut deltas);
        spent += start.elapsed();
        deltas.clear();
        count += pieces.len();
    }
    (count as f64 / spent.as_secs_f64()) as u64
}

fn pieces(text: &str) -> Vec<&str> {
    let bounds: Vec<usize> = text
        .char_indices()
        .map(|(at, _)| at)
        .step_by(CHARACTERS)
        .collect();
    let ends = bounds.iter().skip(1).copied().chain([text.len()]);
    bounds
        .iter()
        .zip(ends)
        .map(|(&start, end)| &text[start..end])
        .collect()
}
