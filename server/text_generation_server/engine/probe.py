"""Runs the steps that need the most memory, before the pool exists, so that the pool can take exactly what is left."""

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from text_generation_kernels import compile_only, padded_batch

from ..config.server import WatermarkConfig
from ..distributed import TensorParallelGroup
from ..models.base import CausalLM
from .budget import MemoryBudget
from .graphs import GraphSizes, chunk_sizes, decode_sizes, forward_sizes
from .kv_pool import allocate_pool, bytes_per_row, bytes_per_slot
from .mask_pool import MaskPool, mask_bytes
from .memory import Memory
from .options import EngineOptions
from .replies import LaunchedStep
from .requests import (
    Chunk,
    MaskForm,
    MaskWrite,
    NextTokenChooserParameters,
    Request,
    ServingLimits,
    SlotRange,
    StepMasks,
    StepPlan,
    WarmupLimits,
)
from .rows import RowTable
from .runner import RunnerOptions, StepRunner
from .running import PlanChecker
from .sampling import Sampler
from .sampling_state import SamplingState

CPU_POOL_FRACTION = 0.5
"""Part of the host's available memory that the pools of all ranks together take by themselves."""
_MOST_SLOTS = 2**31 - 2
"""Numbers of slots, and one more of the padding, have 32 bits."""
_REHEARSED_POSITIONS = 65_536
"""Length of rows in a rehearsal: scratch memory of a longer context is no larger."""
_CHUNK_LENGTHS = (1, 17, 33, 65, 200, 512, 2048)
"""Tokens of chunks between which kernels differ: products are made for 16, 32 and 64 tokens, attention for chunks about
as long as these, where 512 and more may have a kernel of their own."""
_MEASURED_GRAPHS = 12
"""About so many are captured to learn what all of them take."""
_DRIVER_PIECE = 32 << 20
"""Bytes by which the memory of a driver for graphs grows, at most."""
_EVERYTHING = NextTokenChooserParameters(
    temperature=0.9,
    top_k=10,
    top_p=0.9,
    typical_p=0.9,
    min_p=0.01,
    do_sample=True,
    repetition_penalty=1.2,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    logit_bias=((0, 1.0),),
    watermark=True,
)


