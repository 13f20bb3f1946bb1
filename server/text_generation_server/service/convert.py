# Each function maps the message that it is named after.
# ruff: noqa: D103
"""Protobuf messages of the contract to and from the dataclasses of `engine.requests`."""

from collections.abc import Iterable

from ..engine import requests as r
from ..pb import generate_pb2 as pb


def batch_from_pb(message: pb.Batch) -> r.Batch:
    return r.Batch(id=message.id, requests=tuple(_request_from_pb(request) for request in message.requests))


def _request_from_pb(message: pb.Request) -> r.Request:
    chooser, stopping = message.parameters, message.stopping_parameters
    return r.Request(
        id=message.id,
        input_ids=tuple(message.input_ids),
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
        ),
        stopping_parameters=r.StoppingCriteriaParameters(
            max_new_tokens=stopping.max_new_tokens,
            ignore_eos_token=stopping.ignore_eos_token,
            min_new_tokens=stopping.min_new_tokens,
        ),
        slots=_slots_from_pb(message.slots),
        prefill_logprobs=message.prefill_logprobs,
        top_n_tokens=message.top_n_tokens,
        copies=tuple(r.Copy(copy.id, copy.seed, _slots_from_pb(copy.slots)) for copy in message.copies),
    )


def _slots_from_pb(messages: Iterable[pb.SlotRange]) -> tuple[r.SlotRange, ...]:
    return tuple(r.SlotRange(start=message.start, length=message.length) for message in messages)


def cached_batch_from_pb(message: pb.CachedBatch) -> r.CachedBatch:
    return r.CachedBatch(message.id, tuple(message.request_ids), message.current_tokens)


def grant_from_pb(message: pb.Grant) -> r.Grant:
    return r.Grant(request_id=message.request_id, slots=_slots_from_pb(message.slots))


def warmup_limits_from_pb(message: pb.WarmupRequest) -> r.WarmupLimits:
    def optional(name: str) -> int | None:
        return getattr(message, name) if message.HasField(name) else None  # type: ignore[arg-type]

    return r.WarmupLimits(
        max_batch_prefill_tokens=message.max_batch_prefill_tokens,
        max_batch_size=message.max_batch_size,
        max_input_tokens=optional("max_input_tokens"),
        max_total_tokens=optional("max_total_tokens"),
        max_batch_total_tokens=optional("max_batch_total_tokens"),
    )


def serving_limits_to_pb(limits: r.ServingLimits) -> pb.WarmupResponse:
    return pb.WarmupResponse(
        max_batch_total_tokens=limits.max_batch_total_tokens,
        max_input_tokens=limits.max_input_tokens,
        max_total_tokens=limits.max_total_tokens,
        max_batch_size=limits.max_batch_size,
    )


def info_to_pb(info: r.ShardInfo) -> pb.InfoResponse:
    return pb.InfoResponse(
        dtype=info.dtype,
        device_type=info.device_type,
        world_size=info.world_size,
        vocab_size=info.vocab_size,
        max_position_embeddings=info.max_position_embeddings,
        eos_token_ids=info.eos_token_ids,
        attention_impl=info.attention_impl,
        version=info.version,
    )


def cached_batch_to_pb(batch: r.CachedBatch | None) -> pb.CachedBatch | None:
    if batch is None:
        return None
    return pb.CachedBatch(id=batch.id, request_ids=batch.request_ids, current_tokens=batch.current_tokens)


def prefill_response_to_pb(result: r.StepResult) -> pb.PrefillResponse:
    return pb.PrefillResponse(
        generations=[_generation_to_pb(generation) for generation in result.generations],
        batch=cached_batch_to_pb(result.batch),
        failures=[_failure_to_pb(failure) for failure in result.failures],
        timings=_timings_to_pb(result.timings),
    )


def decode_response_to_pb(result: r.StepResult) -> pb.DecodeResponse:
    return pb.DecodeResponse(
        generations=[_generation_to_pb(generation) for generation in result.generations],
        batch=cached_batch_to_pb(result.batch),
        failures=[_failure_to_pb(failure) for failure in result.failures],
        timings=_timings_to_pb(result.timings),
    )


def _tokens_to_pb(tokens: r.Tokens | None) -> pb.Tokens | None:
    return None if tokens is None else pb.Tokens(ids=tokens.ids, logprobs=tokens.logprobs)


def _generation_to_pb(generation: r.Generation) -> pb.Generation:
    finish = generation.finish
    return pb.Generation(
        request_id=generation.request_id,
        prefill_tokens=_tokens_to_pb(generation.prefill_tokens),
        tokens=_tokens_to_pb(generation.tokens),
        top_tokens=[pb.Tokens(ids=tokens.ids, logprobs=tokens.logprobs) for tokens in generation.top_tokens],
        finish=None
        if finish is None
        else pb.Finish(
            reason=pb.FinishReason.Name(finish.reason.value),  # type: ignore[arg-type]
            generated_tokens=finish.generated_tokens,
            seed=finish.seed,
        ),
    )


def _failure_to_pb(failure: r.RequestFailure) -> pb.RequestFailure:
    return pb.RequestFailure(request_id=failure.request_id, reason=failure.reason, message=failure.message)


def _timings_to_pb(timings: r.Timings) -> pb.Timings:
    return pb.Timings(
        concat_ns=timings.concat_ns,
        forward_ns=timings.forward_ns,
        decode_ns=timings.decode_ns,
        total_ns=timings.total_ns,
        idle_ns=timings.idle_ns,
        kernel_compilations=timings.kernel_compilations,
    )
