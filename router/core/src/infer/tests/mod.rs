//! `Infer` and the batcher against a mock shard over a real Unix socket.

mod adapters;
mod beams;
mod constrained_windows;
mod continued;
mod ends;
mod faults;
mod grammars;
mod groups;
mod healing;
mod images;
mod load;
mod metering;
mod predictions;
mod prefixes;
mod recovery;
mod scheduling;
mod tenants;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use text_generation_client::{Deadlines, ShardedClient};
use text_generation_grammar::GrammarSource;
use text_generation_mock_shard::{MockConfig, MockShard, MockStep};

use super::*;
use crate::adapters::{AdapterRules, NamedAdapter};
use crate::error::Overload;
use crate::policy::WaitingServedRatio;
use crate::policy::cost::StepCost;
use crate::policy::windows::Windows;
use crate::test_tokenizers::{byte_level, byte_level_with_images};
use crate::tokenize::TokenizerPool;
use crate::types::{Dialect, FinishReason, Inputs, RequestInstants, StreamEvent};

const VOCAB: u32 = 320;
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

fn mock_eos() -> Vec<u32> {
    vec![0]
}

/// Byte-level tokens of a text; `<|end|>`, which has id 0, ends a generation.
fn mock_config() -> MockConfig {
    MockConfig {
        vocab_size: VOCAB,
        eos_token_ids: mock_eos(),
        ..MockConfig::default()
    }
}

/// Every request generates this text, over and over.
fn repeating(text: &str) -> MockConfig {
    let ids = byte_level().encode(text, false).unwrap();
    MockConfig {
        tokens: Arc::new(move |row| ids[row.generated as usize % ids.len()]),
        ..mock_config()
    }
}

fn batch_limits() -> BatchLimits {
    BatchLimits {
        waiting_served_ratio: WaitingServedRatio::Fixed(0.3),
        max_waiting_tokens: 20,
        max_batch_prefill_tokens: 1024,
        max_batch_total_tokens: 16_384,
        max_batch_size: 64,
        max_queue_time: None,
        prefill_chunking: true,
        max_token_gap: None,
        prefix_caching: true,
    }
}

/// A model whose layers keep a state, and what the batcher keeps to with it.
fn with_states(config: MockConfig) -> (MockConfig, BatchLimits) {
    let config = MockConfig {
        recurrent: true,
        ..config
    };
    let limits = BatchLimits {
        prefix_caching: false,
        ..batch_limits()
    };
    (config, limits)
}

/// Of each step: how many prompts it computes a part of, and how many requests decode.
fn sizes(steps: &[MockStep]) -> Vec<(usize, usize)> {
    let size = |step: &MockStep| (step.chunks, step.decodes);
    steps.iter().map(size).collect()
}

/// Shards, and what the operator says of adapters.
struct Setup {
    config: MockConfig,
    adapters: Vec<NamedAdapter>,
    rules: AdapterRules,
    /// Of earlier answers that are kept.
    answer_bytes: usize,
}

impl From<MockConfig> for Setup {
    fn from(config: MockConfig) -> Self {
        Self {
            config,
            adapters: Vec::new(),
            rules: AdapterRules::default(),
            answer_bytes: 0,
        }
    }
}

struct Server {
    mock: MockShard,
    infer: Infer,
}

impl Server {
    /// The streams of these requests, which are sent one after another.
    async fn streams(
        &self,
        requests: impl IntoIterator<Item = GenerateRequest>,
    ) -> Vec<GenerateStream> {
        let mut streams = Vec::new();
        for request in requests {
            streams.push(self.infer.generate_stream(request).await.unwrap());
        }
        streams
    }

    async fn start(setup: impl Into<Setup>, limits: BatchLimits, permits: usize) -> Self {
        let unknown = StepCost::new(&[], &[], 0.0, 0.0, &[]);
        Self::costing(unknown, setup, limits, permits).await
    }