class Probe:
    """Measures what serving will need; builds the runners for it. Lives during Warmup.

    `alone`: as in `InputBuilder`.
    """

    def __init__(
        self,
        model: CausalLM,
        group: TensorParallelGroup,
        memory: Memory,
        asked: WarmupLimits,
        max_masks: int,
        eos_token_ids: Sequence[int],
        watermark: WatermarkConfig,
        options: EngineOptions,
        alone: bool,
    ) -> None:
        self._model = model
        self._group = group
        self._memory = memory
        self._asked = asked
        self._max_masks = max_masks
        self._eos_token_ids = eos_token_ids
        self._watermark = watermark
        self._options = options
        self._runner_options = RunnerOptions(options.deterministic, alone, details=group.rank == 0)
        self._is_cuda = model.device.type == "cuda"
        self.budget: MemoryBudget | None = None
        """Of a device, once it is measured."""

    @property
    def graph_sizes(self) -> GraphSizes:
        """Steps that get a graph; none on a CPU."""
        asked, given = self._asked, self._options.cuda_graphs
        if not self._is_cuda:
            return GraphSizes()
        decodes = decode_sizes(asked.max_batch_size)
        if given is not None:
            decodes = sorted(size for size in given if size <= asked.max_batch_size)
        if not decodes:
            return GraphSizes()
        most = asked.max_batch_prefill_tokens + asked.max_batch_size
        tokens = chunk_sizes(most, self._model.dense_macs)
        return GraphSizes(decodes, forward_sizes(decodes), tokens)

    def build_runner(self, limits: ServingLimits) -> StepRunner:
        """Rows, pool and sampler of the given sizes around the model."""
        model, num_rows, num_slots = self._model, limits.max_batch_size, limits.max_batch_total_tokens
        model.reserve_positions(limits.max_total_tokens)
        recurrent = bool(model.states)
        checker = PlanChecker(limits, self._asked.max_batch_prefill_tokens, model.vocab_size, recurrent)
        table = RowTable(num_rows, limits.max_total_tokens, num_slots, model.device)
        sampling = SamplingState(num_rows + 1, model.vocab_size, model.device, self._eos_token_ids)
        masks = MaskPool(self._max_masks, model.vocab_size, model.device)
        sampler = Sampler(sampling, masks, self._watermark, model.vocabulary, self._group)
        pool = allocate_pool(model, num_slots, num_rows)
        return StepRunner(model, self._group, checker, table, pool, sampling, masks, sampler, self._runner_options)

    def fitting_slots(self, copies: int = 0) -> int:
        """Slots that fit on this rank beside everything else, or that it takes by itself if nothing is asked. `copies`:
        bytes of weights that are still to be made. A device is measured at the first call.
        """
        asked = self._asked
        chosen = asked.max_batch_total_tokens is not None
        if not self._memory.shared:
            self.budget = replace(self.budget or self._measured(), copies=copies)
            return self._slots_in(self.budget.room(chosen))
        available = self._memory.free() // self._group.local_world_size - copies - self._state_bytes
        if chosen:
            return self._slots_in(available)
        longest = asked.max_total_tokens or self._model.max_context_length
        return min(self._slots_in(int(available * CPU_POOL_FRACTION)), asked.max_batch_size * longest)

    def compile_ahead(self) -> None:
        """Compiles the kernels that serving needs, side by side, before any of them runs: one after the other they take
        some 20 s. Those that are in Triton's cache on disk are loaded from there.
        """
        if not self._is_cuda:
            return
        runner = self.build_runner(self._rehearsed())
        with compile_only(len(os.sched_getaffinity(0))):
            self.run_every_kernel(runner)

    def run_every_kernel(self, runner: StepRunner) -> None:
        """Runs steps of few and of many requests, short and long, so that every kernel that serving needs is compiled
        and loaded by then, with graphs or without. Call it before graphs are captured.

        Attention is compiled for ranges of the number of requests and chooses tiles by the longest chunk; other
        kernels are compiled for numbers rounded up to a power of two.
        """
        if not self._is_cuda:
            return
        limits = runner.checker.limits
        rows = limits.max_batch_size
        padding = torch.full((rows,), runner.table.padding_row, dtype=torch.int64, device=self._model.device)
        for size in (1, *((1 << power) + 1 for power in range(rows.bit_length()) if 1 << power < rows)):
            runner.decode_rows(padding[:size], limits.max_total_tokens)
        tokens = min(self._asked.max_batch_prefill_tokens, limits.max_batch_total_tokens)
        requests, most = 1, min(rows, tokens)
        while requests <= most:
            # One long chunk among many short ones chooses the tiles for all.
            longest = min(limits.max_input_tokens, tokens - requests + 1)
            alike = min(padded_batch(requests), most)
            for length in sorted({min(length, longest) for length in _CHUNK_LENGTHS}):
                _run(runner, [length, *[1] * (requests - 1)], scored=requests == 1)
                # Where a few tiles share a long prefix among programs, many have no need to.
                if requests < (full := min(alike, tokens // length)):
                    _run(runner, [length] * full)
            # The smallest number that the kernels tell apart from these.
            requests = padded_batch(requests) + 1
        if rows > 1 and tokens > 1:
            _run(runner, [min(16, tokens // 2)], decodes=1)
        _run(runner, [1], constrained=True)
        torch.cuda.synchronize(self._model.device)

    @property
    def _state_bytes(self) -> int:
        """What rows take in recurrent layers, that of the padding included."""
        return (self._asked.max_batch_size + 1) * bytes_per_row(self._model)

    def _slots_in(self, room: int) -> int:
        """Slots that fit into so many bytes beside rows, masks, and the tables of as many positions as a request may
        have: what was asked for, or the model's, or, where the pool is smaller than that, all of the pool.
        """
        model, num_rows = self._model, self._asked.max_batch_size
        per_slot = bytes_per_slot(model)
        per_position = RowTable.bytes_per_position(num_rows) + model.bytes_per_position
        # One slot more belongs to the pool: that of the padding.
        room -= (num_rows + 1) * SamplingState.bytes_per_row(model.vocab_size) + per_slot
        room -= self._max_masks * mask_bytes(model.vocab_size)
        positions = self._asked.max_total_tokens or model.max_context_length
        if not per_slot:
            # Only the table of slots takes room: as many as all rows can have.
            return min(num_rows * min(positions, max(0, room) // per_position), _MOST_SLOTS)
        slots = max(0, room - positions * per_position) // per_slot
        if self._asked.max_total_tokens is None and slots < positions:
            slots = max(0, room) // (per_slot + per_position)
        return min(slots, _MOST_SLOTS)

    def _rehearsed(self) -> ServingLimits:
        """Limits of a rehearsal: rows as asked for, and slots for the largest step alone."""
        asked = self._asked
        longest = asked.max_total_tokens or min(self._model.max_context_length, _REHEARSED_POSITIONS)
        slots = asked.max_batch_prefill_tokens + 2 * asked.max_batch_size
        return ServingLimits(slots, min(asked.longest_prompt(longest), longest - 1), longest, asked.max_batch_size)

    def _measured(self) -> MemoryBudget:
        """Runs the largest steps and reads what they take. Nothing of them is left when this returns."""
        memory = self._memory
        self._model.reserve_positions(0)
        memory.release()
        weights = memory.held()
        step, others, graphs = self._run_largest_steps()
        self._model.reserve_positions(0)
        memory.release()
        fraction = self._options.memory_fraction
        return MemoryBudget(memory.name, memory.total(), fraction, others, weights, step, graphs, self._state_bytes)

    def _run_largest_steps(self) -> tuple[int, int, int]:
        """As many prompt tokens as a step may have, with log-probabilities of every one, beside decodes of all other
        rows; then decodes of all rows.

        Returns the bytes that they need beside weights, rows and pool, those that others than the allocator have taken
        by then, and those that graphs will take. A driver keeps what it has taken for graphs that are gone.
        """
        asked, memory, limits = self._asked, self._memory, self._rehearsed()
        lengths = _split(asked.max_batch_prefill_tokens, limits.max_input_tokens)[: asked.max_batch_size]
        runner = self.build_runner(limits)
        memory.release()
        memory.begin_peak()
        held = memory.held()
        _run(runner, lengths, asked.max_batch_size - len(lengths), scored=True)
        padding = torch.full(
            (asked.max_batch_size,), runner.table.padding_row, dtype=torch.int64, device=self._model.device
        )
        runner.decode_rows(padding, limits.max_total_tokens)
        step = memory.peak() - held
        memory.release()
        others = self._used() - memory.held()
        return step, others, self._graph_bytes(runner)

    def _graph_bytes(self, runner: StepRunner) -> int:
        """The largest graphs bring the memory that all share. What the others take is measured with some of each kind:
        drivers take memory in pieces that hold several.
        """
        sizes = self.graph_sizes
        if not sizes.count:
            return 0
        largest, some = sizes.every(sizes.count), sizes.every(max(1, sizes.count // _MEASURED_GRAPHS))
        none, first = (self._used_by_graphs(runner, each) for each in (GraphSizes(), largest))
        if (measured := some.count - largest.count) == 0:
            return max(0, first - none)
        more = max(0, self._used_by_graphs(runner, some) - first)
        others = sizes.count - largest.count
        if measured < others:
            more += _DRIVER_PIECE
        return max(0, first - none) + more * others // measured

    def _used_by_graphs(self, runner: StepRunner, sizes: GraphSizes) -> int:
        """Bytes of the device in use, by this process and others, once graphs of these sizes are captured."""
        runner.capture(sizes)
        self._memory.release()
        return self._used()

    def _used(self) -> int:
        return self._memory.total() - self._memory.free()


def _run(
    runner: StepRunner, lengths: Sequence[int], decodes: int = 0, scored: bool = False, constrained: bool = False
) -> LaunchedStep:
    """One step with a chunk of each of these lengths, whole prompts of requests that ask for everything, beside so many
    decodes. Their rows are free again afterwards. `scored`: also for log-probabilities of the prompts. `constrained`:
    all choose under a mask.
    """
    rows = list(range(len(lengths), len(lengths) + decodes))
    slot = sum(lengths)
    at_once = runner.checker.max_batch_prefill_tokens
    for first in range(0, decodes, at_once):
        part = rows[first : first + at_once]
        admit = [_dummy(row, 1, slot + 2 * (row - len(lengths)), 2, False) for row in part]
        runner.launch(StepPlan(0, admit=admit, chunks=[Chunk(row, 0, 1) for row in part]))
    admit, slot = [], 0
    for row, length in enumerate(lengths):
        admit.append(_dummy(row, length, slot, length, scored))
        slot += length
    chunks = [Chunk(row, 0, length) for row, length in enumerate(lengths)]
    choosing = [*rows, *range(len(lengths))] if constrained else []
    mask = MaskWrite(1, MaskForm.ONLY, np.zeros(1, dtype=np.int64))
    step = runner.launch(
        StepPlan(0, admit=admit, chunks=chunks, decode=rows, constrained=choosing),
        lambda number: StepMasks(number, [mask], choosing, [1] * len(choosing)),
    )
    runner.launch(StepPlan(0, drop=range(len(lengths) + decodes)))
    return step


def _split(total: int, largest: int) -> list[int]:
    """`total` as a sum of parts of at most `largest`."""
    full, rest = divmod(total, largest)
    return [largest] * full + ([rest] if rest else [])


def _dummy(row: int, length: int, first_slot: int, num_slots: int, scored: bool) -> Request:
    return Request(
        id=row,
        row=row,
        input_ids=np.zeros(length, dtype=np.int64),
        parameters=_EVERYTHING,
        slots=(SlotRange(first_slot, num_slots),),
        prefill_logprobs=scored,
        top_n_tokens=5,
    )
