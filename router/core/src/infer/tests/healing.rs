//! Prompts whose last tokens are generated again.

use futures::future::try_join_all;
use text_generation_mock_shard::MockRow;

use super::windows::{all, drafting};
use super::*;
use crate::detokenize::Detokenizer;

fn id(text: &str) -> u32 {
    let tokenizer = byte_level();
    let found = (0..VOCAB).rfind(|&id| tokenizer.token_text(id) == text);
    found.unwrap()
}

/// Every request generates these tokens, over and over.
fn saying(tokens: &[&str]) -> MockConfig {
    let ids: Vec<u32> = tokens.iter().map(|text| id(text)).collect();
    MockConfig {
        tokens: Arc::new(move |row: &MockRow| ids[row.generated as usize % ids.len()]),
        ..mock_config()
    }
}

/// `Hel` are the tokens `He` and `l`, and `Hello` is a token.
fn healed(max_new_tokens: u32) -> GenerateRequest {
    with(request("say Hel", max_new_tokens), |p| {
        p.token_healing = true
    })
}

fn texts(answer: &GenerateAnswer) -> Vec<&str> {
    let texts = answer.tokens.iter().map(|token| token.text.as_str());
    texts.collect()
}

#[tokio::test]
async fn the_text_goes_on_from_within_a_token() {
    let server = Server::start(saying(&["Hello", " there"]), batch_limits(), 8).await;
    let prompt = byte_level().encode("say Hel", true).unwrap();
    let answer = server.infer.generate(healed(3)).await.unwrap();
    assert_eq!(answer.generated.text, "lo thereHello");
    assert_eq!(texts(&answer), ["lo", " there", "Hello"]);
    assert_eq!(*answer.prompt_ids, prompt[..prompt.len() - 2]);
    assert_eq!(answer.input_length as usize, prompt.len() - 2);
    assert_eq!(answer.generated.generated_tokens, 3);
    assert_eq!(&*answer.healed, "Hel");
    // Without it the prompt stays as it is.
    let plain = server.infer.generate(request("say Hel", 3)).await.unwrap();
    assert_eq!(plain.generated.text, "Hello thereHello");
    assert_eq!(*plain.prompt_ids, prompt);
    assert_eq!(&*plain.healed, "");
    server.assert_clean(8).await;
}

#[tokio::test]
async fn the_end_may_be_written_with_several_tokens() {
    let server = Server::start(saying(&["H", "e", "ll", "o"]), batch_limits(), 8).await;
    let answer = server.infer.generate(healed(4)).await.unwrap();
    assert_eq!(texts(&answer), ["", "", "l", "o"]);
    assert_eq!(answer.generated.text, "lo");
    // What the model would rather say is not the end of the prompt.
    let other = Server::start(saying(&[" there"]), batch_limits(), 8).await;
    let streams = other.infer.generate_group(group(healed(4), 2)).await;
    let samples = streams.unwrap().into_iter().map(GenerateStream::gather);
    for answer in try_join_all(samples).await.unwrap() {
        let ids = answer.tokens.iter().map(|token| token.id);
        let written: String = ids.map(|id| byte_level().token_text(id)).collect();
        assert_eq!(written, format!("Hel{}", answer.generated.text));
    }
    server.assert_clean(8).await;
    other.assert_clean(8).await;
}

#[tokio::test]
async fn alternatives_are_without_the_end_of_the_prompt_too() {
    let server = Server::start(saying(&["Hello", " there"]), batch_limits(), 8).await;
    let asked = with(healed(2), |p| p.top_n_tokens = Some(2));
    let answer = server.infer.generate(asked).await.unwrap();
    for (token, top) in answer.tokens.iter().zip(&answer.top_tokens) {
        let own = top.iter().find(|other| other.id == token.id).unwrap();
        assert_eq!(own.text, token.text);
    }
    assert_eq!(answer.tokens[0].text, "lo");
    let mut assembler = Detokenizer::new(byte_level()).skipping("Hel");
    let alternatives = ["Hello", "He", " there"].map(|text| assembler.alternative(id(text)));
    assert_eq!(alternatives, ["lo", "", " there"]);
    assembler.push(id("He"));
    assert_eq!(assembler.alternative(id("l")), "");
    server.assert_clean(8).await;
}

