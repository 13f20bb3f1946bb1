//! Steps that bring a request several tokens: what clients see is what single tokens would have been.

use text_generation_mock_shard::MockRow;

use super::*;

/// A server whose shards draft, of which `right` says how many are right.
pub(super) async fn drafting(config: MockConfig, right: fn(&MockRow, u32) -> u32) -> Server {
    let config = MockConfig {
        widths: vec![2, 4],
        drafts: Arc::new(right),
        ..config
    };
    Server::start(config, batch_limits(), 8).await
}

pub(super) fn all(_: &MockRow, drafts: u32) -> u32 {
    drafts
}

pub(super) fn none(_: &MockRow, _: u32) -> u32 {
    0
}

/// Another number for each step.
fn some(row: &MockRow, drafts: u32) -> u32 {
    (row.generated * 7 + row.request_id as u32) % (drafts + 1)
}

/// Ends at its length alone.
pub(super) fn endless(text: &str, max_new_tokens: u32) -> GenerateRequest {
    with(request(text, max_new_tokens), |p| p.ignore_eos = true)
}

async fn texts(server: &Server) -> Vec<(String, u32, FinishReason)> {
    let requests = (0..6).map(|n| request(&"abcdef"[..=n], 9 + n as u32));
    let answers = requests.map(|request| server.infer.generate(request));
    let answers = futures::future::try_join_all(answers).await.unwrap();
    let told = answers.into_iter().map(|answer| answer.generated);
    told.map(|each| (each.text, each.generated_tokens, each.finish_reason))
        .collect()
}

#[tokio::test]
async fn texts_are_those_of_single_tokens_whoever_drafts() {
    let plain = Server::default().await;
    let expected = texts(&plain).await;
    let plain_steps = plain.mock.steps().len();
    for right in [all, none, some] {
        let server = drafting(mock_config(), right).await;
        assert_eq!(texts(&server).await, expected);
        assert!(server.mock.steps().len() <= plain_steps + 1);
        server.assert_clean(8).await;
    }
}

#[tokio::test]
async fn right_drafts_take_fewer_steps_and_wrong_ones_no_windows() {
    let widest = |server: &Server| server.mock.steps().iter().map(|step| step.width).max();
    let server = drafting(mock_config(), all).await;
    server.infer.generate(endless("once", 64)).await.unwrap();
    // At first nobody knows how good the drafts are.
    assert!(
        server.mock.steps().len() < 30,
        "{}",
        server.mock.steps().len()
    );
    assert_eq!(widest(&server), Some(4));
    server.assert_clean(8).await;
    let server = drafting(mock_config(), none).await;
    server.infer.generate(endless("once", 64)).await.unwrap();
    let narrow = server
        .mock
        .steps()
        .into_iter()
        .filter(|step| step.width == 1);
    assert!(narrow.count() > 40);
}

#[tokio::test]
async fn a_text_ends_at_the_token_that_ends_it_also_within_a_window() {
    let server = drafting(repeating("abc"), all).await;
    let stop = byte_level().encode("c", false).unwrap();
    let stops = with(request("once", 32), |p| p.stop_token_ids = Some(stop));
    let stops = GenerateRequest {
        dialect: Dialect::OpenAi,
        ..with(stops, |p| p.min_new_tokens = Some(10))
    };
    let answer = server.infer.generate(stops).await.unwrap().generated;
    assert_eq!(
        (answer.text.as_str(), answer.generated_tokens),
        ("abcabcabcab", 12)
    );
    assert_eq!(answer.finish_reason, FinishReason::EosToken);
    server.assert_clean(8).await;
}

#[tokio::test]
async fn alternatives_come_with_each_token_of_a_window() {
    let server = drafting(mock_config(), all).await;
    let asking = with(request("once", 24), |p| {
        p.top_n_tokens = Some(2);
        p.details = true;
    });
    let answer = server.infer.generate(asking).await.unwrap();
    let tops: Vec<usize> = answer.top_tokens.iter().map(Vec::len).collect();
    assert_eq!(tops, vec![2; 24]);
    for (token, tops) in answer.tokens.iter().zip(&answer.top_tokens) {
        assert_eq!(token.id, tops[0].id);
    }
}
