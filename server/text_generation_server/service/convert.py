# Each function maps the message that it is named after.
# ruff: noqa: D103
"""Protobuf messages of the contract to and from the dataclasses of `engine.requests`."""

from collections.abc import Iterable

import numpy as np

from ..engine import adapter_requests as a
from ..engine import media_requests as m
from ..engine import requests as r
from ..pb import generate_pb2 as pb


def plan_from_pb(message: pb.StepPlan) -> r.StepPlan:
    return r.StepPlan(
        number=message.number,
        drop=list(message.drop),
        admit=[_request_from_pb(request) for request in message.admit],
        grants=[r.Grant(grant.row, _slots_from_pb(grant.slots)) for grant in message.grants],
        chunks=[r.Chunk(chunk.row, chunk.first, chunk.count) for chunk in message.chunks],
        decode=list(message.decode),
        widths=list(message.widths),
        hints=[r.Hint(hint.row, hint.at, np.array(hint.ids, dtype=np.int64)) for hint in message.hints],
        constrained=list(message.constrained),
        limit_ms=message.limit_ms,
        encode=[m.Encode(each.item, each.first_layer, each.layers, each.row, each.rows) for each in message.encode],
        forget=list(message.forget),
        adapter_copies=[
            a.AdapterCopy(copy.number, copy.generation, copy.first_page) for copy in message.adapter_copies
        ],
    )


def adapter_source_from_pb(message: pb.LoadAdapterRequest) -> a.AdapterSource:
    return a.AdapterSource(message.name, message.source, message.untrusted, message.generation)


def adapter_loaded_to_pb(loaded: a.AdapterLoaded) -> pb.LoadAdapterResponse:
    return pb.LoadAdapterResponse(
        generation=loaded.generation, rank=loaded.rank, pages=loaded.pages, bytes=loaded.num_bytes
    )


def media_put_from_pb(message: pb.PutMediaRequest, pixels: m.Pixels) -> m.MediaPut:
    grid = message.grid_height, message.grid_width
    return m.MediaPut(message.item, views_from_pb(message), grid, message.rows, pixels)


def views_from_pb(message: pb.PutMediaRequest) -> tuple[tuple[int, int], ...]:
    return tuple((view.height, view.width) for view in message.views)


def masks_from_pb(message: pb.StepMasks) -> r.StepMasks:
    writes = [_mask_write_from_pb(write) for write in message.writes]
    rows, slots, counts = list(message.rows), list(message.slots), list(message.counts)
    return r.StepMasks(message.number, writes, rows=rows, slots=slots, counts=counts)


def _mask_write_from_pb(message: pb.MaskWrite) -> r.MaskWrite:
    name = message.WhichOneof("mask")
    if name == "bits":
        return r.MaskWrite(message.slot, r.MaskForm.BITS, np.frombuffer(message.bits, dtype=np.uint8))
    ids = () if name is None else getattr(message, name).ids
    return r.MaskWrite(message.slot, None if name is None else r.MaskForm(name), np.array(ids, dtype=np.int64))


def _request_from_pb(message: pb.Request) -> r.Request:
    chooser = message.parameters
    return r.Request(
        id=message.id,
        row=message.row,
        input_ids=np.array(message.input_ids, dtype=np.int64),
        num_generated=message.num_generated,
        cached_length=message.cached_length,
        slots=_slots_from_pb(message.slots),
        parameters=r.NextTokenChooserParameters(
            temperature=chooser.temperature,
            top_k=chooser.top_k,
            top_p=chooser.top_p,
            typical_p=chooser.typical_p,
            do_sample=chooser.do_sample,
            seed=chooser.seed,
            repetition_penalty=chooser.repetition_penalty,
            frequency_penalty=chooser.frequency_penalty,
            watermark=chooser.watermark,
            presence_penalty=chooser.presence_penalty,
            penalize_output_only=chooser.penalize_output_only,
            min_p=chooser.min_p,
            logit_bias=tuple((entry.id, entry.bias) for entry in chooser.logit_bias),
            min_new_tokens=chooser.min_new_tokens,
        ),
        prefill_logprobs=message.prefill_logprobs,
        top_n_tokens=message.top_n_tokens,
        media=tuple(
            m.MediaSpan(span.first, span.length, span.row, span.grid_height, span.grid_width) for span in message.media
        ),
        adapter=message.adapter,
        max_new_tokens=message.max_new_tokens,
    )


def _slots_from_pb(messages: Iterable[pb.SlotRange]) -> tuple[r.SlotRange, ...]:
    return tuple(r.SlotRange(start=message.start, length=message.length) for message in messages)


