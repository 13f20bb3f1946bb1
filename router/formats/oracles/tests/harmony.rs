//! OpenAI's own parser of gpt-oss (`openai-harmony`) over the same answers.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/common/transcripts.rs"]
mod transcripts;

use std::path::Path;
use std::sync::LazyLock;
use std::{env, fs};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use common::{Answer, Call, format, options, parse, pieces, tools};
use openai_harmony::chat::{Content, Role};
use openai_harmony::{
    HarmonyEncoding, HarmonyEncodingName, StreamableParser, load_harmony_encoding,
};
use transcripts::{TWO, answers};

const PROMPT: &str = "<|start|>assistant";

/// Answers to [`PROMPT`].
const ANSWERS: &[&str] = &[
    "<|channel|>final<|message|>It is 3 < 4.<|return|>",
    "<|channel|>analysis<|message|>Look it up.\n<|end|><|start|>assistant<|channel|>final<|message|>Zürich 你好 🙂",
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Basel\"}<|call|>",
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.ping<|channel|>commentary json<|message|>{}<|call|>",
    "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"{[<|\", \"days\": 3}<|call|>",
    "<|channel|>commentary to=functions.get_weather json<|message|>{\"city\": \"Z\\u00fcrich \\\"x\\\"\"}<|call|><|start|>assistant<|channel|>commentary to=functions.ping json<|message|>{}<|call|>",
];

/// The encoding with its vocabulary in a file of this test's, or the crate would download it.
static ENCODING: LazyLock<HarmonyEncoding> = LazyLock::new(|| {
    let folder = env::var("TIKTOKEN_ENCODINGS_BASE").expect(
        "TIKTOKEN_ENCODINGS_BASE names a folder for the vocabulary, as `make test-formats` sets it",
    );
    let vocabulary = tiktoken_rs::o200k_base().expect("a vocabulary");
    let lines = (0..199_998).map(|rank| {
        let bytes = vocabulary.decode_bytes(&[rank]).expect("a token");
        format!("{} {rank}\n", BASE64_STANDARD.encode(bytes))
    });
    fs::create_dir_all(&folder).expect("a folder");
    let file = Path::new(&folder).join("o200k_base.tiktoken");
    fs::write(file, lines.collect::<String>()).expect("a file");
    load_harmony_encoding(HarmonyEncodingName::HarmonyGptOss).expect("an encoding")
});

#[test]
fn answers_are_read_as_openai_reads_them() {
    let openai = format("openai");
    let by_hand = TWO.iter().filter(|(name, _)| *name == openai.name());
    let written = answers(|calls| Some(openai.write(calls))).into_iter();
    let texts = ANSWERS
        .iter()
        .chain(by_hand.map(|(_, text)| text))
        .map(|text| (*text).to_owned())
        // Content without a header is no message.
        .chain(
            written
                .map(|(_, text)| text)
                .filter(|text| text.starts_with("<|")),
        );
    for text in texts {
        let ours = parse(openai, PROMPT, &text, &options(&tools()));
        assert_eq!(without_ids(ours), other(&tokens(&text)), "{text:?}");
    }
}

#[test]
fn answers_that_end_anywhere_are_read_as_openai_reads_them() {
    for text in ANSWERS {
        let tokens = tokens(text);
        for length in 0..tokens.len() {
            let cut = &tokens[..length];
            let Ok(text) = ENCODING.tokenizer().decode_utf8(cut) else {
                continue;
            };
            let ours = parse(format("openai"), PROMPT, &text, &options(&tools()));
            assert_eq!(without_ids(ours), other(cut), "{text:?}");
        }
    }
}

/// The markers as tokens, and every character between them by itself.
fn tokens(text: &str) -> Vec<u32> {
    let tokenizer = ENCODING.tokenizer();
    let pieces = pieces(text, &["<|return|>"]).into_iter();
    pieces
        .flat_map(|piece| tokenizer.encode_with_special_tokens(piece))
        .collect()
}

/// What their parser makes of an answer that may be cut.
fn other(tokens: &[u32]) -> Answer {
    let mut parser =
        StreamableParser::new(ENCODING.clone(), Some(Role::Assistant)).expect("a parser");
    for token in tokens {
        parser.process(*token).expect("it parses");
    }
    let mut answer = Answer::default();
    for message in parser.messages() {
        let text: String = message
            .content
            .iter()
            .map(|content| match content {
                Content::Text(text) => text.text.as_str(),
                _ => "",
            })
            .collect();
        add(
            &mut answer,
            message.channel.as_deref(),
            message.recipient.as_deref(),
            &text,
        );
    }
    let text = parser.current_content().expect("text");
    add(
        &mut answer,
        parser.current_channel().as_deref(),
        parser.current_recipient().as_deref(),
        &text,
    );
    answer
}

fn add(answer: &mut Answer, channel: Option<&str>, recipient: Option<&str>, text: &str) {
    match (channel, recipient) {
        // A call counts once its arguments begin.
        (_, Some(_)) if text.is_empty() => {}
        (_, Some(recipient)) => answer.calls.push(Call {
            name: recipient.trim_start_matches("functions.").to_owned(),
            arguments: text.to_owned(),
            ..Call::default()
        }),
        (Some("analysis"), None) => answer.reasoning.push_str(text),
        _ => answer.content.push_str(text),
    }
}

/// Theirs have no ids, and no word on whether a call is whole.
fn without_ids(mut answer: Answer) -> Answer {
    for call in &mut answer.calls {
        call.id.clear();
        call.ended = false;
    }
    answer
}
