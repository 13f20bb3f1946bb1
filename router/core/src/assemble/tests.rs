use super::*;
use crate::test_tokenizers::{byte_fallback, byte_level};

const EOS: u32 = 2;

fn assembler(tokenizer: &TextTokenizer, stop: &[&str]) -> TextAssembler {
    speaking(Dialect::Tgi, tokenizer, stop)
}

fn speaking(dialect: Dialect, tokenizer: &TextTokenizer, stop: &[&str]) -> TextAssembler {
    let stop: Vec<String> = stop.iter().map(|&stop| stop.to_owned()).collect();
    TextAssembler::new(tokenizer.clone(), &stop, dialect)
}

fn token(id: u32) -> TokenId {
    TokenId { id, logprob: -0.5 }
}

/// Pushes until a stop string is found; the texts of the tokens and the whole text.
fn generate(assembler: &mut TextAssembler, ids: &[u32]) -> (Vec<String>, bool, String) {
    let (mut texts, mut stopped) = (Vec::new(), false);
    for &id in ids {
        let assembled = assembler.push(token(id));
        texts.push(assembled.token.text);
        stopped = assembled.stopped;
        if stopped {
            break;
        }
    }
    if let Some(last) = texts.last_mut() {
        last.push_str(&assembler.flush());
    }
    (texts, stopped, assembler.finish())
}

/// A prompt without alternatives.
fn prompt(tokens: &[TokenId]) -> Vec<PromptToken> {
    let token = |&token| PromptToken {
        token,
        top_tokens: Vec::new(),
    };
    tokens.iter().map(token).collect()
}

#[test]
fn stop_strings_end_the_text_in_and_across_tokens() {
    let tokenizer = byte_fallback();
    let ids = tokenizer.encode("hello the hello 你好!", false).unwrap();
    let texts = [
        " hello", " the", " hello", " ", "", "", "你", "", "", "好", "!",
    ];
    let cases: [(&[&str], usize, &str); 9] = [
        (&[], 11, " hello the hello 你好!"),
        (&["never"], 11, " hello the hello 你好!"),
        (&["ell"], 1, " hell"),
        (&["o t"], 2, " hello t"),
        (&["the hello"], 3, " hello the hello"),
        (&["hello the"], 2, " hello the"),
        (&["好", "!"], 10, " hello the hello 你好"),
        (&["你好!", "e h"], 3, " hello the h"),
        (&["lo", "hell"], 1, " hell"),
    ];
    for (stop, tokens, expected) in cases {
        let (streamed, stopped, text) = generate(&mut assembler(&tokenizer, stop), &ids);
        assert_eq!(text, expected, "{stop:?}");
        assert_eq!(streamed.concat(), expected, "{stop:?}");
        assert_eq!(stopped, tokens < texts.len(), "{stop:?}");
        assert_eq!(streamed.len(), tokens, "{stop:?}");
        assert_eq!(streamed[..tokens - 1], texts[..tokens - 1], "{stop:?}");
    }
}

#[test]
fn nothing_follows_a_stop_string() {
    let tokenizer = byte_fallback();
    let mut assembler = assembler(&tokenizer, &["ell"]);
    let ids = tokenizer.encode("hello the 你", false).unwrap();
    assert!(assembler.push(token(ids[0])).stopped);
    for &id in &ids[1..ids.len() - 1] {
        let assembled = assembler.push(token(id));
        assert!(assembled.stopped);
        assert_eq!(assembled.token.text, "");
    }
    assert_eq!(
        (assembler.flush(), assembler.finish()),
        (String::new(), " hell".to_owned())
    );
}

#[test]
fn special_tokens_are_streamed_and_not_in_the_text() {
    let tokenizer = byte_fallback();
    let mut assembler = assembler(&tokenizer, &[]);
    let ids = tokenizer.encode("hello", false).unwrap();
    let assembled = assembler.push(token(ids[0]));
    assert!(!assembled.token.special);
    let eos = assembler.push(token(EOS)).token;
    assert_eq!((eos.text.as_str(), eos.special), ("</s>", true));
    assert_eq!(assembler.push(token(ids[0])).token.text, " hello");
    assert_eq!(assembler.finish(), " hello hello");
}

