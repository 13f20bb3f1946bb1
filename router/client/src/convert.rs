//! Conversion between generated types and domain types.

use std::time::Duration;

use text_generation_proto::v1;

use crate::types::{
    AdapterCopy, AllowedTokens, Chunk, Drafted, Encode, Grant, Hint, LoadAdapter, LoadedAdapter,
    MaskWrite, MediaCost, MediaInfo, MediaSpan, MediaView, NextTokenChooser, PromptScores, Request,
    RequestFailure, RequestId, Row, ServingLimits, ShardInfo, SlotRange, StepCost, StepMasks,
    StepPlan, StepReply, Timings, TokenId, TopTokens, TraceLink, Warmup, WarmupLimits, WindowCost,
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
            min_new_tokens: chooser.min_new_tokens,
        }
    }
}

impl From<Request> for v1::Request {
    fn from(request: Request) -> Self {
        Self {
            id: request.id.0,
            row: request.row.0,
            input_ids: request.input_ids,
            num_generated: request.num_generated,
            cached_length: request.cached_length,
            slots: ranges(request.slots),
            parameters: Some(request.chooser.into()),
            top_n_tokens: request.top_n_tokens,
            prefill_logprobs: request.prefill_logprobs,
            media: request.media.into_iter().map(Into::into).collect(),
            adapter: request.adapter,
            max_new_tokens: request.max_new_tokens,
        }
    }
}

impl From<MediaSpan> for v1::MediaSpan {
    fn from(span: MediaSpan) -> Self {
        Self {
            first: span.first,
            length: span.length,
            row: span.row,
            grid_height: span.grid.height,
            grid_width: span.grid.width,
        }
    }
}

impl From<Encode> for v1::Encode {
    fn from(encode: Encode) -> Self {
        Self {
            item: encode.item.0,
            first_layer: encode.first_layer,
            layers: encode.layers,
            row: encode.row,
            rows: encode.rows,
        }
    }
}

impl From<MediaView> for v1::MediaView {
    fn from(view: MediaView) -> Self {
        Self {
            height: view.height,
            width: view.width,
        }
    }
}

impl From<v1::MediaInfo> for MediaInfo {
    fn from(info: v1::MediaInfo) -> Self {
        Self {
            token_id: info.token_id,
            layers: info.layers,
            whole_spans: info.whole_spans,
            axes: info.axes,
            packs: info.packs,
        }
    }
}

impl From<Chunk> for v1::Chunk {
    fn from(chunk: Chunk) -> Self {
        Self {
            row: chunk.row.0,
            first: chunk.first,
            count: chunk.count,
        }
    }
}

impl From<Grant> for v1::Grant {
    fn from(grant: Grant) -> Self {
        Self {
            row: grant.row.0,
            slots: ranges(grant.slots),
        }
    }
}

impl From<Hint> for v1::Hint {
    fn from(hint: Hint) -> Self {
        Self {
            row: hint.row.0,
            at: hint.at,
            ids: hint.ids,
        }
    }
}

impl From<StepPlan> for v1::StepPlan {
    fn from(plan: StepPlan) -> Self {
        Self {
            number: plan.number,
            drop: numbers(plan.drop),
            admit: plan.admit.into_iter().map(Into::into).collect(),
            grants: plan.grants.into_iter().map(Into::into).collect(),
            chunks: plan.chunks.into_iter().map(Into::into).collect(),
            decode: numbers(plan.decode),
            constrained: numbers(plan.constrained),
            limit_ms: milliseconds(plan.limit),
            trace_links: trace_links(&plan.trace_links),
            encode: plan.encode.into_iter().map(Into::into).collect(),
            forget: plan.forget.into_iter().map(|item| item.0).collect(),
            adapter_copies: plan.adapter_copies.into_iter().map(Into::into).collect(),
            widths: plan.widths,
            hints: plan.hints.into_iter().map(Into::into).collect(),
        }
    }
}

fn numbers(rows: Vec<Row>) -> Vec<u32> {
    rows.into_iter().map(|row| row.0).collect()
}

/// One after the other, each the trace id and then the span id.
fn trace_links(links: &[TraceLink]) -> Vec<u8> {
    let bytes = links
        .iter()
        .flat_map(|link| link.trace_id.iter().chain(&link.span_id));
    bytes.copied().collect()
}

