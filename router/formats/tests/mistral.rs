//! Answers as Mistral's own tokenizers write them, token by token. `write_mistral.py` says where they come from.

#![allow(clippy::expect_used, reason = "helpers of tests, which may fail")]

mod common;

use common::{format, options, parse, parse_pieces, tools};
use serde::Deserialize;
use serde_json::Value;

/// An answer, and the text of its tokens without the one that ends it.
#[derive(Debug, Deserialize)]
struct Written {
    tokenizer: String,
    format: String,
    #[serde(default)]
    reasoning: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    calls: Vec<(String, Value)>,
    pieces: Vec<String>,
}

#[test]
fn answers_are_read_as_the_tokenizers_of_mistral_write_them() {
    let all: Vec<Written> =
        serde_json::from_str(include_str!("mistral.json")).expect("a list of answers");
    for written in &all {
        let format = format(&written.format)
            .with_reasoning("mistral")
            .expect("reasoning");
        let options = options(&tools());
        let pieces = written.pieces.iter().map(String::as_str);
        let answer = parse_pieces(&format, "", pieces, &options);
        let name = format!("{}: {:?}", written.tokenizer, written.pieces);
        assert_eq!(answer.reasoning, written.reasoning, "{name}");
        // SentencePiece begins a text with a space.
        assert_eq!(answer.content.trim_start(), written.content, "{name}");
        let calls: Vec<(&str, Value)> = written
            .calls
            .iter()
            .map(|(name, arguments)| (name.as_str(), arguments.clone()))
            .collect();
        assert_eq!(answer.called(), calls, "{name}");
        let whole = parse(&format, "", &written.pieces.concat(), &options);
        assert_eq!(whole.called(), calls, "{name}");
        if let Some(id) = written.pieces.iter().position(|piece| piece == "[CALL_ID]") {
            let end = written.pieces.iter().position(|piece| piece == "[ARGS]");
            let id = written.pieces[id + 1..end.expect("arguments")].concat();
            assert_eq!(answer.calls[0].id, id, "{name}");
        }
    }
    assert!(all.iter().any(|written| !written.reasoning.is_empty()));
}
