//! Benchmark of the parser, in tokens a second on one core: `make bench-parse` prints JSON.
//!
//! A token is a piece of 4 characters. Content is prose without markers; calls are answers that consist of one, most of
//! it a long text. Time is CPU time, the best of several runs, so that what else a machine does counts little.

use std::error::Error;
use std::hint::black_box;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::json;
use text_generation_formats::{Delta, Format, ParserOptions, Tool, ToolKind};

const TOKENS: usize = 200_000;
const CHARACTERS: usize = 4;
const RUNS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
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
    let arguments = arguments.as_object().ok_or("arguments are an object")?;
    let prose =
        "It was one of those days, he said; and then (as ever) it began to rain. ".repeat(4_000);
    let mut rows = Vec::new();
    for format in Format::all() {
        let (prompt, before) = match format.name() {
            "openai" => ("<|start|>assistant", "<|channel|>final<|message|>"),
            _ => ("", ""),
        };
        let content = format!("{before}{prose}");
        let call = format.write(&[("get_weather", arguments)]);
        let speed = |text: &str| {
            let runs = (0..RUNS).map(|_| tokens_per_second(format, prompt, &options, text));
            runs.collect::<Result<Vec<_>, _>>()
                .map(|runs| runs.into_iter().max())
        };
        rows.push(json!({
            "format": format.name(),
            "content_tokens_per_second": speed(&content)?,
            "call_tokens_per_second": speed(&call)?,
        }));
    }
    println!("{:#}", json!(rows));
    Ok(())
}

/// Parses `text` again and again until there were enough tokens.
fn tokens_per_second(
    format: &Format,
    prompt: &str,
    options: &ParserOptions,
    text: &str,
) -> Result<i64, nix::Error> {
    let pieces = pieces(text);
    let mut deltas: Vec<Delta> = Vec::new();
    let mut count = 0;
    let start = processor_us()?;
    while count < TOKENS {
        let mut parser = format.parser(prompt, options);
        for piece in &pieces {
            parser.push(black_box(piece), &mut deltas);
            black_box(&deltas);
            deltas.clear();
        }
        parser.finish(&mut deltas);
        deltas.clear();
        count += pieces.len();
    }
    Ok(count as i64 * 1_000_000 / (processor_us()? - start).max(1))
}

/// CPU time of this process so far.
fn processor_us() -> Result<i64, nix::Error> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok((usage.user_time() + usage.system_time()).num_microseconds())
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
