"""Checks of a request before the first kernel. They depend on the request and the limits alone, so all ranks agree."""

import math
from collections.abc import Sequence

from text_generation_kernels import MAX_LOGIT_BIAS

from ..errors import InvalidRequest
from .requests import NextTokenChooserParameters, Request, ServingLimits, SlotRange

MAX_TOP_N_TOKENS = 20
"""Upper bound of the alternatives that a request asks for; ties may add more, up to `kernels.MAX_TOP`."""


def check_request(request: Request, limits: ServingLimits, vocab_size: int, recurrent: bool = False) -> None:
    """Raises `InvalidRequest` naming the field. A request that passes never indexes out of range.

    `recurrent` says that layers of the model keep a state of each row.
    """
    _check_input(request, limits, vocab_size)
    check_slots(request.slots, limits.max_batch_total_tokens)
    num_slots = sum(slot_range.length for slot_range in request.slots)
    if not 0 <= request.cached_length < len(request.input_ids):
        raise InvalidRequest(
            f"`cached_length` {request.cached_length} must be below the number of `input_ids`, {len(request.input_ids)}"
        )
    if recurrent and request.cached_length:
        raise InvalidRequest(
            f"`cached_length` must be 0, not {request.cached_length}: layers of this model keep a state, so that a "
            "request is computed from position 0 on"
        )
    if request.cached_length > num_slots:
        raise InvalidRequest(
            f"`slots` covers {num_slots} positions, fewer than `cached_length` {request.cached_length}"
        )
    if not 0 <= request.top_n_tokens <= MAX_TOP_N_TOKENS:
        raise InvalidRequest(f"`top_n_tokens` must be at most {MAX_TOP_N_TOKENS}, not {request.top_n_tokens}")
    _check_parameters(request.parameters)
    _check_logit_bias(request.parameters.logit_bias, vocab_size)


def _check_input(request: Request, limits: ServingLimits, vocab_size: int) -> None:
    num_inputs = len(request.input_ids)
    if num_inputs == 0:
        raise InvalidRequest("`input_ids` must hold at least one token id")
    if request.input_ids.max() >= vocab_size or request.input_ids.min() < 0:
        raise InvalidRequest(f"`input_ids` must be below the vocabulary size {vocab_size}")
    if not 0 <= request.num_generated < num_inputs:
        raise InvalidRequest(
            f"`num_generated` {request.num_generated} must be below the number of `input_ids`, {num_inputs}: a prompt "
            "has at least one token"
        )
    if request.num_prompt > limits.max_input_tokens:
        raise InvalidRequest(
            f"`input_ids` holds a prompt of {request.num_prompt} tokens, more than --max-input-tokens "
            f"{limits.max_input_tokens}"
        )
    if num_inputs >= limits.max_total_tokens:
        raise InvalidRequest(
            f"`input_ids` holds {num_inputs} tokens; one more must fit into --max-total-tokens "
            f"{limits.max_total_tokens}"
        )


def check_slots(slots: Sequence[SlotRange], pool_size: int) -> None:
    """Raises `InvalidRequest` for a slot outside the pool."""
    for slot_range in slots:
        if slot_range.start < 0 or slot_range.length < 0 or slot_range.start + slot_range.length > pool_size:
            raise InvalidRequest(
                f"`slots` holds the range [{slot_range.start}, {slot_range.start + slot_range.length}) "
                f"outside the pool of {pool_size} slots"
            )


def _check_parameters(parameters: NextTokenChooserParameters) -> None:
    for name in ("temperature", "repetition_penalty"):
        value = getattr(parameters, name)
        if not (math.isfinite(value) and value > 0):
            raise InvalidRequest(f"`{name}` must be a finite number above 0, not {value}")
    for name in ("top_p", "typical_p"):
        value = getattr(parameters, name)
        if not 0 < value <= 1:
            raise InvalidRequest(f"`{name}` must be above 0 and at most 1 (1: off), not {value}")
    if not 0 <= parameters.min_p <= 1:
        raise InvalidRequest(f"`min_p` must be at least 0 (0: off) and at most 1, not {parameters.min_p}")
    for name in ("frequency_penalty", "presence_penalty"):
        value = getattr(parameters, name)
        if not math.isfinite(value):
            raise InvalidRequest(f"`{name}` must be a finite number, not {value}")


def _check_logit_bias(logit_bias: Sequence[tuple[int, float]], vocab_size: int) -> None:
    if len(logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"`logit_bias` holds {len(logit_bias)} entries, more than {MAX_LOGIT_BIAS}")
    ids = {token for token, _ in logit_bias}
    if len(ids) != len(logit_bias):
        raise InvalidRequest("`logit_bias` must hold each token id at most once")
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise InvalidRequest(f"`logit_bias` must name token ids below the vocabulary size {vocab_size}")
    for token, bias in logit_bias:
        if not math.isfinite(bias):
            raise InvalidRequest(f"`logit_bias` of token {token} must be a finite number, not {bias}")
