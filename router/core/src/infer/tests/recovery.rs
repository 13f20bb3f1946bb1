//! Shards that are lost and start again: requests go on with the tokens that they would have had.

use futures::future::join_all;
use text_generation_mock_shard::MockRow;

use super::grammars::{following, random, schema};
use super::*;

const STREAMS: u64 = 16;

/// Sampled tokens follow from the seed, greedy ones from the prompt; both from how many there are.
fn config(world_size: usize) -> MockConfig {
    let tokens = |row: &MockRow| match row.parameters.do_sample {
        true => 40 + (row.seed as u32 * 7 + row.generated * row.generated) % 250,
        false => 40 + (row.input_ids.iter().sum::<u32>() + row.generated) % 250,
    };
    MockConfig {
        world_size,
        overlapped_halves: world_size > 1,
        tokens: Arc::new(tokens),
        ..mock_config()
    }
}

/// Every other one samples; they differ in prompt and length.
fn asked(n: u64) -> GenerateRequest {
    let words = "once upon a time there was ".repeat(n as usize % 5 + 1);
    with(
        request(&format!("{n} {words}"), 20 + n as u32 % 9),
        |parameters| {
            parameters.do_sample = n.is_multiple_of(2);
            parameters.seed = Some(n);
        },
    )
}

pub(super) fn ids(answer: &GenerateAnswer) -> Vec<u32> {
    answer.tokens.iter().map(|token| token.id).collect()
}

/// What each is answered where nothing goes wrong.
async fn undisturbed(
    config: MockConfig,
    limits: BatchLimits,
    asked: impl Fn(u64) -> GenerateRequest,
) -> Vec<Vec<u32>> {
    let server = Server::start(config, limits, 64).await;
    let answers = join_all((0..STREAMS).map(|n| server.infer.generate(asked(n)))).await;
    answers
        .into_iter()
        .map(|answer| ids(&answer.unwrap()))
        .collect()
}

impl Server {
    /// Lets so many more steps of held shards run, and waits until they have.
    pub(super) async fn run_steps(&self, count: usize) {
        let before = self.mock.steps().len();
        self.mock.release(count);
        until("steps run", || self.mock.steps().len() >= before + count).await;
    }

    /// Lets time pass until a step has taken too long.
    async fn until_overdue(&self) {
        while !self.infer.0.batcher.status().recovering {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(1)).await;
            tokio::time::resume();
            tokio::task::yield_now().await;
        }
    }

    async fn until_recovering(&self) {
        until("the shards are lost", || {
            self.infer.0.batcher.status().recovering
        })
        .await;
    }

    pub(super) async fn until_recovered(&self, restarts: u64) {
        until("the shards serve again", || {
            let status = self.infer.0.batcher.status();
            !status.recovering && status.restarts >= restarts
        })
        .await;
    }
}

/// Their ids, those that a test has taken from the streams before left out.
pub(super) async fn rest(streams: Vec<GenerateStream>) -> Vec<Vec<u32>> {
    let answers = join_all(streams.into_iter().map(GenerateStream::gather)).await;
    answers
        .into_iter()
        .map(|answer| ids(&answer.unwrap()))
        .collect()
}

#[tokio::test]
async fn every_stream_goes_on_with_the_tokens_that_it_would_have_had() {
    // Among the first prompts, among the last, and twice while all decode.
    for (world_size, kills) in [(1, [&[1][..], &[3]]), (2, [&[2][..], &[9, 8]])] {
        let expected = undisturbed(config(world_size), batch_limits(), asked).await;
        for kills in kills {
            let server = Server::start(config(world_size), batch_limits(), 64).await;
            server.mock.hold();
            let streams = server.streams((0..STREAMS).map(asked)).await;
            for (restarts, &steps) in (1..).zip(kills) {
                server.run_steps(steps).await;
                server.mock.kill();
                server.until_recovered(restarts).await;
            }
            server.mock.resume();
            assert_eq!(
                rest(streams).await,
                expected,
                "killed after {kills:?} steps"
            );
            server.assert_clean(64).await;
            let warmups = server.mock.warmups();
            assert_eq!(warmups.len(), kills.len());
            for asked in warmups {
                let slots = asked.max_batch_total_tokens;
                assert_eq!((slots, asked.max_batch_size), (Some(16_384), 64));
                assert!(asked.regained);
                assert_eq!(asked.overlapped_halves, world_size > 1);
                let tokens = (asked.max_input_tokens, asked.max_total_tokens);
                assert_eq!(tokens, (Some(1000), Some(2000)));
            }
        }
    }
}