    /// Its steps are expected to take what `cost` says.
    async fn costing(
        cost: StepCost,
        setup: impl Into<Setup>,
        limits: BatchLimits,
        permits: usize,
    ) -> Self {
        let Setup {
            config,
            adapters,
            rules,
            answer_bytes,
        } = setup.into();
        let config = MockConfig {
            max_batch_total_tokens: limits.max_batch_total_tokens,
            ..config
        };
        let (client_masks, client_halves) = (config.max_masks, config.overlapped_halves);
        let (vocab_size, media) = (config.vocab_size, images::media(&config));
        let windows = Windows::new(&config.widths, 512);
        let mock = MockShard::start(config).unwrap();
        let path = mock.path();
        let client = ShardedClient::connect_uds(&path, Deadlines::default());
        let client = client.await.unwrap();
        let adapters = Adapters::start(&client, &rules, &adapters).await.unwrap();
        let tokenizer = match media {
            Some(_) => byte_level_with_images(),
            None => byte_level(),
        };
        let vision = media
            .as_ref()
            .map(|media| images::vision(&tokenizer, media.rows));
        let pool = TokenizerPool::new(tokenizer, 1).unwrap();
        let validation = ValidationLimits {
            max_best_of: 4,
            max_beam_width: 8,
            max_stop_sequences: 4,
            max_top_n_tokens: 5,
            max_logprobs: 20,
            max_input_tokens: 1000,
            max_total_tokens: 2000,
            vocab_size,
            prefill_logprobs: true,
            grammar_support: true,
        };
        let mut validator = Validator::new(pool, validation).with_adapters(adapters.clone());
        if let Some(vision) = vision {
            validator = validator.with_vision(vision);
        }
        let shards = Shards {
            kv_cache_dtype: "float32".to_owned(),
            client,
            cost,
            windows,
            answer_bytes,
            eos_token_ids: mock_eos(),
            max_masks: client_masks,
            overlapped_halves: client_halves,
            step_timeout: STEP_TIMEOUT,
            kv_events: None,
            media,
            adapters,
        };
        let infer = Infer::new(validator, shards, limits, permits);
        Self { mock, infer }
    }

    async fn default() -> Self {
        Self::start(mock_config(), batch_limits(), 128).await
    }

    /// Nothing runs, waits or is held any more, here and in the shard, and the contract was kept.
    async fn assert_clean(&self, permits: usize) {
        let empty = Gauges {
            queued: 0,
            running: 0,
            slots_used: 0,
            slots_total: self.infer.snapshot().slots_total,
            permits_available: permits,
        };
        until("everything is given back", || {
            self.infer.snapshot() == empty
                && self.mock.rows() == 0
                && self.mock.slots() == 0
                && self.mock.waiting_images() == 0
        })
        .await;
        assert_eq!(self.mock.violations(), Vec::<String>::new());
    }

    async fn until_running(&self, count: usize) {
        until("requests run", || self.infer.snapshot().running == count).await;
    }
}

/// What a server says that has so many places and not enough of them free.
fn overloaded(max: u32) -> InferError {
    InferError::Overloaded(Overload::Requests { max })
}

/// Waits for a condition that other tasks bring about.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
    assert!(waited.is_ok(), "{what}: not within a minute");
}

/// What is given, or a failed test where it takes so long that it hangs.
async fn within_a_minute<T>(future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(Duration::from_secs(60), future).await;
    result.expect("it hangs")
}

impl Infer {
    /// Runs a request to its end.
    async fn generate(&self, request: GenerateRequest) -> Result<GenerateAnswer, InferError> {
        let streams = self.generate_group(group(request, 1)).await?;
        Ok(gather_best(streams).await?.0)
    }
}

fn request(inputs: &str, max_new_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        inputs: inputs.into(),
        parameters: GenerateParameters {
            max_new_tokens: Some(max_new_tokens),
            ..GenerateParameters::default()
        },
        add_special_tokens: true,
        dialect: Dialect::Tgi,
        images: Vec::new(),
    }
}

/// So many samples of one prompt.
fn group(request: GenerateRequest, samples: u32) -> Group {
    Group { request, samples }
}

fn with(request: GenerateRequest, change: impl FnOnce(&mut GenerateParameters)) -> GenerateRequest {
    let mut request = request;
    change(&mut request.parameters);
    request
}

/// The next event, which must be a token that is not the last.
async fn next_token(stream: &mut GenerateStream) -> String {
    match stream.next().await {
        Some(Ok(StreamEvent::Token { token, .. })) => token.text,
        other => panic!("a token, not {other:?}"),
    }
}

#[tokio::test]
async fn an_answer_has_text_tokens_and_counts() {
    let server = Server::start(repeating("the quick brown fox "), batch_limits(), 2).await;
    let answer = server
        .infer
        .generate(request("once upon", 6))
        .await
        .unwrap();
    let texts: String = answer.tokens.iter().map(|t| t.text.as_str()).collect();
    assert_eq!(answer.generated.text, texts);
    assert!("the quick brown fox the quick".starts_with(&texts));
    assert_eq!(answer.generated.generated_tokens, 6);
    assert_eq!(answer.generated.finish_reason, FinishReason::Length);
    assert_eq!(answer.generated.seed, None);
    let prompt = byte_level().encode("once upon", true).unwrap();
    assert_eq!(answer.input_length as usize, prompt.len());
    let RequestInstants {
        received,
        queued,
        started,
    } = answer.instants;
    assert!(received <= queued && queued <= started && started <= answer.finished);
    server.assert_clean(2).await;
}

