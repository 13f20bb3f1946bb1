//! What ends a text, and what is never in one.

use super::*;

/// The ids of a text.
fn ids(text: &str) -> Vec<u32> {
    byte_level().encode(text, false).unwrap()
}

/// The text of a request, why it ended, and how many tokens it has.
async fn answer(
    server: &Server,
    change: impl FnOnce(&mut GenerateParameters),
) -> (String, FinishReason, u32) {
    let request = GenerateRequest {
        dialect: Dialect::OpenAi,
        ..with(request("once", 8), change)
    };
    let generated = server.infer.generate(request).await.unwrap().generated;
    let (reason, tokens) = (generated.finish_reason, generated.generated_tokens);
    (generated.text, reason, tokens)
}

#[tokio::test]
async fn stop_tokens_end_a_text_and_are_not_in_it() {
    let server = Server::start(repeating("abc"), batch_limits(), 8).await;
    let c = ids("c");
    let expect = |text: &str, tokens| (text.to_owned(), FinishReason::EosToken, tokens);
    let stop = |p: &mut GenerateParameters| p.stop_token_ids = Some(c.clone());
    assert_eq!(answer(&server, stop).await, expect("ab", 3));
    let included = |p: &mut GenerateParameters| {
        stop(p);
        p.include_stop_str_in_output = Some(true);
    };
    assert_eq!(answer(&server, included).await, expect("abc", 3));
    // They are not end-of-sequence tokens.
    let after_eos = |p: &mut GenerateParameters| {
        stop(p);
        p.ignore_eos = true;
    };
    assert_eq!(answer(&server, after_eos).await, expect("ab", 3));
    // Before so many tokens nothing ends it.
    let later = |p: &mut GenerateParameters| {
        stop(p);
        p.min_new_tokens = Some(3);
    };
    assert_eq!(answer(&server, later).await, expect("abcab", 6));
    let strings = |p: &mut GenerateParameters| {
        (p.stop, p.min_new_tokens) = (vec!["b".to_owned()], Some(2));
    };
    let found = ("abca".to_owned(), FinishReason::StopSequence, 5);
    assert_eq!(answer(&server, strings).await, found);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn bad_words_are_not_written_with_a_grammar_or_without() {
    let server = Server::start(repeating("abcd"), batch_limits(), 8).await;
    let after = |text: &str| ids(text)[0] + 1;
    let plain = answer(&server, |_| ()).await.0;
    assert_eq!(plain, "abcdabcd");
    // The mock takes the next id instead of one that it may not.
    assert_eq!(after("c"), ids("d")[0]);
    let bad = |words: &'static [&str]| {
        move |p: &mut GenerateParameters| {
            p.bad_words = Some(words.iter().map(|&word| word.to_owned()).collect());
        }
    };
    assert_eq!(answer(&server, bad(&["bc"])).await.0, "abddabdd");
    assert_eq!(answer(&server, bad(&["c", "dab"])).await.0, "abddaddd");
    let both = |p: &mut GenerateParameters| {
        bad(&["bc"])(p);
        p.grammar = Some(GrammarSource::Regex("[a-c]{4}".to_owned()));
    };
    let (text, reason, _) = answer(&server, both).await;
    assert_eq!(reason, FinishReason::EosToken);
    assert!(text.len() == 4 && !text.contains("bc"), "{text}");
    server.assert_clean(8).await;
}

#[tokio::test]
async fn bad_words_end_with_the_end_of_the_text() {
    let ending = MockConfig {
        tokens: Arc::new(|row| if row.generated == 2 { 0 } else { 70 }),
        ..mock_config()
    };
    let server = Server::start(ending, batch_limits(), 8).await;
    let bad = |p: &mut GenerateParameters| p.bad_words = Some(vec!["z".to_owned()]);
    let (text, reason, tokens) = answer(&server, bad).await;
    assert_eq!((text.len(), reason, tokens), (2, FinishReason::EosToken, 3));
    let beyond = |p: &mut GenerateParameters| {
        bad(p);
        p.ignore_eos = true;
    };
    assert_eq!(answer(&server, beyond).await.1, FinishReason::Length);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn prompts_are_cut_to_the_room_beside_the_answer() {
    let server = Server::default().await;
    let long = "x".repeat(1500);
    for (new, kept) in [(8, 1000), (1300, 700)] {
        let request = with(request(&long, new), |p| p.truncate_to_fit = true);
        let answer = server.infer.generate(request).await.unwrap();
        assert_eq!(answer.input_length, kept);
        assert_eq!(answer.prompt_ids.len(), kept as usize);
    }
    server.assert_clean(128).await;
}
