//! The client against mock shards over real sockets.

#![allow(clippy::unwrap_used, reason = "a helper of tests may panic as they do")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use text_generation_client::types::{
    Batch, CachedBatch, Copy, FinishReason, Grant, NextTokenChooser, Request, SlotRange, StepReply,
    StoppingCriteria, WarmupLimits,
};
use text_generation_client::{ClientError, Deadlines, ShardedClient};
use text_generation_mock_shard::{MockConfig, MockShard};

fn request(id: u64, start: u32, max_new_tokens: u32) -> Request {
    Request {
        id,
        input_ids: vec![10, 11, 12],
        chooser: NextTokenChooser::GREEDY,
        stopping: StoppingCriteria {
            max_new_tokens,
            ignore_eos_token: false,
            min_new_tokens: 0,
        },
        prefill_logprobs: true,
        top_n_tokens: 0,
        slots: vec![SlotRange { start, length: 4 }],
        copies: Vec::new(),
    }
}

async fn connect(mock: &MockShard) -> ShardedClient {
    ShardedClient::connect_uds(&mock.path(), Deadlines::default())
        .await
        .unwrap()
}

#[tokio::test]
async fn generations_of_all_ranks_are_joined() {
    let mock = MockShard::start(MockConfig {
        world_size: 2,
        ..MockConfig::default()
    })
    .unwrap();
    let client = connect(&mock).await;
    assert_eq!(client.info().await.unwrap().world_size, 2);

    let requests = vec![request(0, 0, 3), request(1, 4, 1)];
    let reply = client.prefill(Batch { id: 5, requests }).await.unwrap();
    let mut ids: Vec<u64> = reply.generations.iter().map(|g| g.request_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1]);
    let prompt = reply.generations[0].prefill_tokens.as_ref().unwrap();
    assert_eq!(prompt.len(), 3);
    assert!(prompt[0].logprob.is_nan());
    let batch = reply.batch.unwrap();
    assert_eq!((batch.id, batch.request_ids.as_slice()), (5, &[0][..]));

    let grant = Grant {
        request_id: 0,
        slots: vec![SlotRange {
            start: 8,
            length: 1,
        }],
    };
    let reply = client.decode(vec![batch], vec![grant]).await.unwrap();
    assert_eq!(reply.generations.len(), 1);
    let reply = client
        .decode(vec![reply.batch.unwrap()], vec![])
        .await
        .unwrap();
    let finish = reply.generations[0].finish.unwrap();
    assert_eq!(finish.reason, FinishReason::Length);
    assert_eq!(finish.generated_tokens, 3);
    assert_eq!(reply.batch, None);
    assert_eq!(mock.violations(), Vec::<String>::new());
    assert_eq!(mock.slots(), 0);
}