#[tokio::test]
async fn a_stream_ends_with_its_last_token_and_nothing_follows() {
    let server = Server::default().await;
    let stream = server.infer.generate_stream(request("once", 3)).await;
    let events: Vec<_> = stream.unwrap().collect().await;
    let kinds: Vec<_> = events
        .iter()
        .map(|event| match event {
            Ok(StreamEvent::Token { .. }) => "token",
            Ok(StreamEvent::End { generated, .. }) if generated.generated_tokens == 3 => "end",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["token", "token", "end"]);
}

#[tokio::test]
async fn details_of_prompt_and_alternatives_are_passed_on() {
    let server = Server::default().await;
    let request = with(request("once upon a time", 2), |parameters| {
        parameters.decoder_input_details = true;
        parameters.top_n_tokens = Some(3);
        parameters.do_sample = true;
        parameters.seed = Some(7);
    });
    let answer = server.infer.generate(request).await.unwrap();
    let logprobs: Vec<_> = answer.prefill.iter().map(|token| token.logprob).collect();
    assert_eq!(logprobs.len(), answer.input_length as usize);
    assert_eq!(logprobs[..2], [None, Some(-1.0)]);
    let tops: Vec<usize> = answer.top_tokens.iter().map(Vec::len).collect();
    assert_eq!(tops, [3, 3]);
    assert_eq!(answer.generated.seed, Some(7));
}

#[tokio::test]
async fn an_end_of_sequence_token_ends_the_text() {
    let config = MockConfig {
        tokens: Arc::new(|row| if row.generated < 2 { 70 } else { 0 }),
        ..mock_config()
    };
    let server = Server::start(config, batch_limits(), 1).await;
    // Also as the last permitted token.
    for max_new_tokens in [3, 10] {
        let answer = server.infer.generate(request("once", max_new_tokens)).await;
        let answer = answer.unwrap();
        assert_eq!(answer.generated.finish_reason, FinishReason::EosToken);
        assert_eq!(answer.generated.generated_tokens, 3);
        assert!(answer.tokens[2].special && !answer.generated.text.contains("<|end|>"));
    }
    server.assert_clean(1).await;
}

#[tokio::test]
async fn a_stop_string_ends_the_request_and_frees_its_row() {
    let server = Server::start(repeating("there was a girl who "), batch_limits(), 1).await;
    let request = with(request("once", 1000), |p| p.stop = vec!["a gi".to_owned()]);
    server.mock.hold();
    let infer = server.infer.clone();
    let answer = tokio::spawn(async move { infer.generate(request).await });
    // The shard stops only because it is told to: far more steps are allowed.
    server.mock.release(900);
    let answer = answer.await.unwrap().unwrap();
    assert_eq!(answer.generated.finish_reason, FinishReason::StopSequence);
    assert_eq!(answer.generated.text, "there was a gi");
    assert_eq!(
        answer.tokens.len() as u32,
        answer.generated.generated_tokens
    );
    server.assert_clean(1).await;
    let steps = server.mock.steps().len() as u32;
    assert!(steps < 900, "{steps} steps");
}

#[tokio::test]
async fn a_stop_string_in_the_last_permitted_token_is_reported() {
    let server = Server::start(repeating("abc"), batch_limits(), 1).await;
    let tokens = byte_level().encode("abc", false).unwrap().len() as u32;
    let request = with(request("once", tokens), |p| p.stop = vec!["c".to_owned()]);
    let answer = server.infer.generate(request).await.unwrap();
    assert_eq!(answer.generated.finish_reason, FinishReason::StopSequence);
    server.assert_clean(1).await;
}

#[tokio::test]
async fn ranks_share_the_requests() {
    let config = MockConfig {
        world_size: 3,
        ..mock_config()
    };
    let server = Server::start(config, batch_limits(), 8).await;
    let answers = (0..8).map(|n| server.infer.generate(request("once", 5 + n)));
    let answers = futures::future::join_all(answers).await;
    for (n, answer) in (0..).zip(answers) {
        assert_eq!(answer.unwrap().generated.generated_tokens, 5 + n);
    }
    server.assert_clean(8).await;
}

#[tokio::test]
async fn best_of_returns_all_samples_and_holds_a_permit_for_each() {
    let server = Server::start(mock_config(), batch_limits(), 3).await;
    let sampled = with(request("once", 4), |parameters| {
        parameters.do_sample = true;
        parameters.best_of = Some(3);
    });
    let sampled = Group::one_or_best_of(sampled);
    let streams = server.infer.generate_group(sampled.clone()).await.unwrap();
    let (best, others) = gather_best(streams).await.unwrap();
    let mut seeds = vec![best.generated.seed];
    seeds.extend(others.iter().map(|answer| answer.generated.seed));
    seeds.dedup();
    assert_eq!(seeds.len(), 3, "every sample has its own seed");
    let other = server.infer.generate_stream(request("once", 4)).await;
    let refused = server.infer.generate_group(sampled).await;
    assert_eq!(refused.unwrap_err(), overloaded(3));
    drop(other);
    server.assert_clean(3).await;
}

#[tokio::test]
async fn text_becomes_tokens_and_tokens_text() {
    let server = Server::default().await;
    let tokens = server.infer.tokenize("Hello 你".to_owned(), true).await;
    let tokens = tokens.unwrap();
    let ids: Vec<u32> = tokens
        .tokens(0, tokens.len())
        .map(|token| token.id)
        .collect();
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|&id| server.infer.token_bytes(id))
        .copied()
        .collect();
    assert_eq!(bytes, "Hello 你".as_bytes());
    let marked = [&ids[..], &[0]].concat();
    let text = async |skip| server.infer.detokenize(marked.clone(), skip).await.unwrap();
    assert_eq!(text(true).await, "Hello 你");
    assert_eq!(text(false).await, "Hello 你<|end|>");
    let unknown = server.infer.detokenize(vec![1, VOCAB], true).await;
    let message = unknown.unwrap_err().to_string();
    assert!(
        message.contains("`ids` contains the token id 320"),
        "{message}"
    );
}

