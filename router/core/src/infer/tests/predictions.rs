//! Requests that say what their text may be: it comes in fewer steps where they are right, and is the same in any case.

use super::windows::{all, drafting, endless, none};
use super::*;
use crate::tenant::{Grant, Tenant};
use crate::types::{GeneratedText, PredictedTokens};

fn predicting(request: GenerateRequest, prediction: &str) -> GenerateRequest {
    with(request, |p| {
        p.prediction = Some(Inputs::from(prediction));
    })
}

async fn generated(server: &Server, request: GenerateRequest) -> GeneratedText {
    server.infer.generate(request).await.unwrap().generated
}

fn hints(server: &Server) -> usize {
    server.mock.steps().iter().map(|step| step.hints).sum()
}

#[tokio::test]
async fn a_right_prediction_takes_fewer_steps() {
    let server = drafting(repeating("abc"), none).await;
    let text = "abc".repeat(70);
    let answer = generated(&server, predicting(endless("once", 200), &text)).await;
    assert_eq!(answer.text, text[..200]);
    let predicted = PredictedTokens {
        accepted: 200,
        rejected: 10,
    };
    assert_eq!(answer.predicted, Some(predicted));
    // One token of the prompt's step, then four a step but for those that were on their way before.
    let steps = server.mock.steps().len();
    assert!(steps < 60, "{steps}");
    assert!(answer.speculated.accepted > 140, "{:?}", answer.speculated);
    assert!(answer.speculated.drafted >= answer.speculated.accepted);
    // The shards keep 64 tokens of it at a time.
    let hints = hints(&server);
    assert!((4..=16).contains(&hints), "{hints}");
    server.assert_clean(8).await;
}

#[tokio::test]
async fn an_edit_is_followed_again_behind_what_was_changed() {
    let server = drafting(repeating("0123456789"), none).await;
    let answer = "0123456789".repeat(15);
    // Two pieces were written anew, one was left out and one is new.
    let old = format!(
        "{}..{}{}<new>{}",
        &answer[..40],
        &answer[41..80],
        &answer[85..110],
        &answer[110..]
    );
    let found = generated(&server, predicting(endless("once", 150), &old)).await;
    assert_eq!(found.text, answer);
    let predicted = found.predicted.unwrap();
    assert!(predicted.accepted > 120, "{predicted:?}");
    assert!(server.mock.steps().len() < 110);
}

#[tokio::test]
async fn wrong_predictions_change_no_text() {
    let plain = Server::default().await;
    let expected = generated(&plain, endless("once", 60)).await.text;
    let lies = [
        String::new(),
        "x".to_owned(),
        expected.repeat(3),
        expected.chars().rev().collect(),
        expected.replace('a', "b"),
        expected[20..].to_owned(),
        "<|end|>".repeat(50),
        "é\u{1F600}".repeat(99),
    ];
    for right in [all, none] {
        let server = drafting(mock_config(), right).await;
        for lie in &lies {
            let answer = generated(&server, predicting(endless("once", 60), lie)).await;
            assert_eq!(answer.text, expected, "{lie}");
        }
        server.assert_clean(8).await;
    }
}

#[tokio::test]
async fn a_wrong_prediction_leaves_windows_to_the_shards_own_drafts() {
    let server = drafting(mock_config(), all).await;
    generated(&server, predicting(endless("once", 64), &"?".repeat(64))).await;
    let steps = server.mock.steps().len();
    assert!(steps < 30, "{steps}");
}

#[tokio::test]
async fn predictions_that_nobody_can_use_are_ignored() {
    let plain = Server::default().await;
    let long = "abc".repeat(9_000);
    let answer = generated(&plain, predicting(endless("once", 8), &long)).await;
    assert_eq!(answer.predicted, None);
    assert_eq!(hints(&plain), 0);
}

#[tokio::test]
async fn a_prediction_is_no_longer_than_a_prompt_and_of_known_tokens() {
    let server = drafting(mock_config(), all).await;
    let refused = async |prediction: Inputs| {
        let request = with(request("once", 8), |p| p.prediction = Some(prediction));
        server
            .infer
            .generate(request)
            .await
            .unwrap_err()
            .to_string()
    };
    let message = refused("a".repeat(1001).into()).await;
    let expected = "`prediction` must have at most 1000 tokens, as a prompt. Given: at least 1001; shorten it or leave it out, the answer is the same";
    assert_eq!(message, format!("Input validation error: {expected}"));
    let message = refused(Inputs::Ids(vec![5, VOCAB])).await;
    assert!(
        message.contains("`prediction` contains the token id 320"),
        "{message}"
    );
    let longest = with(request("once", 8), |p| {
        p.prediction = Some(Inputs::Ids(vec![5; 1000]));
    });
    server.infer.generate(longest).await.unwrap();
}

#[tokio::test]
async fn samples_share_a_prediction_and_follow_it_alone() {
    let server = drafting(repeating("abcdefg"), none).await;
    let text = generated(&server, endless("once", 40)).await.text;
    let group = Group {
        request: predicting(endless("once", 40), &text),
        samples: 3,
    };
    let streams = server.infer.generate_group(group).await.unwrap();
    for stream in streams {
        let answer = stream.gather().await.unwrap().generated;
        assert_eq!(answer.text, text);
        assert_eq!(answer.predicted.unwrap().accepted, 40);
    }
}

/// Shards whose own drafts are all wrong, before which earlier answers are kept.
async fn keeping(config: MockConfig) -> Server {
    let setup = Setup {
        answer_bytes: 1 << 20,
        ..Setup::from(MockConfig {
            widths: vec![2, 4],
            drafts: Arc::new(none),
            ..config
        })
    };
    Server::start(setup, batch_limits(), 8).await
}

/// How many steps each of these takes, one after the other, whose text is `expected`.
async fn steps_of(
    server: &Server,
    requests: impl IntoIterator<Item = GenerateRequest>,
    expected: &str,
) -> Vec<usize> {
    let mut steps = Vec::new();
    for request in requests {
        let before = server.mock.steps().len();
        assert_eq!(generated(server, request).await.text, expected);
        steps.push(server.mock.steps().len() - before);
    }
    steps
}

#[tokio::test]
async fn an_answer_that_was_given_before_takes_fewer_steps_of_the_same_tenant() {
    let text: String = (0..60)
        .map(|n| char::from(b'!' + (n * n + n / 7) as u8 % 90))
        .collect();
    let server = keeping(repeating(&text)).await;
    let of = |tenant: &str, salt: Option<&str>| {
        with(endless("once", 60), |p| {
            p.tenant = Tenant::new(tenant, Grant::default());
            p.cache_salt = salt.map(str::to_owned);
        })
    };
    let requests = [
        of("a", None),
        of("b", None),
        of("a", Some("s")),
        of("a", None),
    ];
    let steps = steps_of(&server, requests, &text).await;
    assert!(steps[..3].iter().all(|&steps| steps >= 60), "{steps:?}");
    assert!(steps[3] < 40, "{steps:?}");
    // Nobody said what the answer may be.
    let again = generated(&server, of("a", None)).await;
    assert_eq!(again.predicted, None);
    assert!(again.speculated.accepted > 20, "{:?}", again.speculated);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn no_answer_is_kept_unless_it_is_asked_for() {
    let server = drafting(mock_config(), none).await;
    for _ in 0..3 {
        generated(&server, endless("once", 40)).await;
    }
    assert_eq!(hints(&server), 0);
}