#[test]
fn stop_strings_match_the_text_of_special_tokens() {
    let tokenizer = byte_fallback();
    let mut ids = tokenizer.encode("hello", false).unwrap();
    ids.extend([EOS, ids[0]]);
    let cases = [
        ("</s>", " hello</s>"),
        ("</s", " hello</s"),
        ("o<", " hello<"),
    ];
    for (stop, expected) in cases {
        let (streamed, stopped, text) = generate(&mut assembler(&tokenizer, &[stop]), &ids);
        assert!(stopped);
        assert_eq!(
            (streamed.concat().as_str(), text.as_str()),
            (expected, " hello"),
            "{stop}"
        );
    }
}

#[test]
fn an_incomplete_character_is_not_lost() {
    let tokenizer = byte_fallback();
    let ids = tokenizer.encode("hello你", false).unwrap();
    let (incomplete, _) = ids.split_at(ids.len() - 1);
    let (streamed, _, text) = generate(&mut assembler(&tokenizer, &[]), incomplete);
    assert_eq!(
        (streamed.concat().as_str(), text.as_str()),
        (" hello\u{fffd}", " hello\u{fffd}")
    );
    // Before a special token it ends there.
    let (streamed, _, text) = generate(
        &mut assembler(&tokenizer, &[]),
        &[incomplete, &[EOS]].concat(),
    );
    assert_eq!(streamed.last().unwrap(), "\u{fffd}</s>");
    assert_eq!(text, " hello\u{fffd}");
    // `finish` alone loses nothing either.
    let mut assembler = assembler(&tokenizer, &[]);
    for &id in incomplete {
        assembler.push(token(id));
    }
    assert_eq!(assembler.finish(), " hello\u{fffd}");
}

#[test]
fn logprobs_that_are_not_finite_are_none() {
    let tokenizer = byte_level();
    let mut assembler = assembler(&tokenizer, &[]);
    let given = [-0.5, f32::NAN, f32::NEG_INFINITY];
    let tokens = given.map(|logprob| TokenId { id: 40, logprob });
    let expected = [Some(-0.5), None, None];
    assert_eq!(
        tokens.map(|token| assembler.push(token).token.logprob),
        expected
    );
    let top: Vec<_> = assembler
        .top(&tokens)
        .iter()
        .map(|token| token.logprob)
        .collect();
    let prefill: Vec<_> = assembler
        .prefill(&prompt(&tokens))
        .iter()
        .map(|token| token.logprob)
        .collect();
    assert_eq!(
        (top.as_slice(), prefill.as_slice()),
        (&expected[..], &expected[..])
    );
}

#[test]
fn alternatives_and_prompt_tokens_read_as_in_the_middle_of_a_text() {
    let tokenizer = byte_fallback();
    let assembler = assembler(&tokenizer, &[]);
    let mut ids = tokenizer.encode("hello 你", true).unwrap();
    ids.truncate(4);
    let tokens: Vec<TokenId> = ids.iter().copied().map(token).collect();
    let expected = ["<s>", " hello", " ", "\u{fffd}"];
    let top = assembler.top(&tokens);
    assert_eq!(
        top.iter()
            .map(|token| token.text.as_str())
            .collect::<Vec<_>>(),
        expected
    );
    assert_eq!(
        top.iter().map(|token| token.special).collect::<Vec<_>>(),
        [true, false, false, false]
    );
    let prefill = assembler.prefill(&prompt(&tokens));
    assert_eq!(
        prefill
            .iter()
            .map(|token| token.text.as_str())
            .collect::<Vec<_>>(),
        expected
    );
    assert_eq!(
        prefill.iter().map(|token| token.id).collect::<Vec<_>>(),
        ids
    );
}

