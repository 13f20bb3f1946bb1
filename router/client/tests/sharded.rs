//! The client against mock shards over real sockets.

#![allow(clippy::unwrap_used, reason = "a helper of tests may panic as they do")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use text_generation_client::types::{
    AllowedTokens, Chunk, Grant, MaskWrite, NextTokenChooser, Request, RequestId, Row, SlotRange,
    StepMasks, StepPlan, StepReply, WarmupLimits,
};
use text_generation_client::{ClientError, Deadlines, ShardedClient};
use text_generation_mock_shard::{MockConfig, MockShard};

/// Three ids in row `id`, with four slots.
fn request(id: u32) -> Request {
    Request {
        id: RequestId(u64::from(id)),
        row: Row(id),
        input_ids: vec![10, 11, 12],
        num_generated: 0,
        cached_length: 0,
        slots: vec![SlotRange {
            start: 4 * id,
            length: 4,
        }],
        chooser: NextTokenChooser::GREEDY,
        top_n_tokens: 0,
        prefill_logprobs: true,
        media: Vec::new(),
        adapter: 0,
        max_new_tokens: 0,
    }
}

/// Admits `rows` and computes their prompts.
fn prefill(number: u64, rows: &[u32]) -> StepPlan {
    let chunk = |&row| Chunk {
        row: Row(row),
        first: 0,
        count: 3,
    };
    StepPlan {
        number,
        admit: rows.iter().map(|&row| request(row)).collect(),
        chunks: rows.iter().map(chunk).collect(),
        ..StepPlan::default()
    }
}

fn numbered(rows: &[u32]) -> Vec<Row> {
    rows.iter().copied().map(Row).collect()
}

fn decode(number: u64, rows: &[u32]) -> StepPlan {
    StepPlan {
        number,
        decode: numbered(rows),
        ..StepPlan::default()
    }
}

fn ids(reply: &StepReply) -> Vec<u32> {
    reply.tokens.iter().map(|token| token.id).collect()
}

async fn connect(mock: &MockShard) -> ShardedClient {
    ShardedClient::connect_uds(&mock.path(), Deadlines::default())
        .await
        .unwrap()
}

#[tokio::test]
async fn ranks_answer_as_one() {
    let mock = MockShard::start(MockConfig {
        world_size: 2,
        idle_time: Duration::from_micros(7),
        kernel_compilations: 3,
        ..MockConfig::default()
    })
    .unwrap();
    let client = connect(&mock).await;
    assert_eq!(client.info().await.unwrap().world_size, 2);

    let reply = client.step(prefill(0, &[0, 1])).await.unwrap();
    assert_eq!(
        (reply.rows.as_slice(), ids(&reply)),
        (&[Row(0), Row(1)][..], vec![15, 15])
    );
    let scores = &reply.prompt_scores[1];
    assert_eq!(
        (scores.row, scores.first, scores.logprobs.len()),
        (Row(1), 0, 2)
    );
    let plan = StepPlan {
        grants: vec![Grant {
            row: Row(0),
            slots: vec![SlotRange {
                start: 8,
                length: 1,
            }],
        }],
        ..decode(1, &[1, 0])
    };
    let reply = client.step(plan).await.unwrap();
    assert_eq!(reply.rows, [Row(1), Row(0)]);
    assert_eq!(reply.timings.idle, Duration::from_micros(7));
    assert_eq!(reply.timings.kernel_compilations, 3);
    // Row 1 has no slot for a fifth position.
    client.step(decode(2, &[0])).await.unwrap();
    assert_eq!(mock.violations(), Vec::<String>::new());
    assert_eq!((mock.rows(), mock.slots()), (2, 9));
}

#[tokio::test]
async fn ranks_that_choose_differently_are_found_out() {
    let turn = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let config = MockConfig {
        world_size: 2,
        tokens: Arc::new(move |_| turn.fetch_add(1, std::sync::atomic::Ordering::SeqCst)),
        ..MockConfig::default()
    };
    let mock = MockShard::start(config).unwrap();
    let client = connect(&mock).await;
    let error = client.step(prefill(0, &[0])).await.unwrap_err();
    let expected = ClientError::Disagreement {
        shard: 1,
        number: 0,
    };
    assert_eq!(error, expected);
}

#[tokio::test]
async fn plans_run_in_the_order_of_their_numbers() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let client = connect(&mock).await;
    // The later one is on its way first.
    let later = tokio::spawn(client.step(decode(1, &[0])));
    let first = client.step(prefill(0, &[0])).await.unwrap();
    let later = later.await.unwrap().unwrap();
    assert_eq!((first.number, later.number), (0, 1));
    assert_eq!((ids(&first), ids(&later)), (vec![15], vec![16]));
    assert_eq!(mock.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn filtering_and_clearing_free_rows() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let client = connect(&mock).await;
    client.step(prefill(0, &[0, 1, 2])).await.unwrap();
    let ids = [RequestId(1), RequestId(2)];
    assert_eq!(client.filter_batch(ids.to_vec()).await.unwrap(), ids);
    client.clear_cache(Some(ids[0])).await.unwrap();
    assert_eq!(mock.rows(), 1);
    client.clear_cache(None).await.unwrap();
    assert_eq!(mock.rows(), 0);
    // Numbers begin again.
    client.step(prefill(0, &[0])).await.unwrap();
}

