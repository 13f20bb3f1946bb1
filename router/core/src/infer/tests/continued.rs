//! Texts that may follow a prompt, and their log-probabilities alone.

use futures::future::join_all;

use super::*;

fn texts(choices: &[&str]) -> Vec<Inputs> {
    choices.iter().map(|&choice| choice.into()).collect()
}

fn tokens(text: &str) -> Vec<u32> {
    byte_level().encode(text, true).unwrap()
}

#[tokio::test]
async fn choices_are_read_with_their_prompt_and_compared_from_one_place() {
    let server = Server::default().await;
    let infer = &server.infer;
    let continued =
        |prompt: Inputs, choices| async move { infer.continued(&prompt, choices, true).await };
    // `He` and `l` are tokens, and so is `Hello`: one choice changes the end of the prompt, and counts with it for all.
    let found = continued("say Hel".into(), texts(&["lo", "met"])).await;
    let found = found.unwrap();
    assert_eq!(found.ids, [tokens("say Hello"), tokens("say Helmet")]);
    assert_eq!(found.shared, tokens("say Hel").len() - 2);
    let found = continued("say".into(), texts(&[" there", " a"])).await;
    assert_eq!(found.unwrap().shared, tokens("say").len());
    let nothing = continued("Hel".into(), texts(&["lo"])).await;
    let nothing = nothing.unwrap_err().to_string();
    assert!(nothing.contains("nothing predicts"), "{nothing}");
    let ids = |text: &str| Inputs::Ids(tokens(text));
    let by_ids = continued(ids("Hel"), vec![ids("lo")]).await.unwrap();
    let joined = [tokens("Hel"), tokens("lo")].concat();
    assert_eq!((by_ids.ids, by_ids.shared), (vec![joined], 2));
    server.assert_clean(128).await;
}

/// A request for the log-probabilities of the last tokens of a prompt.
fn scoring(prompt: Vec<u32>, from: usize) -> GenerateRequest {
    let request = with(request("", 1), |p| {
        (p.decoder_input_details, p.logprobs_from) = (true, from);
    });
    GenerateRequest {
        inputs: Inputs::Ids(prompt),
        ..request
    }
}

#[tokio::test]
async fn prompts_with_one_beginning_compute_it_once() {
    let server = Server::default().await;
    let prompt = |last: u32| -> Vec<u32> { (1..=100).chain([last, last]).collect() };
    let answers = (110..114).map(|last| server.infer.generate(scoring(prompt(last), 100)));
    for (last, answer) in (110..).zip(join_all(answers).await) {
        let answer = answer.unwrap();
        let ids: Vec<u32> = answer.prefill.iter().map(|token| token.id).collect();
        assert_eq!(ids, [last, last]);
        assert!(answer.prefill.iter().all(|token| token.logprob.is_some()));
    }
    let computed = |server: &Server| -> u32 {
        let steps = server.mock.steps();
        steps.iter().map(|step| step.chunk_tokens).sum()
    };
    // The last token that they share predicts the first that is scored.
    assert_eq!(computed(&server), 102 + 3 * 3);
    // The whole prompt is computed where all of its log-probabilities are wanted.
    let whole = server
        .infer
        .generate(scoring(prompt(110), 0))
        .await
        .unwrap();
    assert_eq!((whole.cached_tokens, whole.prefill.len()), (0, 102));
    assert_eq!(whole.prefill[0].logprob, None);
    assert_eq!(computed(&server), 102 + 3 * 3 + 102);
    server.assert_clean(128).await;
}
