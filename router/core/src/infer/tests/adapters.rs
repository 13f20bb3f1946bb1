//! Requests of adapters: which one the shards get to know, what is cached for it, and what a restart may not change.

use futures::future::join_all;
use text_generation_proto::v1;

use super::recovery::{ids, rest};
use super::*;
use crate::adapters::Adapters;
use crate::error::ValidationError;

/// What the first start of the shards has.
pub(super) fn of(config: &MockConfig) -> Adapters {
    Adapters::new((config.adapters)(0).into_iter().map(Into::into).collect())
}

fn adapter(name: &str, number: u32, generation: u64) -> v1::AdapterInfo {
    v1::AdapterInfo {
        name: name.to_owned(),
        number,
        generation,
        rank: 8,
        source: format!("/adapters/{name}"),
    }
}

/// Tokens tell the adapter. With `changed`, the shards find other files of the second one when they start again.
pub(super) fn config(changed: bool) -> MockConfig {
    MockConfig {
        adapters: Arc::new(move |life| {
            let other = if changed && life > 0 { 9 } else { 8 };
            vec![adapter("pirate", 1, 7), adapter("sums", 2, other)]
        }),
        tokens: Arc::new(|row| 10 + 100 * row.adapter + row.generated),
        ..mock_config()
    }
}

pub(super) fn asked(adapter: Option<&str>, tokens: u32) -> GenerateRequest {
    let prompt = "the same prompt of every one of them, long enough for the cache";
    let mut asked = request(prompt, tokens);
    asked.parameters.adapter_id = adapter.map(str::to_owned);
    asked
}

fn first_ids(answer: &GenerateAnswer) -> u32 {
    ids(answer)[0]
}

#[tokio::test]
async fn each_request_reaches_its_adapter_and_caches_for_it_alone() {
    let server = Server::start(config(false), batch_limits(), 64).await;
    let mut found = Vec::new();
    for adapter in [None, Some("pirate"), Some("sums"), Some("pirate"), Some("")] {
        let answer = server.infer.generate(asked(adapter, 4)).await.unwrap();
        found.push((first_ids(&answer), answer.cached_tokens > 0));
    }
    let base = (10, false);
    assert_eq!(
        found,
        [base, (110, false), (210, false), (110, true), (10, true)]
    );
    server.assert_clean(64).await;
}

#[tokio::test]
async fn an_unknown_adapter_is_refused_with_those_that_exist() {
    let server = Server::start(config(false), batch_limits(), 64).await;
    let error = server
        .infer
        .generate(asked(Some("parrot"), 4))
        .await
        .unwrap_err();
    let InferError::Validation(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.field(), Some("adapter_id"));
    assert_eq!(
        error.to_string(),
        "`adapter_id` names no adapter of this server, which has `pirate`, `sums`. Given: \"parrot\""
    );
    let none = Server::default().await;
    let error = none
        .infer
        .generate(asked(Some("pirate"), 4))
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        InferError::Validation(ValidationError::NoAdapters)
    ));
}

#[tokio::test]
async fn adapters_outlive_the_shards() {
    let server = Server::start(config(false), batch_limits(), 64).await;
    server.mock.hold();
    let streams = server
        .streams([None, Some("sums")].map(|name| asked(name, 12)))
        .await;
    server.run_steps(3).await;
    server.mock.kill();
    server.until_recovered(1).await;
    server.mock.resume();
    let expected = [10, 210].map(|first| (first..first + 12).collect::<Vec<u32>>());
    assert_eq!(rest(streams).await, expected);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn an_adapter_whose_files_have_changed_ends_its_requests_and_no_others() {
    let server = Server::start(config(true), batch_limits(), 64).await;
    server.mock.hold();
    let names = [None, Some("pirate"), Some("sums")];
    let streams = server.streams(names.map(|name| asked(name, 12))).await;
    server.run_steps(3).await;
    server.mock.kill();
    server.until_recovered(1).await;
    server.mock.resume();
    let answers = join_all(streams.into_iter().map(GenerateStream::gather)).await;
    let ended = answers
        .into_iter()
        .map(|answer| answer.map(|answer| first_ids(&answer)));
    let ended: Vec<_> = ended.collect();
    assert_eq!(ended[..2], [Ok(10), Ok(110)]);
    assert!(matches!(ended[2], Err(InferError::AdapterChanged)));
    // Nor does a later one get other weights than it asked for.
    let late = server.infer.generate(asked(Some("sums"), 4)).await;
    assert!(matches!(late, Err(InferError::AdapterChanged)));
    server.assert_clean(64).await;
}
