use serde_json::json;

use super::*;

/// Ids are places in a list of byte strings.
struct Table(&'static [&'static [u8]]);

impl TokenBytes for Table {
    fn token_bytes(&self, id: u32) -> &[u8] {
        self.0[id as usize]
    }

    fn is_special(&self, id: u32) -> bool {
        id == 5
    }
}

const TABLE: Table = Table(&[
    b"a",
    b" b",
    "你".as_bytes(),
    b"\xe4\xbd",
    b"\xa0",
    b"<s>",
    b"a",
]);

fn token(id: u32, logprob: Option<f32>) -> Token {
    Token {
        id,
        text: String::new(),
        logprob,
        special: id == 5,
    }
}

#[test]
fn chat_tokens_have_text_and_bytes() {
    let mut logprobs = ChatLogprobs::default();
    logprobs.push(&token(1, Some(-0.5)), &[token(3, None)], false, &TABLE);
    let expected = json!({"content": [{
        "token": " b", "logprob": -0.5, "bytes": [32, 98],
        "top_logprobs": [{"token": "\u{fffd}", "logprob": -9999.0, "bytes": [0xe4, 0xbd]}]
    }]});
    assert_eq!(serde_json::to_value(logprobs).expect("JSON"), expected);
}

#[test]
fn completion_tokens_have_offsets_in_characters() {
    let mut tokens = CompletionTokens::new(false, false);
    let first = PrefillToken {
        id: 5,
        text: String::new(),
        logprob: None,
        top_tokens: Vec::new(),
    };
    let mut list = tokens.prompt(&[first], "", &TABLE);
    for id in [2, 3, 4, 1, 5] {
        tokens.push(&mut list, &token(id, Some(-1.0)), &[], &TABLE);
    }
    assert_eq!(list.text_offset, [0, 0, 1, 2, 2, 4]);
    assert_eq!(list.token_logprobs[..2], [None, Some(-1.0)]);
    assert!(list.top_logprobs.is_none());
    // A later piece of the same text goes on counting.
    let mut list = tokens.list();
    tokens.push(&mut list, &token(0, None), &[], &TABLE);
    assert_eq!(
        (list.text_offset, list.token_logprobs),
        (vec![4], vec![Some(NEVER)])
    );
}

#[test]
fn special_tokens_that_the_text_has_take_room() {
    let prompt = |ids: &[u32]| -> Vec<PrefillToken> {
        let token = |&id: &u32| PrefillToken {
            id,
            text: String::new(),
            logprob: None,
            top_tokens: Vec::new(),
        };
        ids.iter().map(token).collect()
    };
    // The first was added, the second is written.
    for (shown, expected) in [(true, [8, 11]), (false, [8, 8])] {
        let mut tokens = CompletionTokens::new(false, false).showing_special(shown);
        let list = tokens.prompt(&prompt(&[5, 0, 5, 1, 1]), "a<s> b b", &TABLE);
        assert_eq!(list.text_offset, [0, 0, 1, 4, 6]);
        let mut list = tokens.list();
        tokens.push(&mut list, &token(5, None), &[], &TABLE);
        tokens.push(&mut list, &token(0, None), &[], &TABLE);
        assert_eq!(list.text_offset, expected);
    }
    // A prompt of ids is returned without them.
    let list = CompletionTokens::new(false, false).prompt(&prompt(&[5, 0, 5, 1]), "a b", &TABLE);
    assert_eq!(list.text_offset, [0, 0, 1, 1]);
}

#[test]
fn alternatives_are_an_object_with_the_token_itself() {
    let mut tokens = CompletionTokens::new(true, false);
    let mut list = tokens.list();
    let top = [token(0, Some(-0.1)), token(6, Some(-0.2))];
    tokens.push(&mut list, &token(1, Some(-3.0)), &top, &TABLE);
    let tops = serde_json::to_string(&list.top_logprobs).expect("JSON");
    assert_eq!(tops, r#"[{"a":-0.1,"token_id:6":-0.2," b":-3.0}]"#);
    // Of a prompt too, but for its first token.
    let prompt = [None, Some(-2.0)].map(|logprob| PrefillToken {
        id: 1,
        text: String::new(),
        logprob,
        top_tokens: top.to_vec(),
    });
    let tops = CompletionTokens::new(true, false).prompt(&prompt, " b b", &TABLE);
    let tops = serde_json::to_string(&tops.top_logprobs).expect("JSON");
    assert_eq!(tops, r#"[null,{"a":-0.1,"token_id:6":-0.2," b":-2.0}]"#);
}

#[test]
fn tokens_of_one_text_have_distinct_keys_and_the_one_that_is_there_its_own() {
    let listed = |id: u32, top: &[Token], as_ids: bool| {
        let mut tokens = CompletionTokens::new(true, as_ids);
        let mut list = tokens.list();
        tokens.push(&mut list, &token(id, Some(-3.0)), top, &TABLE);
        serde_json::to_value(list).expect("JSON")
    };
    let top = [
        token(3, Some(-0.1)),
        token(4, Some(-0.2)),
        token(6, Some(-0.3)),
        token(0, Some(-3.0)),
    ];
    // Both were U+FFFD, and the second had the value of the first.
    let list = listed(4, &top[..2], false);
    assert_eq!(list["tokens"], json!([r"bytes:\xa0"]));
    let expected = json!([{r"bytes:\xe4\xbd": -0.1_f32, r"bytes:\xa0": -0.2_f32}]);
    assert_eq!(list["top_logprobs"].to_string(), expected.to_string());
    // A better token with the same text does not take the name.
    let list = listed(0, &top[2..], false);
    assert_eq!(list["tokens"], json!(["a"]));
    let expected = json!([{"token_id:6": -0.3_f32, "a": -3.0}]);
    assert_eq!(list["top_logprobs"].to_string(), expected.to_string());
    let list = listed(0, &top[..1], true);
    assert_eq!(list["tokens"], json!(["token_id:0"]));
    let expected = json!([{"token_id:3": -0.1_f32, "token_id:0": -3.0}]);
    assert_eq!(list["top_logprobs"].to_string(), expected.to_string());
    // The text has the same places whatever its tokens are called.
    assert_eq!(list["text_offset"], json!([0]));
    let mut chat = ChatLogprobs::default();
    chat.push(&token(1, Some(-0.5)), &[], true, &TABLE);
    let chat = serde_json::to_value(chat).expect("JSON");
    assert_eq!(chat["content"][0]["token"], "token_id:1");
    assert_eq!(chat["content"][0]["bytes"], json!([32, 98]));
}
