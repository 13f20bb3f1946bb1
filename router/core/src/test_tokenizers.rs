//! Small tokenizers for tests, made here.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Value, json};
use tokenizers::decoders::byte_level::ByteLevel as ByteLevelDecoder;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

use crate::tokenize::{TextTokenizer, TokenizerError};

const SENTENCES: [&str; 4] = [
    "the quick brown fox jumps over the lazy dog",
    "once upon a time there was a little girl who liked to sing",
    "Hello there, this is a simple test. Hello again!",
    "你好，世界。你好 🙂🙂 naïve café",
];

/// Byte-level BPE as in GPT-2 and Llama 3, trained on a few sentences. Id 0 is the special token `<|end|>`.
pub(crate) fn byte_level_json() -> String {
    static JSON: LazyLock<String> = LazyLock::new(train_byte_level);
    JSON.clone()
}

pub(crate) fn byte_level() -> TextTokenizer {
    static TOKENIZER: LazyLock<TextTokenizer> =
        LazyLock::new(|| TextTokenizer::from_json(&byte_level_json()).unwrap());
    TOKENIZER.clone()
}

/// The same with the special token `<image>`, behind all others.
pub(crate) fn byte_level_with_images() -> TextTokenizer {
    static TOKENIZER: LazyLock<TextTokenizer> = LazyLock::new(|| {
        let mut tokenizer: Tokenizer = byte_level_json().parse().unwrap();
        tokenizer
            .add_special_tokens([AddedToken::from("<image>", true)])
            .unwrap();
        TextTokenizer::from_json(&tokenizer.to_string(false).unwrap()).unwrap()
    });
    TOKENIZER.clone()
}

fn train_byte_level() -> String {
    let byte_level = ByteLevel::default()
        .add_prefix_space(false)
        .trim_offsets(false);
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer
        .with_pre_tokenizer(Some(byte_level))
        .with_decoder(Some(ByteLevelDecoder::default()));
    let trainer = BpeTrainer::builder()
        .vocab_size(320)
        .show_progress(false)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from("<|end|>", true)])
        .build();
    tokenizer
        .train(&mut TrainerWrapper::from(trainer), SENTENCES.into_iter())
        .unwrap();
    tokenizer.to_string(false).unwrap()
}

/// BPE with byte fallback as in Llama 2: `<unk>`, `<s>` and `</s>`, 256 byte tokens, printable ASCII and a few words.
pub(crate) fn byte_fallback() -> TextTokenizer {
    static TOKENIZER: LazyLock<TextTokenizer> = LazyLock::new(build_byte_fallback);
    TOKENIZER.clone()
}

fn build_byte_fallback() -> TextTokenizer {
    let words = ["▁", "▁t", "he", "▁the", "ll", "▁he", "llo", "▁hello"];
    let merges = [
        ("▁", "t"),
        ("h", "e"),
        ("▁t", "he"),
        ("l", "l"),
        ("▁", "he"),
        ("ll", "o"),
        ("▁he", "llo"),
    ];
    let specials = ["<unk>", "<s>", "</s>"];
    let tokens = specials.map(str::to_owned).into_iter();
    let tokens = tokens.chain((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let tokens = tokens
        .chain(('!'..='~').map(String::from))
        .chain(words.map(str::to_owned));
    let vocab: BTreeMap<String, usize> = tokens.zip(0..).collect();
    let space = json!({"String": " "});
    let added = |(id, content)| {
        json!({
            "id": id, "content": content, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
        })
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "pre_tokenizer": null,
        "added_tokens": (0..).zip(specials).map(added).collect::<Vec<_>>(),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": space, "content": "▁"}
        ]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        ]},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": merges
        }
    });
    TextTokenizer::from_json(&tokenizer.to_string()).unwrap()
}

/// A tokenizer of eight words, without a token 7, with this decoder (the JSON of a `tokenizer.json`).
pub(crate) fn from_decoder(decoder: &Value) -> Result<TextTokenizer, TokenizerError> {
    let words = ["<s>", "▁", "ab", "▁Hello", "world", "##ing", "▁.", "▁end"];
    let vocab: BTreeMap<&str, usize> = words.into_iter().zip([0, 1, 2, 3, 4, 5, 6, 8]).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "pre_tokenizer": null, "added_tokens": [],
        "normalizer": null, "post_processor": null, "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<s>"}
    });
    TextTokenizer::from_json(&tokenizer.to_string())
}