#[tokio::test]
async fn copies_are_requests_of_their_own_over_one_prompt() {
    let config = MockConfig {
        world_size: 2,
        // The seeds show.
        tokens: Arc::new(|row| 100 + row.seed as u32),
        ..MockConfig::default()
    };
    let mock = MockShard::start(config).unwrap();
    let client = connect(&mock).await;
    let copy = |id, start| Copy {
        id,
        seed: id * 10,
        slots: vec![SlotRange { start, length: 1 }],
    };
    let request = Request {
        copies: vec![copy(1, 4), copy(2, 5)],
        ..request(0, 0, 2)
    };
    let requests = vec![request];
    let reply = client.prefill(Batch { id: 0, requests }).await.unwrap();
    let mut tokens: Vec<(u64, u32)> = reply
        .generations
        .iter()
        .map(|g| (g.request_id, g.tokens[0].id))
        .collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [(0, 100), (1, 110), (2, 120)]);
    let batch = reply.batch.unwrap();
    assert_eq!(batch.request_ids, [0, 1, 2]);
    // Three slots of the prompt and one for each.
    assert_eq!((mock.rows(), mock.slots()), (3, 6));
    // The prompt stays without the request that brought it.
    let left = client.filter_batch(0, vec![1, 2]).await.unwrap().unwrap();
    assert_eq!((mock.rows(), mock.slots()), (2, 5));
    let reply = client.decode(vec![left], vec![]).await.unwrap();
    assert_eq!((reply.generations.len(), reply.batch), (2, None));
    assert_eq!(mock.slots(), 0);
    assert_eq!(mock.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn a_shard_that_runs_ahead_keeps_a_new_request_without_a_token() {
    let config = MockConfig {
        run_ahead: true,
        idle_time: Duration::from_micros(7),
        kernel_compilations: 3,
        ..MockConfig::default()
    };
    let mock = MockShard::start(config).unwrap();
    let client = connect(&mock).await;
    let slots = |start| vec![SlotRange { start, length: 10 }];
    let one = |id, start| Request {
        slots: slots(start),
        ..request(id, start, 8)
    };
    let requests = vec![one(0, 0)];
    let old = client.prefill(Batch { id: 0, requests }).await.unwrap();
    let old = client.decode(vec![old.batch.unwrap()], vec![]).await;
    let requests = vec![one(1, 10)];
    let new = client.prefill(Batch { id: 1, requests }).await.unwrap();
    let both = vec![old.unwrap().batch.unwrap(), new.batch.unwrap()];
    let reply = client.decode(both, vec![]).await.unwrap();
    let ids = |reply: &StepReply| -> Vec<u64> {
        reply.generations.iter().map(|g| g.request_id).collect()
    };
    assert_eq!(ids(&reply), [0]);
    let timings = reply.timings;
    assert_eq!(
        (timings.idle, timings.kernel_compilations),
        (Duration::from_micros(7), 3)
    );
    let batch = reply.batch.unwrap();
    assert_eq!(batch.request_ids, [0, 1]);
    let reply = client.decode(vec![batch], vec![]).await.unwrap();
    assert_eq!(ids(&reply), [0, 1]);
    assert_eq!(mock.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn filtering_and_clearing_free_rows() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let client = connect(&mock).await;
    let requests = vec![request(0, 0, 9), request(1, 4, 9)];
    client.prefill(Batch { id: 0, requests }).await.unwrap();
    let left = client.filter_batch(0, vec![1]).await.unwrap().unwrap();
    assert_eq!(left.request_ids, [1]);
    assert_eq!(mock.rows(), 1);
    client.clear_cache(None).await.unwrap();
    assert_eq!(mock.rows(), 0);
}

#[tokio::test]
async fn a_failed_step_names_shard_and_message() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let client = connect(&mock).await;
    mock.fail_next_step("out of luck");
    let requests = vec![request(0, 0, 9)];
    let error = client.prefill(Batch { id: 0, requests }).await.unwrap_err();
    let expected = ClientError::Shard {
        shard: 0,
        reason: "internal".to_owned(),
        message: "out of luck".to_owned(),
    };
    assert_eq!(error, expected);
    let unknown = CachedBatch {
        id: 7,
        request_ids: vec![],
        current_tokens: 0,
    };
    assert!(client.decode(vec![unknown], vec![]).await.is_err());
}

#[tokio::test]
async fn a_shard_that_does_not_answer_is_a_deadline_error() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let deadlines = Deadlines {
        step: Duration::from_millis(20),
        ..Deadlines::default()
    };
    let client = ShardedClient::connect_uds(&mock.path(), deadlines)
        .await
        .unwrap();
    mock.hold();
    let requests = vec![request(0, 0, 9)];
    let error = client.prefill(Batch { id: 0, requests }).await.unwrap_err();
    assert!(matches!(
        error,
        ClientError::Deadline {
            call: "Prefill",
            ..
        }
    ));
    client.health().await.unwrap();
}

#[tokio::test]
async fn a_missing_socket_is_a_connection_error() {
    let missing = Path::new("/nonexistent/shard-0");
    let error = ShardedClient::connect_uds(missing, Deadlines::default())
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Connection(_)));
}

#[tokio::test]
async fn limits_of_warmup_come_from_the_shards() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let client = connect(&mock).await;
    let limits = WarmupLimits {
        max_input_tokens: Some(100),
        max_total_tokens: None,
        max_batch_prefill_tokens: 4096,
        max_batch_total_tokens: None,
        max_batch_size: 8,
    };
    let limits = client.warmup(limits).await.unwrap();
    assert_eq!(limits.max_input_tokens, 100);
    assert_eq!(limits.max_total_tokens, 1024);
    assert_eq!(limits.max_batch_size, 8);
}