def warmup_limits_from_pb(message: pb.WarmupRequest) -> r.WarmupLimits:
    def optional(name: str) -> int | None:
        return getattr(message, name) if message.HasField(name) else None  # type: ignore[arg-type]

    return r.WarmupLimits(
        max_batch_prefill_tokens=message.max_batch_prefill_tokens,
        max_batch_size=message.max_batch_size,
        max_input_tokens=optional("max_input_tokens"),
        max_total_tokens=optional("max_total_tokens"),
        max_batch_total_tokens=optional("max_batch_total_tokens"),
        prefill_chunking=message.prefill_chunking,
        regained=message.regained,
        overlapped_halves=message.overlapped_halves,
        media_rows=message.media_rows,
        max_media_pixels=message.max_media_pixels,
        adapter_pages=message.adapter_pages,
        adapters_later=message.adapters_later,
    )


def warmup_result_to_pb(result: r.WarmupResult) -> pb.WarmupResponse:
    limits, cost, media = result.limits, result.cost, result.media_cost
    return pb.WarmupResponse(
        max_batch_total_tokens=limits.max_batch_total_tokens,
        max_input_tokens=limits.max_input_tokens,
        max_total_tokens=limits.max_total_tokens,
        max_batch_size=limits.max_batch_size,
        cost=pb.StepCost(
            tokens=cost.tokens,
            times_ms=cost.times_ms,
            pair_ns=cost.pair_ns,
            context_ns=cost.context_ns,
            windows=[
                pb.WindowCost(width=each.width, rows=each.rows, times_ms=each.times_ms, context_ns=each.context_ns)
                for each in cost.windows
            ],
        ),
        graph_tokens=result.graph_tokens,
        max_masks=result.max_masks,
        overlapped_halves=result.overlapped_halves,
        media_cost=pb.MediaCost(pixels=media.pixels, times_ms=media.times_ms),
    )


def info_to_pb(info: r.ShardInfo, group: str) -> pb.InfoResponse:
    return pb.InfoResponse(
        dtype=info.dtype,
        device_type=info.device_type,
        world_size=info.world_size,
        vocab_size=info.vocab_size,
        max_position_embeddings=info.max_position_embeddings,
        eos_token_ids=info.eos_token_ids,
        attention_impl=info.attention_impl,
        version=info.version,
        group=group,
        kv_cache_dtype=info.kv_cache_dtype,
        recurrent=info.recurrent,
        media=None if info.media is None else _media_info_to_pb(info.media),
        widths=info.widths,
        max_window_tokens=info.max_window_tokens,
        drafter=info.drafter,
        classes=info.classes,
    )


def _media_info_to_pb(info: m.MediaInfo) -> pb.MediaInfo:
    return pb.MediaInfo(
        token_id=info.token_id,
        layers=info.layers,
        whole_spans=info.whole_spans,
        axes=info.axes,
        packs=info.packs,
    )


def reply_to_pb(reply: r.StepReply) -> pb.StepReply:
    timings = reply.timings
    return pb.StepReply(
        number=reply.number,
        rows=reply.rows,
        ids=reply.ids,
        logprobs=reply.logprobs,
        top_tokens=_top_tokens_to_pb(reply.top_tokens),
        prompt_scores=[
            pb.PromptScores(
                row=scores.row,
                first=scores.first,
                logprobs=scores.logprobs,
                top_tokens=_top_tokens_to_pb(scores.top_tokens),
            )
            for scores in reply.prompt_scores
        ],
        failures=[
            pb.RequestFailure(
                request_id=failure.request_id, row=failure.row, reason=failure.reason, message=failure.message
            )
            for failure in reply.failures
        ],
        timings=pb.Timings(
            host_ns=timings.host_ns,
            forward_ns=timings.forward_ns,
            idle_ns=timings.idle_ns,
            kernel_compilations=timings.kernel_compilations,
            mask_wait_ns=timings.mask_wait_ns,
            encode_ns=timings.encode_ns,
        ),
        adapters_ready=reply.adapters_ready,
        counts=reply.counts,
        drafts=reply.drafts,
        right=reply.right,
        hinted=reply.hinted,
        undrafted=reply.undrafted,
        class_logits=reply.class_logits,
        expert_loads=[pb.ExpertLoad(pairs=pairs) for pairs in reply.expert_loads],
    )


def _top_tokens_to_pb(top_tokens: Iterable[r.TopTokens]) -> list[pb.TopTokens]:
    return [pb.TopTokens(index=top.index, ids=top.ids, logprobs=top.logprobs) for top in top_tokens]
