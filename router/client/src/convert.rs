//! Conversion between generated types and domain types.

use std::time::Duration;

use text_generation_proto::v1;

use crate::types::{
    Batch, CachedBatch, Copy, Finish, FinishReason, Generation, Grant, NextTokenChooser, Request,
    RequestFailure, ServingLimits, ShardInfo, SlotRange, StepReply, StoppingCriteria, Timings,
    TokenId, WarmupLimits,
};

impl From<SlotRange> for v1::SlotRange {
    fn from(range: SlotRange) -> Self {
        Self {
            start: range.start,
            length: range.length,
        }
    }
}

fn ranges(slots: Vec<SlotRange>) -> Vec<v1::SlotRange> {
    slots.into_iter().map(Into::into).collect()
}

impl From<NextTokenChooser> for v1::NextTokenChooserParameters {
    fn from(chooser: NextTokenChooser) -> Self {
        Self {
            temperature: chooser.temperature,
            top_k: chooser.top_k,
            top_p: chooser.top_p,
            typical_p: chooser.typical_p,
            do_sample: chooser.do_sample,
            seed: chooser.seed,
            repetition_penalty: chooser.repetition_penalty,
            frequency_penalty: chooser.frequency_penalty,
            watermark: chooser.watermark,
            presence_penalty: chooser.presence_penalty,
            penalize_output_only: chooser.penalize_output_only,
            min_p: chooser.min_p,
            logit_bias: chooser
                .logit_bias
                .into_iter()
                .map(|(id, bias)| v1::LogitBias { id, bias })
                .collect(),
        }
    }
}

impl From<StoppingCriteria> for v1::StoppingCriteriaParameters {
    fn from(stopping: StoppingCriteria) -> Self {
        Self {
            max_new_tokens: stopping.max_new_tokens,
            ignore_eos_token: stopping.ignore_eos_token,
            min_new_tokens: stopping.min_new_tokens,
        }
    }
}

impl From<Copy> for v1::Copy {
    fn from(copy: Copy) -> Self {
        Self {
            id: copy.id,
            seed: copy.seed,
            slots: ranges(copy.slots),
        }
    }
}

impl From<Request> for v1::Request {
    fn from(request: Request) -> Self {
        Self {
            id: request.id,
            input_ids: request.input_ids,
            parameters: Some(request.chooser.into()),
            stopping_parameters: Some(request.stopping.into()),
            prefill_logprobs: request.prefill_logprobs,
            top_n_tokens: request.top_n_tokens,
            slots: ranges(request.slots),
            copies: request.copies.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<Batch> for v1::Batch {
    fn from(batch: Batch) -> Self {
        Self {
            id: batch.id,
            requests: batch.requests.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<CachedBatch> for v1::CachedBatch {
    fn from(batch: CachedBatch) -> Self {
        Self {
            id: batch.id,
            request_ids: batch.request_ids,
            current_tokens: batch.current_tokens,
        }
    }
}

impl From<v1::CachedBatch> for CachedBatch {
    fn from(batch: v1::CachedBatch) -> Self {
        Self {
            id: batch.id,
            request_ids: batch.request_ids,
            current_tokens: batch.current_tokens,
        }
    }
}

impl From<Grant> for v1::Grant {
    fn from(grant: Grant) -> Self {
        Self {
            request_id: grant.request_id,
            slots: ranges(grant.slots),
        }
    }
}

impl From<WarmupLimits> for v1::WarmupRequest {
    fn from(limits: WarmupLimits) -> Self {
        Self {
            max_input_tokens: limits.max_input_tokens,
            max_total_tokens: limits.max_total_tokens,
            max_batch_prefill_tokens: limits.max_batch_prefill_tokens,
            max_batch_total_tokens: limits.max_batch_total_tokens,
            max_batch_size: limits.max_batch_size,
        }
    }
}

impl From<v1::WarmupResponse> for ServingLimits {
    fn from(reply: v1::WarmupResponse) -> Self {
        Self {
            max_batch_total_tokens: reply.max_batch_total_tokens,
            max_input_tokens: reply.max_input_tokens,
            max_total_tokens: reply.max_total_tokens,
            max_batch_size: reply.max_batch_size,
        }
    }
}

impl From<v1::InfoResponse> for ShardInfo {
    fn from(reply: v1::InfoResponse) -> Self {
        Self {
            dtype: reply.dtype,
            device_type: reply.device_type,
            world_size: reply.world_size,
            vocab_size: reply.vocab_size,
            max_position_embeddings: reply.max_position_embeddings,
            eos_token_ids: reply.eos_token_ids,
            attention_impl: reply.attention_impl,
            version: reply.version,
        }
    }
}

fn token_ids<C: FromIterator<TokenId>>(tokens: v1::Tokens) -> C {
    tokens
        .ids
        .into_iter()
        .zip(tokens.logprobs)
        .map(|(id, logprob)| TokenId { id, logprob })
        .collect()
}

impl From<v1::Finish> for Finish {
    fn from(finish: v1::Finish) -> Self {
        let reason = match finish.reason() {
            v1::FinishReason::Length => FinishReason::Length,
            v1::FinishReason::EosToken => FinishReason::EosToken,
        };
        Self {
            reason,
            generated_tokens: finish.generated_tokens,
            seed: finish.seed,
        }
    }
}

impl From<v1::Generation> for Generation {
    fn from(generation: v1::Generation) -> Self {
        Self {
            request_id: generation.request_id,
            prefill_tokens: generation.prefill_tokens.map(token_ids),
            tokens: generation.tokens.map(token_ids).unwrap_or_default(),
            top_tokens: generation.top_tokens.into_iter().map(token_ids).collect(),
            finish: generation.finish.map(Into::into),
        }
    }
}

impl From<v1::RequestFailure> for RequestFailure {
    fn from(failure: v1::RequestFailure) -> Self {
        Self {
            request_id: failure.request_id,
            reason: failure.reason,
            message: failure.message,
        }
    }
}

impl From<v1::Timings> for Timings {
    fn from(timings: v1::Timings) -> Self {
        Self {
            concat: Duration::from_nanos(timings.concat_ns),
            forward: Duration::from_nanos(timings.forward_ns),
            decode: Duration::from_nanos(timings.decode_ns),
            total: Duration::from_nanos(timings.total_ns),
            idle: Duration::from_nanos(timings.idle_ns),
            kernel_compilations: timings.kernel_compilations,
        }
    }
}

/// Prefill and decode replies have the same shape; generated code makes them two types.
macro_rules! step_reply {
    ($reply:ty) => {
        impl From<$reply> for StepReply {
            fn from(reply: $reply) -> Self {
                Self {
                    generations: reply.generations.into_iter().map(Into::into).collect(),
                    batch: reply.batch.map(Into::into),
                    failures: reply.failures.into_iter().map(Into::into).collect(),
                    timings: reply.timings.map(Into::into).unwrap_or_default(),
                }
            }
        }
    };
}

step_reply!(v1::PrefillResponse);
step_reply!(v1::DecodeResponse);