#[test]
fn openai_texts_end_before_the_stop_string_and_never_show_its_beginning() {
    let tokenizer = byte_fallback();
    let ids = tokenizer.encode("hello the hello 你好!", false).unwrap();
    let cases: [(&[&str], &[&str], bool); 8] = [
        // Without stop strings nothing waits.
        (
            &[],
            &[
                " hello", " the", " hello", " ", "", "", "你", "", "", "好", "!",
            ],
            false,
        ),
        // Inside a token.
        (&["ell"], &[" h"], true),
        // Begun in a token before.
        (&["o t"], &[" hell", ""], true),
        (&["the hello"], &[" hello", " ", ""], true),
        // A beginning that is none after all comes later; the end of a generation lets it out.
        (
            &["lo there"],
            &[
                " hel",
                "",
                "lo the hel",
                "",
                "",
                "",
                "lo 你",
                "",
                "",
                "好",
                "!",
            ],
            false,
        ),
        (
            &["好!!"],
            &[
                " hello", " the", " hello", " ", "", "", "你", "", "", "", "好!",
            ],
            false,
        ),
        // What ends first is found, and of those the longest.
        (&["hello the", "lo the", "e hello"], &[" ", ""], true),
        (
            &["\u{fffd}", "你"],
            &[" hello", " the", " hello", " ", "", "", ""],
            true,
        ),
    ];
    for (stop, texts, stops) in cases {
        let mut assembler = speaking(Dialect::OpenAi, &tokenizer, stop);
        let (streamed, stopped, text) = generate(&mut assembler, &ids);
        assert_eq!(streamed, texts, "{stop:?}");
        assert_eq!((stopped, text), (stops, texts.concat()), "{stop:?}");
    }
}

#[test]
fn special_tokens_are_not_in_openai_texts_and_match_stop_strings() {
    let tokenizer = byte_fallback();
    let mut ids = tokenizer.encode("hello", false).unwrap();
    ids.extend([EOS, ids[0], EOS]);
    let cases: [(&[&str], &[&str], bool); 5] = [
        (&[], &[" hello", "", " hello", ""], false),
        (&["</s>"], &[" hello", ""], true),
        (&["lo</"], &[" hel", ""], true),
        // The end of a special token waits without ever being shown.
        (
            &["s>x", "</s> hello!"],
            &[" hello", "", "", " hello"],
            false,
        ),
        (&["</s> he"], &[" hello", "", ""], true),
    ];
    for (stop, texts, stops) in cases {
        let mut assembler = speaking(Dialect::OpenAi, &tokenizer, stop);
        let (streamed, stopped, text) = generate(&mut assembler, &ids);
        assert_eq!(streamed, texts, "{stop:?}");
        assert_eq!(stopped, stops, "{stop:?}");
        assert_eq!(text, texts.concat());
    }
}

#[test]
fn kept_special_tokens_are_in_streams_and_texts_but_for_those_that_end_it() {
    let tokenizer = byte_fallback();
    let (bos, hello) = (1, tokenizer.encode("hello", false).unwrap()[0]);
    let incomplete = tokenizer.encode("你", false).unwrap()[1];
    let ids = [bos, hello, incomplete, bos, hello, EOS];
    for (dialect, last) in [(Dialect::Tgi, "</s>"), (Dialect::OpenAi, "")] {
        let keeping = |stop: &[&str]| {
            speaking(dialect, &tokenizer, stop).keeping_special_tokens([EOS].into())
        };
        let (streamed, _, text) = generate(&mut keeping(&[]), &ids);
        let shown = ["<s>", " hello", "", "\u{fffd}<s>", " hello", last];
        assert_eq!(streamed, shown, "{dialect:?}");
        assert_eq!(text, shown[..5].concat(), "{dialect:?}");
        // Stop strings are found in them.
        let (_, stopped, text) = generate(&mut keeping(&["lo<s>", "s> h"]), &ids);
        let expected = match dialect {
            Dialect::Tgi => "<s> h",
            Dialect::OpenAi => "<",
        };
        assert_eq!((stopped, text.as_str()), (true, expected), "{dialect:?}");
    }
    let token = speaking(Dialect::OpenAi, &tokenizer, &[])
        .keeping_special_tokens([EOS].into())
        .push(token(bos));
    assert!(token.token.special);
}

