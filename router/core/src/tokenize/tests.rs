use super::*;
use crate::test_tokenizers::{byte_fallback, byte_level, byte_level_json};

const TEXTS: [&str; 5] = [
    "Hello there, friend",
    "naïve café",
    "你好，世界",
    "a 🙂 and 👩‍🚀!",
    "e\u{301}clair\n\n  two",
];

#[test]
fn ids_decode_to_the_text() {
    for tokenizer in [byte_level(), byte_fallback()] {
        for text in TEXTS {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
    }
}

#[test]
fn special_tokens_are_added_on_demand() {
    let tokenizer = byte_fallback();
    let plain = tokenizer.encode("hello", false).unwrap();
    let with_bos = tokenizer.encode("hello", true).unwrap();
    assert_eq!(with_bos[0], 1);
    assert_eq!(with_bos[1..], plain);
    assert!(tokenizer.is_special(1));
    assert!(!tokenizer.is_special(plain[0]));
    let tokens = tokenizer
        .encode_with_offsets("hello".to_owned(), true)
        .unwrap();
    let tokens: Vec<_> = tokens.tokens(0, 1).collect();
    assert_eq!(
        (tokens[0].text.as_str(), tokens[0].start, tokens[0].stop),
        ("", 0, 0)
    );
}

#[test]
fn offsets_are_bytes_that_slice_the_text() {
    for tokenizer in [byte_level(), byte_fallback()] {
        for text in TEXTS {
            let tokens = tokenizer
                .encode_with_offsets(text.to_owned(), false)
                .unwrap();
            let tokens: Vec<_> = tokens.tokens(0, tokens.len()).collect();
            let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            assert_eq!(ids, tokenizer.encode(text, false).unwrap());
            let mut reached = 0;
            for token in tokens {
                assert_eq!(
                    text.get(token.start..token.stop),
                    Some(token.text.as_str()),
                    "{text}"
                );
                assert!(
                    token.start <= reached && token.stop >= reached,
                    "{text}: gap before {token:?}"
                );
                reached = token.stop;
            }
            assert_eq!(reached, text.len(), "{text}");
        }
    }
}

#[test]
fn no_token_stands_for_more_bytes_than_the_longest() {
    let tokenizer = byte_level();
    let longest = tokenizer.longest_token().unwrap();
    for text in TEXTS {
        let ids = tokenizer.encode(text, false).unwrap();
        assert!(ids.iter().all(|&id| tokenizer.bytes(id).len() <= longest));
        assert!(ids.len() >= text.len().div_ceil(longest), "{text}");
    }
    // It writes a space before the text, so it may as well leave some out.
    assert_eq!(byte_fallback().longest_token(), None);
    let mut json: serde_json::Value = serde_json::from_str(&byte_level_json()).unwrap();
    json["normalizer"] = serde_json::json!({"type": "NFC"});
    let composing = TextTokenizer::from_json(&json.to_string()).unwrap();
    assert_eq!(composing.longest_token(), Some(4 * longest));
    json["normalizer"] =
        serde_json::json!({"type": "Strip", "strip_left": true, "strip_right": true});
    let stripping = TextTokenizer::from_json(&json.to_string()).unwrap();
    assert_eq!(stripping.longest_token(), None);
    json["normalizer"] = serde_json::Value::Null;
    json["added_tokens"][0]["rstrip"] = true.into();
    let swallowing = TextTokenizer::from_json(&json.to_string()).unwrap();
    assert_eq!(swallowing.longest_token(), None);
}

#[test]
fn truncation_and_padding_of_the_file_are_off() {
    let mut json: serde_json::Value = serde_json::from_str(&byte_level_json()).unwrap();
    json["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
    });
    json["padding"] = serde_json::json!({
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"
    });
    let tokenizer = TextTokenizer::from_json(&json.to_string()).unwrap();
    let text = "the quick brown fox jumps over the lazy dog";
    assert_eq!(
        tokenizer.encode(text, false).unwrap(),
        byte_level().encode(text, false).unwrap()
    );
}

#[test]
fn files_that_are_no_tokenizer_are_errors_naming_them() {
    let missing = TextTokenizer::from_file(Path::new("/nonexistent/tokenizer.json")).unwrap_err();
    assert!(
        missing.to_string().contains("/nonexistent/tokenizer.json"),
        "{missing}"
    );
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let wrong = TextTokenizer::from_file(&manifest).unwrap_err();
    assert!(wrong.to_string().contains("Cargo.toml"), "{wrong}");
    assert!(matches!(wrong, TokenizerError::Load(_)));
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    let unfetched = TextTokenizer::from_json(pointer).unwrap_err();
    assert!(
        unfetched.to_string().contains("`git lfs pull`"),
        "{unfetched}"
    );
    assert!(matches!(
        TextTokenizer::from_json("{}"),
        Err(TokenizerError::Load(_))
    ));
}

#[test]
fn damaged_files_are_errors() {
    let whole: serde_json::Value = serde_json::from_str(&byte_level_json()).unwrap();
    for (part, damage) in [
        (
            "normalizer",
            serde_json::json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        ),
        ("normalizer", serde_json::json!({"type": "Precompiled"})),
        ("model", serde_json::json!({"type": "BPE", "vocab": {}})),
    ] {
        let mut file = whole.clone();
        file[part] = damage;
        let loaded = TextTokenizer::from_json(&file.to_string());
        assert!(
            matches!(loaded, Err(TokenizerError::Load(_))),
            "{file:.200}"
        );
    }
}
