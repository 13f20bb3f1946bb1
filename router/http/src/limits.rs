//! Limits after warm-up: what the operator asked for joined with what the shards can do.

use std::time::Duration;

use anyhow::Context;
use text_generation_client::types::{ServingLimits, ShardInfo, WarmupLimits};
use text_generation_core::policy::BatchLimits;
use text_generation_core::policy::cost::StepCost;
use text_generation_core::types::ValidationLimits;

use crate::args::Config;
use crate::tenant::PrefixCaching;
use crate::token_limits::TokenLimits;

/// The limits that hold from here on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub max_input_tokens: u32,
    pub max_total_tokens: u32,
    pub max_batch_prefill_tokens: u32,
    pub max_batch_total_tokens: u32,
    pub max_batch_size: u32,
}

/// Joins what the operator asked for and what the shards can do. Asked-for limits are kept or refused, derived ones fit.
pub fn settle(
    asked: TokenLimits,
    wanted: &WarmupLimits,
    served: &ServingLimits,
) -> anyhow::Result<Limits> {
    for (flag, asked, served) in [
        (
            "--max-input-tokens",
            asked.max_input_tokens,
            served.max_input_tokens,
        ),
        (
            "--max-total-tokens",
            asked.max_total_tokens,
            served.max_total_tokens,
        ),
        (
            "--max-batch-total-tokens",
            asked.max_batch_total_tokens,
            served.max_batch_total_tokens,
        ),
    ] {
        if let Some(asked) = asked {
            anyhow::ensure!(
                asked == served,
                "the shards cannot serve `{flag} {asked}`, only {served}; lower it or leave it out"
            );
        }
    }
    let prefill = asked.max_batch_prefill_tokens.unwrap_or_else(|| {
        wanted
            .max_batch_prefill_tokens
            .min(served.max_batch_total_tokens)
    });
    let limits = Limits {
        max_input_tokens: served.max_input_tokens,
        max_total_tokens: served.max_total_tokens,
        max_batch_prefill_tokens: prefill,
        max_batch_total_tokens: served.max_batch_total_tokens,
        max_batch_size: served.max_batch_size,
    };
    TokenLimits {
        max_input_tokens: Some(limits.max_input_tokens),
        max_total_tokens: Some(limits.max_total_tokens),
        max_batch_prefill_tokens: Some(limits.max_batch_prefill_tokens),
        max_batch_total_tokens: Some(limits.max_batch_total_tokens),
        prefill_chunking: asked.prefill_chunking,
    }
    .check()
    .context("the limits after warm-up do not fit together")?;
    Ok(limits)
}

/// What requests are checked against.
pub fn validation_limits(config: &Config, shard: &ShardInfo, limits: &Limits) -> ValidationLimits {
    ValidationLimits {
        max_best_of: config.max_best_of,
        max_beam_width: config.max_beam_width,
        max_stop_sequences: config.max_stop_sequences as usize,
        max_top_n_tokens: config.max_top_n_tokens,
        max_logprobs: config.max_logprobs,
        max_input_tokens: limits.max_input_tokens,
        max_total_tokens: limits.max_total_tokens,
        vocab_size: shard.vocab_size,
        prefill_logprobs: config.enable_prefill_logprobs,
        grammar_support: !config.disable_grammar_support,
    }
}

/// An inter-token latency that is smooth to read. The longest one of a stream is some 10 % above it in measurements. On
/// an H200 with an 8B model it is room for 1,200 to 1,600 prompt tokens beside the streams; with 25 ms prompts of 10,000
/// tokens take longer than without chunked prefill.
const SMOOTH_GAP: Duration = Duration::from_millis(36);
/// Tokens of a prompt that a step has time for even where it takes longer than [`SMOOTH_GAP`]. With fewer, a step of a
/// large model is mostly the reading of its weights, and prompts wait many times as long as streams gain.
const LEAST_CHUNK: u32 = 1536;