#[tokio::test]
async fn nothing_is_generated_again_where_no_token_goes_on() {
    let server = Server::start(saying(&[" there"]), batch_limits(), 8).await;
    let asked = |healing| with(request("once!", 3), |p| p.token_healing = healing);
    let answer = server.infer.generate(asked(true)).await.unwrap();
    let plain = server.infer.generate(asked(false)).await.unwrap();
    assert_eq!(answer.generated, plain.generated);
    assert_eq!(answer.prompt_ids, plain.prompt_ids);
    assert!(server.mock.steps().iter().all(|step| step.constrained == 0));
    server.assert_clean(8).await;
}

#[tokio::test]
async fn windows_follow_once_the_end_is_written() {
    let tokens = ["H", "e", "ll", "o", " there"];
    let plain = Server::start(saying(&tokens), batch_limits(), 8).await;
    let endless = || with(healed(60), |p| p.ignore_eos = true);
    let expected = plain.infer.generate(endless()).await.unwrap();
    let server = drafting(saying(&tokens), all).await;
    let answer = server.infer.generate(endless()).await.unwrap();
    assert_eq!(answer.generated.text, expected.generated.text);
    let steps = server.mock.steps();
    assert!(steps.len() < 40, "{}", steps.len());
    let constrained = steps.iter().filter(|step| step.constrained > 0).count();
    assert!((3..=5).contains(&constrained), "{constrained}");
    server.assert_clean(8).await;
}

#[tokio::test]
async fn a_grammar_begins_behind_the_prompt() {
    let server = Server::start(saying(&["Hello", " there"]), batch_limits(), 8).await;
    let following = |source| with(healed(9), |p| p.grammar = Some(source));
    let regex = GrammarSource::Regex("lo( there){2}".to_owned());
    let answer = server.infer.generate(following(regex)).await.unwrap();
    assert_eq!(answer.generated.text, "lo there there");
    assert_eq!(answer.generated.finish_reason, FinishReason::EosToken);
    assert_eq!(texts(&answer)[0], "lo");
    let choices = ["x", "lo"].map(str::to_owned).to_vec();
    let choice = GrammarSource::Choice(choices);
    let answer = server.infer.generate(following(choice)).await.unwrap();
    assert_eq!(answer.generated.text, "lo");
    // What is wrong with a grammar is said of it.
    let wrong = GrammarSource::Regex("(".to_owned());
    let error = server.infer.generate(following(wrong)).await.unwrap_err();
    let plain = with(request("say Hel", 9), |p| {
        p.grammar = Some(GrammarSource::Regex("(".to_owned()));
    });
    let same = server.infer.generate(plain).await.unwrap_err();
    assert_eq!(error.to_string(), same.to_string());
    server.assert_clean(8).await;
}

#[tokio::test]
async fn the_prompt_has_no_bad_words_and_ends_no_text() {
    let server = Server::start(saying(&["He", "l", "o", "Hello"]), batch_limits(), 8).await;
    let words = ["H", "He", "l", "Hell", "Hello"].map(str::to_owned);
    let bad = with(healed(3), |p| p.bad_words = Some(words.to_vec()));
    let answer = server.infer.generate(bad).await.unwrap();
    assert_eq!(texts(&answer)[..2], ["", ""]);
    assert!(!answer.generated.text.contains('l'), "{answer:?}");
    let stops = with(healed(9), |p| {
        p.stop_token_ids = Some(vec![id("He"), id("Hello")]);
        p.stop = vec!["Helo".to_owned()];
    });
    let answer = server.infer.generate(stops).await.unwrap();
    assert_eq!(answer.generated.generated_tokens, 4);
    assert_eq!(answer.generated.finish_reason, FinishReason::EosToken);
    server.assert_clean(8).await;
}
