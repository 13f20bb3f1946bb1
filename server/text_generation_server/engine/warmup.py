"""Warm-up: checks the operator's limits against the model, sizes the KV pool, and prepares all that serving needs."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from text_generation_kernels import compilations

from ..config.server import WatermarkConfig
from ..distributed.group import NEVER_OVERLAPPED, TensorParallelGroup
from ..errors import EngineFailed, InvalidRequest, OutOfMemory
from ..models.base import CausalLM
from ..telemetry import Progress
from .adapter_probe import AdapterProbe
from .adapter_store import AdapterStore
from .budget import MemoryBudget, gib
from .copies import fitting_slots
from .cost import Shape, fit, measure, shapes, window_costs, window_shapes
from .kv_pool import bytes_per_row, bytes_per_slot
from .mask_pool import fitting_masks
from .media_cost import measured_media_cost
from .media_requests import MediaCost, MediaInfo
from .memory import Memory, is_out_of_memory
from .options import EngineOptions
from .probe import Probe
from .requests import ServingLimits, StepCost, WarmupLimits, WarmupResult
from .runner import StepRunner

MAX_ROWS = 32_768
"""Upper bound of rows, which the grids of kernels set."""
MASKS_FRACTION = 256
"""Masks take at most 1 / `MASKS_FRACTION` of the device's memory."""
_OVERLAP_TOKENS = 2048
"""Tokens of the step that is timed in overlapped halves and whole."""
_HALVES_OF_TWO, _HALVES_OF_MORE = 1.01, 0.95
"""The longest time of a step in overlapped halves, with two ranks and with more, as a multiple of the whole step. With
two ranks, times differ by this from run to run. With more, each half is copied to every other rank, and these copies
take longer in some steps than in the few that are timed (docs/lab/2026-11-four-cards.md).
"""
_REMEDY = "lower --max-batch-prefill-tokens or --max-batch-size, or use more shards (--num-shard)"

logger = logging.getLogger(__name__)