/// The inter-token latency that streams are promised by default, in a server whose steps cost this.
fn default_gap(cost: &StepCost) -> Duration {
    cost.prompt(LEAST_CHUNK).max(SMOOTH_GAP)
}

/// Who shares cached prefixes: nobody where layers keep a state, for the state at the end of a prefix is not cached.
pub fn prefix_caching(config: &Config, shard: &ShardInfo) -> PrefixCaching {
    if shard.recurrent {
        PrefixCaching::Off
    } else {
        config.prefix_caching
    }
}

/// What the batcher keeps to.
pub fn batch_limits(
    config: &Config,
    shard: &ShardInfo,
    limits: &Limits,
    cost: &StepCost,
) -> BatchLimits {
    let gap = config.max_token_gap.map_or_else(
        || default_gap(cost),
        |gap| Duration::from_millis(gap.into()),
    );
    BatchLimits {
        waiting_served_ratio: config.waiting_served_ratio,
        max_waiting_tokens: config.max_waiting_tokens,
        max_batch_prefill_tokens: limits.max_batch_prefill_tokens,
        max_batch_total_tokens: limits.max_batch_total_tokens,
        max_batch_size: limits.max_batch_size,
        max_queue_time: config.max_queue_time,
        prefill_chunking: config.prefill_chunking,
        max_token_gap: (!gap.is_zero()).then_some(gap),
        prefix_caching: prefix_caching(config, shard) != PrefixCaching::Off,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED: ServingLimits = ServingLimits {
        max_batch_total_tokens: 3000,
        max_input_tokens: 2047,
        max_total_tokens: 2048,
        max_batch_size: 8,
    };

    fn asked() -> TokenLimits {
        TokenLimits {
            max_input_tokens: None,
            max_total_tokens: None,
            max_batch_prefill_tokens: None,
            max_batch_total_tokens: None,
            prefill_chunking: true,
        }
    }

    fn wanted() -> WarmupLimits {
        WarmupLimits {
            max_input_tokens: None,
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
        }
    }

    #[test]
    fn streams_of_large_models_are_promised_longer_gaps_so_that_prompts_get_on() {
        let steps_of =
            |ms: f32| StepCost::new(&[1, 1024, 2048], &[ms, 8.0 * ms, 16.0 * ms], 0.0, 0.0, &[]);
        assert_eq!(default_gap(&steps_of(2.0)), SMOOTH_GAP);
        assert_eq!(default_gap(&steps_of(15.0)), Duration::from_millis(180));
    }

    #[test]
    fn derived_limits_are_made_to_fit() {
        let served = ServingLimits {
            max_input_tokens: 8191,
            max_total_tokens: 8192,
            max_batch_total_tokens: 10_000,
            ..SERVED
        };
        let limits = settle(asked(), &wanted(), &served).expect("limits that fit");
        assert_eq!(limits.max_batch_prefill_tokens, 4096);
        assert_eq!(limits.max_input_tokens, 8191);
        let limits = settle(asked(), &wanted(), &SERVED).expect("limits that fit");
        assert_eq!(limits.max_batch_prefill_tokens, 3000);
        assert_eq!(limits.max_input_tokens, 2047);
    }

    #[test]
    fn asked_for_limits_are_kept_or_refused() {
        let given = TokenLimits {
            max_total_tokens: Some(4096),
            ..asked()
        };
        let error = settle(given, &wanted(), &SERVED).expect_err("too much");
        assert_eq!(
            error.to_string(),
            "the shards cannot serve `--max-total-tokens 4096`, only 2048; lower it or leave it out"
        );
        let given = TokenLimits {
            max_batch_prefill_tokens: Some(5000),
            ..asked()
        };
        let error = settle(given, &wanted(), &SERVED).expect_err("larger than the pool");
        assert!(format!("{error:#}").contains("`--max-batch-prefill-tokens` must be <="));
    }
}