#[test]
fn stop_strings_wait_for_the_first_tokens() {
    let tokenizer = byte_fallback();
    let ids = tokenizer.encode("hello the hello the", false).unwrap();
    // So many tokens, and what is left of the text.
    let cases = [
        (0, " h"),
        (1, " hello the h"),
        (2, " hello the h"),
        (3, " hello the hello the"),
    ];
    for (min_tokens, expected) in cases {
        let stop = ["ell".to_owned()];
        let mut assembler = speaking(Dialect::OpenAi, &tokenizer, &["ell"]).after(min_tokens);
        let (streamed, stopped, text) = generate(&mut assembler, &ids);
        assert_eq!(text, expected, "{min_tokens}");
        assert_eq!(streamed.concat(), expected, "{min_tokens}");
        assert_eq!(stopped, min_tokens < 3, "{min_tokens}");
        let mut kept = speaking(Dialect::OpenAi, &tokenizer, &[])
            .including_stop(&stop, true)
            .after(min_tokens);
        let (streamed, _, text) = generate(&mut kept, &ids);
        let ell = if stopped { "ell" } else { "" };
        assert_eq!(text, format!("{expected}{ell}"), "{min_tokens}");
        assert_eq!(streamed.concat(), text, "{min_tokens}");
    }
}

#[test]
fn special_tokens_are_shown_where_it_is_asked_for_but_for_the_one_that_ends_the_text() {
    let tokenizer = byte_fallback();
    let (bos, hello) = (1, tokenizer.encode("hello", false).unwrap()[0]);
    let text = |included: bool, last: u32| {
        let mut assembler = speaking(Dialect::OpenAi, &tokenizer, &[])
            .including_stop(&[], included)
            .showing_special_tokens();
        if !included {
            assembler = assembler.without_ends([EOS, hello].into());
        }
        let mut texts: Vec<String> = [bos, hello, EOS]
            .map(|id| assembler.push(token(id)).token.text)
            .into();
        texts.push(assembler.push_end(token(last)).token.text);
        assert_eq!(texts.concat(), assembler.finish());
        texts.concat()
    };
    assert_eq!(text(false, EOS), "<s> hello</s>");
    assert_eq!(text(true, EOS), "<s> hello</s></s>");
    assert_eq!(text(false, hello), "<s> hello</s>");
    assert_eq!(text(true, hello), "<s> hello</s> hello");
    // A grammar may end with any token.
    assert_eq!(text(false, bos), "<s> hello</s><s>");
}

#[test]
fn openai_streams_that_keep_their_stop_string_hide_special_tokens() {
    let tokenizer = byte_fallback();
    let hello = tokenizer.encode("hello", false).unwrap()[0];
    for (dialect, included, shown) in [
        (Dialect::OpenAi, true, [" hello", "", " hell"]),
        (Dialect::Tgi, true, [" hello", "</s>", " hell"]),
        (Dialect::Tgi, false, [" hello", "</s>", ""]),
    ] {
        let stop = ["> hell".to_owned()];
        let mut assembler = speaking(dialect, &tokenizer, &[]).including_stop(&stop, included);
        let (streamed, stopped, text) = generate(&mut assembler, &[hello, EOS, hello]);
        let rest = if included { " hello hell" } else { " hello" };
        assert_eq!(streamed, shown, "{dialect:?}");
        assert_eq!(text, rest, "{dialect:?}");
        assert!(stopped, "{dialect:?}");
    }
}