def warm_up(
    model: CausalLM,
    group: TensorParallelGroup,
    memory: Memory,
    asked: WarmupLimits,
    eos_token_ids: Sequence[int],
    watermark: WatermarkConfig,
    options: EngineOptions,
    alone: bool,
    media: MediaInfo | None,
    store: AdapterStore,
) -> tuple[WarmupResult, StepRunner]:
    """Derives the limits that are unset, allocates pool and rows, compiles kernels, captures CUDA graphs and measures
    what steps cost. `alone` has the meaning of `InputBuilder`; `media` is None where none is served; `store` has the
    adapters that are loaded.

    All ranks reach the same numbers, or the same error. Raises `InvalidRequest` for limits that contradict each other
    or the model, and `OutOfMemory` for limits that do not fit. Where one rank of several runs out of memory, it raises
    `EngineFailed` instead, because the others wait in a collective.
    """
    check_limits(asked, model.max_context_length)
    # They are there before the rest is measured, which they leave less room for.
    adapters = AdapterProbe.of(model, store, asked, group)
    free = memory.free() // (group.local_world_size if memory.shared else 1)
    check_states(asked.max_batch_size, bytes_per_row(model), group.min_int(free))
    max_masks = group.min_int(fitting_masks(model.vocab_size, memory.total() // MASKS_FRACTION))
    probe = Probe(model, group, memory, asked, max_masks, eos_token_ids, watermark, options, alone, media, adapters)
    try:
        limits, (cost, media_cost), runner = _prepare(model, group, memory, asked, probe, options)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        memory.release()
        message = shortage(asked, probe.budget, memory)
        raise (OutOfMemory(message) if group.world_size == 1 else EngineFailed(message)) from error
    overlapped_halves = group.overlapped_bytes != NEVER_OVERLAPPED
    return WarmupResult(limits, cost, runner.graph_tokens, max_masks, overlapped_halves, media_cost), runner


def _prepare(
    model: CausalLM,
    group: TensorParallelGroup,
    memory: Memory,
    asked: WarmupLimits,
    probe: Probe,
    options: EngineOptions,
) -> tuple[ServingLimits, tuple[StepCost, MediaCost], StepRunner]:
    """Does the parts of warm-up that take memory. Each gives back what it leaves unused before the next."""
    clock = _Stopwatch(parts=5)
    probe.compile_ahead()
    clock.lap("compiling_s")
    fitting = fitting_slots(model, group, probe, asked, options)
    limits = derive_limits(asked, model.max_context_length, fitting, probe.budget, bytes_per_slot(model))
    clock.lap("measuring_s")
    runner = probe.build_runner(limits)
    probe.run_every_kernel(runner)
    memory.release()
    clock.lap("loading_s")
    runner.capture(probe.graph_sizes)
    memory.release()
    clock.lap("capturing_s")
    choose_overlap(runner, group, asked)
    cost, media_cost = StepCost(), MediaCost()
    if not asked.regained:
        cost = measured_cost(runner, group, model.device)
        if runner.media is not None and model.encoder is not None:
            media_cost = measured_media_cost(model.encoder, group, asked.max_media_pixels, model.device)
    memory.release()
    clock.lap("timing_s")
    logger.info(
        "warmed up",
        extra={
            "max_batch_total_tokens": limits.max_batch_total_tokens,
            "cuda_graphs": probe.graph_sizes.count,
            "kernels": compilations(),
            **({} if probe.budget is None else probe.budget.fields()),
            "free_gib": round(memory.free() / 2**30, 2),
            **clock.laps,
        },
    )
    return limits, (cost, media_cost), runner


def shortage(asked: WarmupLimits, budget: MemoryBudget | None, memory: Memory) -> str:
    """Returns the message of an out-of-memory error in warm-up. `budget` is None until the largest steps have run."""
    step = f"--max-batch-prefill-tokens {asked.max_batch_prefill_tokens} and --max-batch-size {asked.max_batch_size}"
    if budget is None:
        held, free = gib(memory.held()), gib(memory.free())
        known = f": {memory.name} has {gib(memory.total())}, of which weights take {held} and {free} are free"
        return (
            f"not enough memory for a batch of {step}{'' if memory.shared else known}; lower them, or use more shards "
            "(--num-shard)"
        )
    return f"not enough memory for what a batch of {step} takes beside the KV pool: {budget}; {_REMEDY}"


def measured_cost(runner: StepRunner, group: TensorParallelGroup, device: torch.device) -> StepCost:
    """Measures what steps within the limits cost on the slowest rank."""
    limits, max_prefill = runner.checker.limits, runner.checker.max_batch_prefill_tokens
    repetitions, budget_s = (3, 10.0) if device.type == "cuda" else (2, 0.2)
    samples = measure(runner, group, shapes(limits, max_prefill), repetitions, budget_s)
    cost = fit(samples, max_prefill + limits.max_batch_size)
    wanted = window_shapes(limits, runner.widths) if runner.widths else []
    samples = measure(runner, group, wanted, repetitions, budget_s)
    # On a slow machine widths would be compared by times that were not measured.
    return replace(cost, windows=window_costs(samples)) if len(samples) == len(wanted) else cost


def choose_overlap(runner: StepRunner, group: TensorParallelGroup, asked: WarmupLimits) -> None:
    """Switches overlapped halves off where a step in halves takes longer than a whole step on the slowest rank: with
    more ranks, a half is sent more often, beside GEMMs that take less time. Shards that start again repeat the choice
    of the earlier start. All ranks call it together.
    """
    overlapped_bytes = group.overlapped_bytes
    if asked.regained and not asked.overlapped_halves:
        group.overlapped_bytes = NEVER_OVERLAPPED
    if asked.regained or overlapped_bytes == NEVER_OVERLAPPED:
        return
    limits = runner.checker.limits
    longest = min(limits.max_input_tokens, runner.checker.max_batch_prefill_tokens, limits.max_batch_total_tokens - 1)
    step = [Shape(chunk=min(_OVERLAP_TOKENS, longest))]
    (halves,) = measure(runner, group, step, repetitions=3, budget_s=math.inf)
    group.overlapped_bytes = NEVER_OVERLAPPED
    (whole,) = measure(runner, group, step, repetitions=3, budget_s=math.inf)
    if halves.ms < whole.ms * (_HALVES_OF_TWO if group.world_size == 2 else _HALVES_OF_MORE):
        group.overlapped_bytes = overlapped_bytes
    logger.info(
        "timed a step in overlapped halves and whole",
        extra={"tokens": step[0].tokens, "halves_ms": halves.ms, "whole_ms": whole.ms},
    )


class _Stopwatch:
    """Measures the seconds of each part of warm-up, and reports progress."""

    def __init__(self, parts: int) -> None:
        self.laps: dict[str, float] = {}
        self._parts = parts
        self._progress = Progress(logger, "warming up", "warming up")
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Ends the part that is called `name`."""
        now = time.perf_counter()
        self.laps[name] = round(now - self._last, 2)
        self._last = now
        self._progress.report(len(self.laps), self._parts)


def check_limits(asked: WarmupLimits, max_positions: int) -> None:
    """Raises `InvalidRequest` for limits that no amount of memory can meet."""
    if not 1 <= asked.max_batch_size <= MAX_ROWS:
        raise InvalidRequest(f"--max-batch-size must be at least 1 and at most {MAX_ROWS}")
    if asked.max_batch_prefill_tokens < 1:
        raise InvalidRequest("--max-batch-prefill-tokens must be at least 1")
    for flag, value, least in (
        ("--max-input-tokens", asked.max_input_tokens, 1),
        ("--max-total-tokens", asked.max_total_tokens, 2),
        ("--max-batch-total-tokens", asked.max_batch_total_tokens, 2),
    ):
        if value is not None and value < least:
            raise InvalidRequest(f"{flag} must be at least {least}")
    if asked.max_total_tokens is not None and asked.max_total_tokens > max_positions:
        raise InvalidRequest(
            f"--max-total-tokens {asked.max_total_tokens} is more than the {max_positions} positions of the model; "
            f"lower it to at most {max_positions}, or set --rope-scaling and --rope-factor"
        )
    too_long = asked.max_input_tokens is not None and asked.max_input_tokens > asked.max_batch_prefill_tokens
    if too_long and not asked.prefill_chunking:
        raise InvalidRequest(
            f"--max-batch-prefill-tokens {asked.max_batch_prefill_tokens} must be at least --max-input-tokens "
            f"{asked.max_input_tokens}: without chunks a prompt is computed in one step"
        )


def check_states(max_batch_size: int, row_bytes: int, free: int) -> None:
    """Raises `OutOfMemory` where the states of so many rows, and the padding row, do not fit into `free` bytes."""
    if (needed := (max_batch_size + 1) * row_bytes) < free or not row_bytes:
        return
    most = free // row_bytes - 2
    remedy = f"lower --max-batch-size to at most {most}, or " if most > 0 else ""
    raise OutOfMemory(
        f"the states of {max_batch_size} requests take {gib(needed)}, and {gib(free)} are free: {remedy}use more "
        "shards (--num-shard)"
    )


def derive_limits(
    asked: WarmupLimits,
    max_positions: int,
    fitting_slots: int,
    budget: MemoryBudget | None = None,
    slot_bytes: int = 0,
) -> ServingLimits:
    """Derives the limits that are unset. `fitting_slots` slots fit on every rank. The messages use `budget`, this
    rank's memory, and `slot_bytes`, the bytes of a slot.

    Raises `OutOfMemory` naming the flag and the number that would fit.
    """

    def out_of_memory(message: str, wanted: int) -> OutOfMemory:
        if budget is None:
            return OutOfMemory(message)
        missing = (wanted - fitting_slots) * slot_bytes
        # Where not even rows fit, their bytes are missing too.
        missing -= min(0, budget.room(asked.max_batch_total_tokens is not None))
        return OutOfMemory(f"{message}. {gib(missing)} are missing: {budget}")

    pool = asked.max_batch_total_tokens or fitting_slots
    if pool > fitting_slots:
        message = f"not enough memory for --max-batch-total-tokens {pool}; lower it to at most {fitting_slots}"
        raise out_of_memory(message, pool)
    if pool < 2:
        message = f"the memory left holds {pool} KV slots, and a request needs at least 2; {_REMEDY}"
        raise out_of_memory(message, 2)
    max_total = asked.max_total_tokens or min(max_positions, pool)
    if max_total > pool:
        if asked.max_batch_total_tokens is not None:
            raise InvalidRequest(f"--max-batch-total-tokens {pool} must be at least --max-total-tokens {max_total}")
        message = f"not enough memory for --max-total-tokens {max_total}; lower it to at most {pool}"
        raise out_of_memory(message, max_total)
    max_input = asked.longest_prompt(max_total)
    if max_input >= max_total:
        raise InvalidRequest(f"--max-input-tokens {max_input} must be below --max-total-tokens {max_total}")
    return ServingLimits(pool, max_input, max_total, asked.max_batch_size)