#[tokio::test]
async fn a_prompt_of_ids_is_taken_as_it_is() {
    let config = MockConfig {
        tokens: Arc::new(|row| row.input_ids[row.generated as usize]),
        ..mock_config()
    };
    let server = Server::start(config, batch_limits(), 1).await;
    let mut request = request("", 3);
    request.inputs = Inputs::Ids(vec![70, 71, 72]);
    let answer = server.infer.generate(request).await.unwrap();
    let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
    assert_eq!(
        (ids.as_slice(), answer.input_length),
        (&[70, 71, 72][..], 3)
    );
}

#[tokio::test]
async fn sampling_parameters_reach_the_shards() {
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let rows = seen.clone();
    let config = MockConfig {
        tokens: Arc::new(move |row| {
            rows.lock().unwrap().push(row.parameters.clone());
            // A shard chooses no end of text before `min_new_tokens`.
            0
        }),
        ..mock_config()
    };
    let server = Server::start(config, batch_limits(), 1).await;
    let mut request = with(request("once", 9), |p| {
        (p.presence_penalty, p.min_p, p.min_new_tokens) = (Some(0.5), Some(0.1), Some(4));
        p.logit_bias = Some([(7, -100.0), (9, 2.0)].into());
    });
    request.dialect = Dialect::OpenAi;
    let answer = server.infer.generate(request.clone()).await.unwrap();
    assert_eq!(answer.generated.generated_tokens, 5);
    request.parameters.ignore_eos = true;
    let answer = server.infer.generate(request).await.unwrap();
    assert_eq!(answer.generated.finish_reason, FinishReason::Length);
    let parameters = seen.lock().unwrap().pop().unwrap();
    assert_eq!((parameters.presence_penalty, parameters.min_p), (0.5, 0.1));
    assert!(parameters.penalize_output_only && parameters.do_sample);
    let bias: Vec<_> = parameters
        .logit_bias
        .iter()
        .map(|b| (b.id, b.bias))
        .collect();
    assert_eq!(bias, [(7, -100.0), (9, 2.0)]);
}

#[tokio::test]
async fn a_stop_string_is_not_in_an_openai_text() {
    let server = Server::start(repeating("there was a girl who "), batch_limits(), 1).await;
    let mut request = with(request("once", 1000), |p| p.stop = vec!["a gi".to_owned()]);
    request.dialect = Dialect::OpenAi;
    let answer = server.infer.generate(request.clone()).await.unwrap();
    let streamed: String = answer.tokens.iter().map(|t| t.text.as_str()).collect();
    assert_eq!(answer.generated.text, "there was ");
    assert_eq!(streamed, answer.generated.text);
    // What waited at the end comes with the last token.
    request.parameters.stop = vec!["there was a girl who never".to_owned()];
    request.parameters.max_new_tokens = Some(12);
    let answer = server.infer.generate(request).await.unwrap();
    let (last, before) = answer.tokens.split_last().unwrap();
    assert!(before.iter().all(|token| token.text.is_empty()));
    assert_eq!(last.text, answer.generated.text);
    assert!(!last.text.is_empty());
    server.assert_clean(1).await;
}