#[tokio::test]
async fn what_was_in_the_cache_of_lost_shards_does_not_count_as_cached() {
    let server = Server::start(config(1), batch_limits(), 64).await;
    let first = server.infer.generate(asked(1)).await.unwrap();
    let again = server.infer.generate(asked(1)).await.unwrap();
    assert_eq!(first.cached_tokens, 0);
    assert!(again.cached_tokens > 0);
    server.mock.hold();
    let stream = server.infer.generate_stream(asked(1)).await.unwrap();
    until("it runs", || server.infer.snapshot().running == 1).await;
    server.mock.kill();
    server.until_recovered(1).await;
    server.mock.resume();
    let answer = stream.gather().await.unwrap();
    assert_eq!(answer.cached_tokens, 0);
    assert_eq!(ids(&answer), ids(&first));
    server.assert_clean(64).await;
}

#[tokio::test]
async fn streams_with_states_are_computed_from_the_first_token_on() {
    let expected = undisturbed(config(1), batch_limits(), asked).await;
    let (config, limits) = with_states(config(1));
    let server = Server::start(config, limits, 64).await;
    server.mock.hold();
    let streams = server.streams((0..STREAMS).map(asked)).await;
    server.run_steps(9).await;
    server.mock.kill();
    server.until_recovered(1).await;
    server.mock.resume();
    assert_eq!(rest(streams).await, expected);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn shards_that_hang_are_found_by_the_deadline_of_their_step() {
    let expected = undisturbed(config(2), batch_limits(), asked).await;
    let server = Server::start(config(2), batch_limits(), 64).await;
    server.mock.hold();
    let streams = server.streams((0..STREAMS).map(asked)).await;
    server.run_steps(4).await;
    server.mock.hang();
    let (hung, limit) = (tokio::time::Instant::now(), STEP_TIMEOUT.as_secs());
    server.until_overdue().await;
    let waited = hung.elapsed().as_secs();
    assert!((limit..limit + 10).contains(&waited), "{waited} s");
    assert_eq!(server.infer.health().await, Health::Recovering);
    server.mock.restart().unwrap();
    server.mock.resume();
    assert_eq!(rest(streams).await, expected);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn a_step_that_hangs_alone_is_ended_by_word() {
    let server = Server::start(config(2), batch_limits(), 64).await;
    server.mock.hold();
    let streams = server.streams((0..STREAMS).map(asked)).await;
    server.run_steps(4).await;
    server.until_overdue().await;
    // The ranks listen, so they are told to end, and nobody else has to.
    server.until_recovered(1).await;
    server.mock.resume();
    let expected = undisturbed(config(2), batch_limits(), asked).await;
    assert_eq!(rest(streams).await, expected);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn a_loss_while_shards_start_again_is_one_more_wait() {
    let expected = undisturbed(config(1), batch_limits(), asked).await;
    let config = MockConfig {
        restarts: false,
        ..config(1)
    };
    let server = Server::start(config, batch_limits(), 64).await;
    server.mock.hold();
    let streams = server.streams((0..STREAMS).map(asked)).await;
    server.run_steps(9).await;
    server.mock.kill();
    server.until_recovering().await;
    // This start is gone before anybody could see it, the next one while or just after it warms up.
    server.mock.restart().unwrap();
    server.mock.kill();
    server.mock.restart().unwrap();
    until("they warm up", || server.mock.warmups().len() == 1).await;
    server.mock.kill();
    server.until_recovering().await;
    server.mock.restart().unwrap();
    server.mock.resume();
    assert_eq!(rest(streams).await, expected);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn groups_without_names_are_told_apart_by_their_warmup() {
    let config = MockConfig {
        named: false,
        ..config(2)
    };
    let expected = undisturbed(config.clone(), batch_limits(), asked).await;
    let server = Server::start(config, batch_limits(), 64).await;
    server.mock.hold();
    let streams = server.streams((0..STREAMS).map(asked)).await;
    server.run_steps(5).await;
    server.mock.kill();
    server.until_recovered(1).await;
    server.mock.resume();
    assert_eq!(rest(streams).await, expected);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn a_grammar_is_followed_from_where_it_was() {
    let asked = |n| match n % 3 {
        0 => asked(n),
        _ => following(schema(), 40, n),
    };
    let config = || MockConfig {
        world_size: 2,
        ..random()
    };
    let expected = undisturbed(config(), batch_limits(), asked).await;
    for kills in [&[2][..], &[4], &[7, 6]] {
        let server = Server::start(config(), batch_limits(), 64).await;
        server.mock.hold();
        let streams = server.streams((0..STREAMS).map(asked)).await;
        for (restarts, &steps) in (1..).zip(kills) {
            server.run_steps(steps).await;
            server.mock.kill();
            server.until_recovered(restarts).await;
        }
        server.mock.resume();
        assert_eq!(
            rest(streams).await,
            expected,
            "killed after {kills:?} steps"
        );
        server.assert_clean(64).await;
    }
}

#[tokio::test]
async fn who_pauses_when_the_shards_are_lost_goes_on_too() {
    let limits = BatchLimits {
        max_batch_total_tokens: 600,
        ..batch_limits()
    };
    let expected = undisturbed(config(1), limits, asked).await;
    for steps in [4, 12, 25] {
        let server = Server::start(config(1), limits, 64).await;
        server.mock.hold();
        let streams = server.streams((0..STREAMS).map(asked)).await;
        server.run_steps(steps).await;
        server.mock.kill();
        server.mock.resume();
        assert_eq!(rest(streams).await, expected, "{steps} steps");
        server.assert_clean(64).await;
    }
}

#[tokio::test]
async fn a_prompt_half_way_is_scored_again_for_all_its_samples() {
    let limits = BatchLimits {
        max_batch_prefill_tokens: 8,
        ..batch_limits()
    };
    let asked = || {
        let asked = with(asked(4), |parameters| {
            parameters.decoder_input_details = true
        });
        group(asked, 3)
    };
    let gather = async |streams: Vec<GenerateStream>| {
        let answers = join_all(streams.into_iter().map(GenerateStream::gather)).await;
        let answers = answers.into_iter().map(Result::unwrap);
        answers
            .map(|answer| (ids(&answer), format!("{:?}", answer.prefill)))
            .collect::<Vec<_>>()
    };
    let server = Server::start(config(1), limits, 8).await;
    let expected = gather(server.infer.generate_group(asked()).await.unwrap()).await;
    server.mock.hold();
    let streams = server.infer.generate_group(asked()).await.unwrap();
    server.run_steps(2).await;
    server.mock.kill();
    server.mock.resume();
    assert_eq!(gather(streams).await, expected);
    server.assert_clean(8).await;
}

/// A row of the prompt with this token ends the shards when it has so many tokens.
fn poisonous(token: u32, generated: u32) -> MockConfig {
    MockConfig {
        fatal: Arc::new(move |row| row.input_ids.contains(&token) && row.generated == generated),
        ..config(2)
    }
}

fn poison() -> GenerateRequest {
    let mut poison = request("", 20);
    poison.inputs = Inputs::Ids(vec![70, 310, 71]);
    poison
}

#[tokio::test]
async fn a_prompt_that_kills_twice_is_ended_and_harms_nobody() {
    let expected = undisturbed(config(2), batch_limits(), asked).await;
    let server = Server::start(poisonous(310, 0), batch_limits(), 64).await;
    server.mock.hold();
    let mut streams = server.streams((0..STREAMS).map(asked)).await;
    let poison = server.infer.generate_stream(poison()).await.unwrap();
    let later = server.infer.generate_stream(asked(0)).await.unwrap();
    streams.push(later);
    server.mock.resume();
    let error = poison.gather().await.unwrap_err();
    assert_eq!(error, InferError::ShardLost);
    let answers = rest(streams).await;
    assert_eq!(answers[..STREAMS as usize], expected);
    assert_eq!(answers[STREAMS as usize], expected[0]);
    assert_eq!(server.mock.starts(), 3);
    server.assert_clean(64).await;
}

#[tokio::test]
async fn a_request_that_kills_while_it_decodes_is_found_as_well() {
    let alone = Server::start(poisonous(310, 5), batch_limits(), 64).await;
    let error = alone.infer.generate(poison()).await.unwrap_err();
    assert_eq!((error, alone.mock.starts()), (InferError::ShardLost, 3));
    alone.assert_clean(64).await;

    let expected = undisturbed(config(2), batch_limits(), asked).await;
    let server = Server::start(poisonous(310, 5), batch_limits(), 64).await;
    server.mock.hold();
    let streams = server.streams((0..STREAMS).map(asked)).await;
    let poison = server.infer.generate_stream(poison()).await.unwrap();
    server.mock.resume();
    assert_eq!(poison.gather().await.unwrap_err(), InferError::ShardLost);
    assert_eq!(rest(streams).await, expected);
    // One more, for nobody could be told from the others at first.
    assert_eq!(server.mock.starts(), 4);
    server.assert_clean(64).await;
}

/// A server of two places whose shards are gone and do not come back by themselves, and a request that ran.
async fn lost_with_a_stream() -> (Server, GenerateStream) {
    let config = MockConfig {
        restarts: false,
        ..config(1)
    };
    let server = Server::start(config, batch_limits(), 2).await;
    server.mock.hold();
    let stream = server.infer.generate_stream(asked(1)).await.unwrap();
    server.until_running(1).await;
    server.mock.kill();
    server.until_recovering().await;
    (server, stream)
}

#[tokio::test]
async fn clients_come_and_go_while_the_shards_start() {
    let (server, gone) = lost_with_a_stream().await;
    assert_eq!(server.infer.health().await, Health::Recovering);
    let new = server.infer.generate_stream(asked(2)).await.unwrap();
    let refused = server.infer.generate_stream(asked(3)).await;
    assert_eq!(refused.unwrap_err(), overloaded(2));
    until("both wait", || server.infer.snapshot().queued == 2).await;
    drop(gone);
    until("one waits", || server.infer.snapshot().queued == 1).await;
    server.mock.resume();
    server.mock.restart().unwrap();
    assert_eq!(ids(&new.gather().await.unwrap()).len(), 22);
    server.assert_clean(2).await;
}

#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_lost_shards() {
    let (server, stream) = lost_with_a_stream().await;
    server.infer.shutdown();
    server.infer.cut();
    assert_eq!(stream.gather().await.unwrap_err(), InferError::ShuttingDown);
    server.infer.drained().await;
}

#[tokio::test]
async fn shards_that_are_lost_while_nothing_runs_are_found_by_a_probe() {
    let server = Server::start(config(2), batch_limits(), 2).await;
    let expected = ids(&server.infer.generate(asked(1)).await.unwrap());
    server.mock.kill();
    assert_ne!(server.infer.health().await, Health::Healthy);
    server.until_recovered(1).await;
    let answer = server.infer.generate(asked(1)).await.unwrap();
    assert_eq!((ids(&answer), server.mock.starts()), (expected, 2));
    server.assert_clean(2).await;
}

#[tokio::test]
async fn shards_that_started_again_unseen_are_found_by_the_next_request() {
    let expected = undisturbed(config(1), batch_limits(), asked).await;
    let server = Server::start(config(1), batch_limits(), 64).await;
    let client = &server.infer.0.client;
    server.infer.generate(asked(1)).await.unwrap();
    // The answer to the last plan, which drops the request, comes before that of Health.
    server.assert_clean(64).await;
    client.health().await.unwrap();
    server.mock.kill();
    while client.group().await != Ok(Some("start 1".to_owned())) {}
    // The connections are new; the number of the next plan follows those of the group that was lost.
    let status = server.infer.0.batcher.status();
    assert_eq!((status.recovering, status.restarts), (false, 0));
    let streams = server.streams((0..STREAMS).map(asked)).await;
    assert_eq!(rest(streams).await, expected);
    assert_eq!((server.mock.starts(), server.mock.warmups().len()), (2, 1));
    server.assert_clean(64).await;
}
