//! A router's core and its shards in one runtime whose clock stands still while anybody has something to do.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use text_generation_client::{Deadlines, ShardedClient};
use text_generation_core::adapters::Adapters;
use text_generation_core::infer::{Infer, Shards};
use text_generation_core::policy::cost::StepCost;
use text_generation_core::policy::windows::Windows;
use text_generation_core::policy::{BatchLimits, WaitingServedRatio};
use text_generation_core::tokenize::{TextTokenizer, TokenizerPool};
use text_generation_core::types::ValidationLimits;
use text_generation_core::validation::Validator;
use text_generation_mock_shard::{MockConfig, MockShard, MockStep};
use tokio::time::{sleep, timeout};

use super::model::{self, END, VOCAB};
use super::pictures::Encoder;

/// A step takes so long, and so much more for each of its tokens. Timers count in milliseconds.
const STEP: Duration = Duration::from_millis(40);
const TOKEN: Duration = Duration::from_micros(500);

/// A reply reaches the router so long after its step.
const REPLY: Duration = Duration::from_millis(3);

/// So long after they were lost the shards are there again.
const RESTART: Duration = Duration::from_secs(1);

/// How long a step may take before the shards count as lost.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// So long nothing may be left behind at the most.
const SETTLED: Duration = Duration::from_secs(120);

/// What a step of so many tokens takes.
pub fn step_time(tokens: u32) -> Duration {
    STEP + TOKEN * tokens
}

#[derive(Debug, Clone)]
pub struct Setup {
    pub limits: BatchLimits,
    pub ranks: usize,
    pub permits: usize,
    /// An encoder of images.
    pub encoder: Option<Encoder>,
    /// Of windows of drafted tokens; empty: there is no speculation.
    pub widths: Vec<u32>,
    /// Of earlier answers, from which later ones are drafted.
    pub answer_bytes: usize,
}

impl Setup {
    /// Room for everybody.
    pub fn spacious() -> Self {
        Self {
            limits: BatchLimits {
                waiting_served_ratio: WaitingServedRatio::Fixed(0.3),
                max_waiting_tokens: 20,
                max_batch_prefill_tokens: 256,
                max_batch_total_tokens: 16_384,
                max_batch_size: 32,
                max_queue_time: None,
                prefill_chunking: true,
                max_token_gap: None,
                prefix_caching: true,
            },
            ranks: 1,
            permits: 100_000,
            encoder: None,
            widths: Vec::new(),
            answer_bytes: 0,
        }
    }
}

pub struct Server {
    pub mock: MockShard,
    pub infer: Infer,
    permits: usize,
}

impl Server {
    /// Starts on the current runtime.
    pub fn start(setup: &Setup) -> Self {
        let encoder = setup.encoder;
        let mock = MockShard::start_in_process(MockConfig {
            world_size: setup.ranks,
            vocab_size: VOCAB + 1,
            eos_token_ids: vec![END],
            // Where nothing is cached the layers may keep a state.
            recurrent: !setup.limits.prefix_caching,
            max_batch_total_tokens: setup.limits.max_batch_total_tokens,
            step_time: Arc::new(move |step: &MockStep| {
                let layers = encoder.map_or(Duration::ZERO, |encoder| encoder.layer * step.layers);
                step_time(step.chunk_tokens + step.decodes as u32) + layers
            }),
            media: encoder.map(|encoder| encoder.mock()),
            media_rows: encoder.map_or(0, |encoder| encoder.rows),
            media_cost: encoder.map(|encoder| encoder.mock_cost()),
            reply_time: REPLY,
            tokens: Arc::new(model::choose),
            restart_time: RESTART,
            fatal: Arc::new(model::is_poison),
            widths: setup.widths.clone(),
            drafts: Arc::new(model::right_drafts),
            ..MockConfig::default()
        })
        .unwrap();
        let client = ShardedClient::from_channels(mock.channels(), Deadlines::default());
        let ms = |tokens| step_time(tokens).as_secs_f32() * 1e3;
        let shards = Shards {
            kv_cache_dtype: "float32".to_owned(),
            client: client.unwrap(),
            cost: StepCost::new(&[1, 4096], &[ms(1), ms(4096)], 0.0, 0.0, &[]),
            windows: Windows::new(&setup.widths, 512),
            answer_bytes: setup.answer_bytes,
            eos_token_ids: vec![END],
            // Grammars are followed by threads, which have a clock of their own.
            max_masks: 0,
            overlapped_halves: false,
            step_timeout: DEADLINE,
            kv_events: None,
            media: encoder.map(|encoder| encoder.shards()),
            adapters: Adapters::default(),
        };
        let tokenizer = tokenizer();
        let vision = encoder.map(|encoder| encoder.vision(&tokenizer));
        let validator = Validator::new(
            TokenizerPool::new(tokenizer, 1).unwrap(),
            ValidationLimits {
                max_best_of: 4,
                max_beam_width: 8,
                max_stop_sequences: 4,
                max_top_n_tokens: 5,
                max_logprobs: 20,
                max_input_tokens: setup.limits.max_batch_total_tokens,
                max_total_tokens: setup.limits.max_batch_total_tokens,
                vocab_size: VOCAB + 1,
                prefill_logprobs: true,
                grammar_support: false,
            },
        );
        let validator = match vision {
            Some(vision) => validator.with_vision(vision),
            None => validator,
        };
        Self {
            infer: Infer::new(validator, shards, setup.limits, setup.permits),
            mock,
            permits: setup.permits,
        }
    }

    /// Nothing runs, waits or is held any more, here and in the shards, and no plan broke the contract.
    pub async fn assert_clean(&self) {
        let settled = timeout(SETTLED, async {
            while !self.is_empty() {
                sleep(Duration::from_millis(1)).await;
            }
        });
        let settled = settled.await;
        let left = (self.mock.rows(), self.mock.slots());
        assert!(
            settled.is_ok(),
            "{:?}; rows and slots of the shard: {left:?}",
            self.infer.snapshot()
        );
        assert_eq!(self.mock.violations(), Vec::<String>::new());
    }

    fn is_empty(&self) -> bool {
        let now = self.infer.snapshot();
        (now.queued, now.running, now.slots_used) == (0, 0, 0)
            && now.permits_available == self.permits
            && self.mock.rows() == 0
            && self.mock.slots() == 0
            && self.mock.waiting_images() == 0
    }
}

fn tokenizer() -> TextTokenizer {
    let character = |id| (model::character(id).to_string(), id);
    let vocab: std::collections::BTreeMap<String, u32> = (0..VOCAB).map(character).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "pre_tokenizer": null,
        "added_tokens": [{"id": VOCAB, "content": "<image>", "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false}],
        "normalizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "!"}
    });
    TextTokenizer::from_json(&tokenizer.to_string()).unwrap()
}
