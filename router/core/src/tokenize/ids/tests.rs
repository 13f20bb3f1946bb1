//! The oracle is the library, with the same `tokenizer.json`.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::normalizers::NFC;
use tokenizers::{NormalizedString, Normalizer, PreTokenizedString, PreTokenizer};

use super::*;
use crate::test_tokenizers::byte_level_json;
use crate::tokenize::TextTokenizer;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

fn split_by(expression: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": false})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn sequence(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

/// As today's models have them.
fn known_pre_tokenizers() -> Vec<Value> {
    let by_expressions = |expressions: &[&str]| {
        let splits = expressions.iter().map(|expression| split_by(expression));
        sequence(&splits.chain([byte_level(false)]).collect::<Vec<_>>())
    };
    let digits = json!({"type": "Digits", "individual_digits": true});
    vec![
        byte_level(true),
        byte_level(false),
        sequence(&[digits, byte_level(true)]),
        by_expressions(&[LLAMA3]),
        by_expressions(&[QWEN2]),
        by_expressions(&[O200K]),
        by_expressions(&[TEKKEN]),
        by_expressions(&DEEPSEEK),
    ]
}

fn with_pre_tokenizer(pre_tokenizer: &Value) -> Value {
    let mut json: Value = serde_json::from_str(&byte_level_json()).unwrap();
    json["pre_tokenizer"] = pre_tokenizer.clone();
    json
}

/// Tokenizers with the known pre-tokenizers, and what splits for them.
static KNOWN: LazyLock<Vec<(Tokenizer, IdEncoder)>> = LazyLock::new(|| {
    let with_encoder = |pre_tokenizer| {
        let json = with_pre_tokenizer(&pre_tokenizer).to_string();
        let library: Tokenizer = json.parse().unwrap();
        let encoder = IdEncoder::new(&library).unwrap();
        (library, encoder)
    };
    known_pre_tokenizers()
        .into_iter()
        .map(with_encoder)
        .collect()
});

fn assert_same_words(text: &str) {
    for (library, ours) in KNOWN.iter() {
        let mut expected = PreTokenizedString::from(text);
        let pre_tokenizer = library.get_pre_tokenizer().unwrap();
        pre_tokenizer.pre_tokenize(&mut expected).unwrap();
        let expected = expected.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let expected = expected
            .iter()
            .map(|(_, (start, end), _)| &text[*start..*end]);
        let expected: Vec<&str> = expected.collect();
        let mut found: Vec<String> = Vec::new();
        let mut keep = |word: &str| {
            found.push(word.to_owned());
            Ok(())
        };
        words(&ours.splits, text, &mut keep).unwrap();
        assert_eq!(found, expected, "{pre_tokenizer:?}");
    }
}

fn assert_same_ids(json: &Value, text: &str) {
    let library: Tokenizer = json.to_string().parse().unwrap();
    let ours = TextTokenizer::from_json(&json.to_string()).unwrap();
    for add_special_tokens in [false, true] {
        let expected = library.encode(text, add_special_tokens).unwrap();
        let ids = ours.encode(text, add_special_tokens).unwrap();
        assert_eq!(ids, expected.get_ids(), "{text:?}");
    }
}

/// Texts of what the expressions tell apart, and of any characters.
fn hard_text() -> impl Strategy<Value = String> {
    let parts = vec![
        " ",
        "  ",
        "\t",
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "\u{a0}",
        "\u{3000}",
        "\u{85}",
        "\u{b}",
        "\u{200b}",
        "\u{2028}",
        "a",
        "B",
        "Ab",
        "the",
        "ǅ",
        "ʰ",
        "ß",
        "ſ",
        "ﬆ",
        "K",
        "é",
        "e\u{301}",
        "\u{301}",
        "\u{93f}",
        "क",
        "שלום",
        "你好",
        "の",
        "ー",
        "7",
        "123",
        "12345",
        "٣",
        "५",
        "²",
        "½",
        "Ⅷ",
        "'",
        "'s",
        "'S",
        "'ſ",
        "'re",
        "'LL",
        "'lL",
        "'vE",
        "'d",
        "'m",
        "'x",
        "’s",
        ".",
        "...",
        "/",
        "//\n",
        "_",
        "-",
        "€",
        "=>",
        "{",
        "🙂",
        "👩‍🚀",
        "\u{fe0f}",
        "\0",
        "\u{10ffff}",
        "\u{1c89}",
        "\u{378}",
    ];
    let part = prop_oneof![
        6 => prop::sample::select(parts).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(part, 1..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn words_are_those_of_the_library(text in hard_text()) {
        assert_same_words(&text);
    }
}

#[test]
fn words_of_sources_are_those_of_the_library() {
    let spaces = format!("a{}b\n", " \t\n".repeat(2000));
    for text in [
        include_str!("../ids.rs"),
        include_str!("../../validation/mod.rs"),
        &spaces,
    ] {
        assert_same_words(text);
    }
}

#[test]
fn added_tokens_normalizers_and_post_processors_work_as_in_the_library() {
    let texts = [
        "",
        "<|end|>",
        " hello <|end|>  there <|end|><|end|>\n",
        "e\u{301}clair the quick brown 1234",
    ];
    for pre_tokenizer in known_pre_tokenizers() {
        let mut json = with_pre_tokenizer(&pre_tokenizer);
        texts.iter().for_each(|text| assert_same_ids(&json, text));
        json["normalizer"] = json!({"type": "NFC"});
        json["added_tokens"][0]["rstrip"] = json!(true);
        json["post_processor"] = json!({
            "type": "Sequence", "processors": [
                {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
                {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [0], "tokens": ["<|end|>"]}}
                }
            ]
        });
        texts.iter().for_each(|text| assert_same_ids(&json, text));
    }
}

#[test]
fn nfc_changes_no_text_that_is_said_to_be_nfc() {
    let inert: Vec<char> = ('\0'..=char::MAX)
        .filter(|character| is_nfc(&character.to_string()))
        .collect();
    assert!(inert.len() > 20_000);
    let next_to_letters = inert
        .iter()
        .flat_map(|&character| ['e', character, character]);
    let text: String = inert.iter().copied().chain(next_to_letters).collect();
    let mut normalized = NormalizedString::from(text.as_str());
    NFC.normalize(&mut normalized).unwrap();
    assert!(normalized.get() == text);
    for text in [
        "e\u{301}",
        "\u{212b}",
        "\u{1100}\u{1161}",
        "\u{3099}",
        "\u{f900}",
    ] {
        assert!(!is_nfc(text), "{text:?}");
    }
}

#[test]
fn other_pre_tokenizers_are_left_to_the_library() {
    let with = |key: &str, value: Value| {
        let mut split = split_by(LLAMA3);
        split[key] = value;
        sequence(&[split, byte_level(false)])
    };
    let mut with_space = byte_level(true);
    with_space["add_prefix_space"] = json!(true);
    let groups_of_digits = json!({"type": "Digits", "individual_digits": false});
    for pre_tokenizer in [
        with("behavior", json!("Removed")),
        with("invert", json!(true)),
        with("pattern", json!({"String": " "})),
        with("pattern", json!({"Regex": r"\p{L}++|\s+(?!\S)|\s+"})),
        with_space,
        split_by(LLAMA3),
        sequence(&[byte_level(false), split_by(LLAMA3)]),
        sequence(&[groups_of_digits, byte_level(true)]),
    ] {
        let json = with_pre_tokenizer(&pre_tokenizer);
        let library: Tokenizer = json.to_string().parse().unwrap();
        assert!(IdEncoder::new(&library).is_none(), "{pre_tokenizer}");
        assert_same_ids(&json, "the quick  brown 12 fox's\n");
    }
}