#[tokio::test]
async fn a_failed_step_names_shard_and_message_and_later_ones_are_refused() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let client = connect(&mock).await;
    mock.fail_next_step("out of luck");
    let error = client.step(prefill(0, &[0])).await.unwrap_err();
    let expected = ClientError::Shard {
        shard: 0,
        reason: "internal".to_owned(),
        message: "out of luck".to_owned(),
    };
    assert_eq!(error, expected);
    assert!(client.step(decode(1, &[0])).await.is_err());
    client.clear_cache(None).await.unwrap();
    client.step(prefill(0, &[0])).await.unwrap();
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
    let error = client.step(prefill(0, &[0])).await.unwrap_err();
    let call = "Prefill";
    assert!(matches!(error, ClientError::Deadline { call: c, .. } if c == call));
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
        prefill_chunking: true,
        regained: false,
        overlapped_halves: false,
        media_rows: 0,
        max_media_pixels: 0,
        adapter_pages: 0,
        adapters_later: false,
    };
    let limits = client.warmup(limits).await.unwrap().limits;
    assert_eq!(limits.max_input_tokens, 100);
    assert_eq!(limits.max_total_tokens, 1024);
    assert_eq!(limits.max_batch_size, 8);
}

#[tokio::test]
async fn a_constrained_step_waits_for_its_masks_and_chooses_what_they_allow() {
    let mock = MockShard::start(MockConfig {
        world_size: 2,
        mask_wait: Duration::from_micros(5),
        ..MockConfig::default()
    })
    .unwrap();
    let client = connect(&mock).await;
    let constrained = |plan: StepPlan, rows: &[u32]| StepPlan {
        constrained: numbered(rows),
        ..plan
    };
    let only = |slot, ids: &[u32]| MaskWrite {
        slot,
        tokens: AllowedTokens::Only(ids.to_vec()),
    };
    let waiting = tokio::spawn(client.step(constrained(prefill(0, &[0, 1, 2]), &[2, 0])));
    let mut bits = vec![0; 64];
    bits[12] = 0b100;
    let masks = StepMasks {
        number: 0,
        writes: vec![
            only(1, &[7, 300]),
            MaskWrite {
                slot: 5,
                tokens: AllowedTokens::Bits(bits),
            },
        ],
        rows: vec![(Row(0), vec![1]), (Row(2), vec![5])],
    };
    client.constrain(masks).await.unwrap();
    let reply = waiting.await.unwrap().unwrap();
    assert_eq!(ids(&reply), [300, 15, 98]);
    assert_eq!(reply.timings.mask_wait, Duration::from_micros(5));
    // Slots keep their masks; these come before their plan.
    let masks = StepMasks {
        number: 1,
        writes: vec![MaskWrite {
            slot: 1,
            tokens: AllowedTokens::Except(vec![16, 17]),
        }],
        rows: vec![(Row(1), vec![1]), (Row(2), vec![5]), (Row(0), vec![0])],
    };
    client.constrain(masks).await.unwrap();
    let plan = constrained(decode(1, &[0, 1, 2]), &[0, 1, 2]);
    assert_eq!(ids(&client.step(plan).await.unwrap()), [16, 18, 98]);
    assert_eq!(mock.violations(), Vec::<String>::new());
}

#[tokio::test]
async fn a_mock_finds_masks_that_break_the_contract() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let client = connect(&mock).await;
    let masks = |number, writes: &[u32], rows: &[(u32, u32)]| StepMasks {
        number,
        writes: writes
            .iter()
            .map(|&slot| MaskWrite {
                slot,
                tokens: AllowedTokens::Only(vec![7]),
            })
            .collect(),
        rows: rows
            .iter()
            .map(|&(row, slot)| (Row(row), vec![slot]))
            .collect(),
    };
    client
        .constrain(masks(0, &[1, 64], &[(0, 1)]))
        .await
        .unwrap();
    // Step 0, which reads slot 1, has not run.
    client
        .constrain(masks(1, &[1], &[(0, 3), (1, 0)]))
        .await
        .unwrap();
    let plan = |plan| StepPlan {
        constrained: vec![Row(0)],
        ..plan
    };
    client.step(plan(prefill(0, &[0]))).await.unwrap();
    client.step(plan(decode(1, &[0]))).await.unwrap();
    client.constrain(masks(1, &[], &[])).await.unwrap();
    let expected = [
        "mask slot 64 of 64 is written",
        "mask slot 1 is written while a step in flight reads it",
        "step 1 constrains rows [0], and its masks are for [0, 1]",
        "mask slot 3 is read and was never written",
        "the masks of step 1 come again, or late",
    ];
    assert_eq!(mock.violations(), expected);
}

#[tokio::test]
async fn a_mock_with_states_finds_cached_positions() {
    let mock = MockShard::start(MockConfig {
        recurrent: true,
        media: None,
        ..MockConfig::default()
    })
    .unwrap();
    let client = connect(&mock).await;
    assert!(client.info().await.unwrap().recurrent);
    client.step(prefill(0, &[0])).await.unwrap();
    assert_eq!(mock.violations(), Vec::<String>::new());
    let behind_a_prefix = StepPlan {
        number: 1,
        admit: vec![Request {
            cached_length: 2,
            prefill_logprobs: false,
            ..request(1)
        }],
        ..StepPlan::default()
    };
    client.step(behind_a_prefix).await.unwrap();
    let expected = ["request 1 has 2 cached positions, whose state nobody keeps"];
    assert_eq!(mock.violations(), expected);
}

#[tokio::test]
async fn clearing_ends_the_wait_for_masks() {
    let mock = MockShard::start(MockConfig::default()).unwrap();
    let client = connect(&mock).await;
    let plan = StepPlan {
        constrained: vec![Row(0)],
        ..prefill(0, &[0])
    };
    let waiting = tokio::spawn(client.step(plan));
    // Its rows are there only when it has run, so nothing else tells that it waits.
    client.health().await.unwrap();
    while !waiting.is_finished() {
        client.clear_cache(None).await.unwrap();
    }
    assert!(waiting.await.unwrap().is_err());
    client.step(prefill(0, &[0])).await.unwrap();
}