/// Rounded up: zero means that there is no limit.
fn milliseconds(limit: Duration) -> u32 {
    u32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

impl From<MaskWrite> for v1::MaskWrite {
    fn from(write: MaskWrite) -> Self {
        let mask = match write.tokens {
            AllowedTokens::Bits(bits) => v1::mask_write::Mask::Bits(bits),
            AllowedTokens::Only(ids) => v1::mask_write::Mask::Only(v1::TokenIds { ids }),
            AllowedTokens::Except(ids) => v1::mask_write::Mask::Except(v1::TokenIds { ids }),
        };
        Self {
            slot: write.slot,
            mask: Some(mask),
        }
    }
}

impl From<StepMasks> for v1::StepMasks {
    fn from(masks: StepMasks) -> Self {
        let several = masks.rows.iter().any(|(_, slots)| slots.len() != 1);
        let counts = masks.rows.iter().map(|(_, slots)| slots.len() as u32);
        Self {
            number: masks.number,
            counts: counts.filter(|_| several).collect(),
            writes: masks.writes.into_iter().map(Into::into).collect(),
            rows: masks.rows.iter().map(|(row, _)| row.0).collect(),
            slots: masks
                .rows
                .into_iter()
                .flat_map(|(_, slots)| slots)
                .collect(),
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
            prefill_chunking: limits.prefill_chunking,
            regained: limits.regained,
            overlapped_halves: limits.overlapped_halves,
            media_rows: limits.media_rows,
            max_media_pixels: limits.max_media_pixels,
            adapter_pages: limits.adapter_pages,
            adapters_later: limits.adapters_later,
        }
    }
}

impl From<v1::WarmupResponse> for Warmup {
    fn from(reply: v1::WarmupResponse) -> Self {
        let cost = reply.cost.unwrap_or_default();
        let media_cost = reply.media_cost.unwrap_or_default();
        Self {
            limits: ServingLimits {
                max_batch_total_tokens: reply.max_batch_total_tokens,
                max_input_tokens: reply.max_input_tokens,
                max_total_tokens: reply.max_total_tokens,
                max_batch_size: reply.max_batch_size,
            },
            cost: StepCost {
                tokens: cost.tokens,
                times_ms: cost.times_ms,
                pair_ns: cost.pair_ns,
                context_ns: cost.context_ns,
                graph_tokens: reply.graph_tokens,
                windows: cost.windows.into_iter().map(Into::into).collect(),
            },
            max_masks: reply.max_masks,
            overlapped_halves: reply.overlapped_halves,
            media_cost: MediaCost {
                pixels: media_cost.pixels,
                times_ms: media_cost.times_ms,
            },
        }
    }
}

impl From<v1::WindowCost> for WindowCost {
    fn from(cost: v1::WindowCost) -> Self {
        Self {
            width: cost.width,
            rows: cost.rows,
            times_ms: cost.times_ms,
            context_ns: cost.context_ns,
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
            kv_cache_dtype: reply.kv_cache_dtype,
            recurrent: reply.recurrent,
            media: reply.media.map(Into::into),
            widths: reply.widths,
            max_window_tokens: reply.max_window_tokens,
            drafter: reply.drafter,
            classes: reply.classes,
        }
    }
}

impl From<LoadAdapter> for v1::LoadAdapterRequest {
    fn from(load: LoadAdapter) -> Self {
        Self {
            name: load.name,
            source: load.source,
            untrusted: load.untrusted,
            generation: load.generation,
        }
    }
}

impl From<v1::LoadAdapterResponse> for LoadedAdapter {
    fn from(reply: v1::LoadAdapterResponse) -> Self {
        Self {
            generation: reply.generation,
            rank: reply.rank,
            pages: reply.pages,
            bytes: reply.bytes,
        }
    }
}

impl From<AdapterCopy> for v1::AdapterCopy {
    fn from(copy: AdapterCopy) -> Self {
        Self {
            number: copy.number,
            generation: copy.generation,
            first_page: copy.first_page,
        }
    }
}

fn tokens(ids: Vec<u32>, logprobs: Vec<f32>) -> Vec<TokenId> {
    // Only rank 0 sends log-probabilities.
    let logprobs = logprobs.into_iter().chain(std::iter::repeat(f32::NAN));
    let token = |(id, logprob)| TokenId { id, logprob };
    ids.into_iter().zip(logprobs).map(token).collect()
}

impl From<v1::TopTokens> for TopTokens {
    fn from(top: v1::TopTokens) -> Self {
        Self {
            index: top.index as usize,
            tokens: tokens(top.ids, top.logprobs),
        }
    }
}

impl From<v1::PromptScores> for PromptScores {
    fn from(scores: v1::PromptScores) -> Self {
        Self {
            row: Row(scores.row),
            first: scores.first,
            logprobs: scores.logprobs,
            top_tokens: scores.top_tokens.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<v1::RequestFailure> for RequestFailure {
    fn from(failure: v1::RequestFailure) -> Self {
        Self {
            request_id: RequestId(failure.request_id),
            row: Row(failure.row),
            reason: failure.reason,
            message: failure.message,
        }
    }
}

impl From<v1::Timings> for Timings {
    fn from(timings: v1::Timings) -> Self {
        Self {
            host: Duration::from_nanos(timings.host_ns),
            forward: Duration::from_nanos(timings.forward_ns),
            idle: Duration::from_nanos(timings.idle_ns),
            mask_wait: Duration::from_nanos(timings.mask_wait_ns),
            encode: Duration::from_nanos(timings.encode_ns),
            kernel_compilations: timings.kernel_compilations,
        }
    }
}

/// What became of the drafts of each row.
fn drafted(reply: &v1::StepReply) -> Vec<Drafted> {
    let numbers = reply.drafts.iter().zip(&reply.right);
    let drafted = numbers.zip(&reply.rows).map(|((&checked, &right), row)| {
        let hinted = reply.hinted.contains(row);
        Drafted {
            checked,
            right,
            hinted,
            left_out: reply.undrafted && !hinted,
        }
    });
    drafted.collect()
}

impl From<v1::StepReply> for StepReply {
    fn from(reply: v1::StepReply) -> Self {
        Self {
            number: reply.number,
            drafts: drafted(&reply),
            rows: reply.rows.into_iter().map(Row).collect(),
            counts: reply.counts,
            tokens: tokens(reply.ids, reply.logprobs),
            top_tokens: reply.top_tokens.into_iter().map(Into::into).collect(),
            prompt_scores: reply.prompt_scores.into_iter().map(Into::into).collect(),
            class_logits: reply.class_logits,
            expert_loads: reply
                .expert_loads
                .into_iter()
                .map(|load| load.pairs)
                .collect(),
            failures: reply.failures.into_iter().map(Into::into).collect(),
            timings: reply.timings.map(Into::into).unwrap_or_default(),
            adapters_ready: reply.adapters_ready,
        }
    }
}
