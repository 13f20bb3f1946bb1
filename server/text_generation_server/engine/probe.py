"""Runs the steps that need the most memory before the KV pool exists, so that the pool can take what is left."""

import os
from collections.abc import Sequence
from dataclasses import replace

import torch

from text_generation_kernels import LaunchOrderError, compile_only, padded_batch

from ..config.server import WatermarkConfig
from ..distributed import TensorParallelGroup
from ..errors import EngineFailed
from ..models.base import CausalLM
from .adapter_probe import AdapterProbe
from .adapter_store import AdapterStore
from .budget import MemoryBudget
from .context_plan import context_bytes
from .drafting import Drafting
from .dummy_steps import run_step
from .graphs import GraphSizes, chunk_sizes, decode_sizes, forward_sizes
from .kv_pool import allocate_pool, bytes_per_row, bytes_per_slot, bytes_per_window_token, shared_heads
from .mask_pool import MaskPool, mask_bytes
from .media_probe import MediaProbe
from .media_requests import MediaInfo
from .memory import Memory
from .options import EngineOptions
from .requests import (
    ServingLimits,
    WarmupLimits,
)
from .rows import RowTable
from .runner import RunnerOptions, StepRunner
from .running import PlanChecker
from .sampling import Sampler
from .sampling_state import SamplingState
from .speculation import Speculation
from .widths import MAX_WINDOW_TOKENS, WidthChecker, most_window_tokens, window_widths
from .window_graphs import forward_window_sizes, window_sizes, window_token_sizes

CPU_POOL_FRACTION = 0.5
"""Fraction of the host's available memory that the pools of all ranks together take where no flag gives their size."""
_MOST_SLOTS = 2**31 - 2
"""Upper bound of slots: their numbers, and that of the padding slot, have 32 bits."""
_PROBE_POSITIONS = 65_536
"""Length of rows while probing: the scratch memory of longer contexts is no larger."""
_CHUNK_LENGTHS = (1, 17, 33, 65, 200, 512, 2048)
"""Lengths of chunks that reach different kernels: GEMMs have variants for 16, 32 and 64 tokens, and attention for
chunks of about these lengths; 512 and more may have a kernel of their own."""
_MEASURED_GRAPHS = 12
"""Number of graphs that are captured to estimate the memory of all."""
_DRIVER_PIECE = 32 << 20
"""The largest piece in bytes by which the driver's memory for graphs grows."""


class Probe:
    """Measures the memory that serving will need, and builds runners. It lives during Warmup. `alone` has the meaning
    of `InputBuilder`.
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
        media: MediaInfo | None = None,
        adapters: AdapterProbe | None = None,
    ) -> None:
        self._media = MediaProbe.of(model, media, asked)
        self._adapters = adapters or AdapterProbe(AdapterStore())
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
        """The budget of a CUDA device, once it is measured."""

    @property
    def graph_sizes(self) -> GraphSizes:
        """The sizes of steps that get a CUDA graph; none on a CPU."""
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
        if self._model.classes:
            # Nothing decodes.
            return GraphSizes(tokens=tokens)
        sizes = GraphSizes(
            decodes,
            forward_sizes(decodes),
            tokens,
            windows={width: window_sizes(width, decodes) for width in self._widths},
            forward_windows={width: forward_window_sizes(width, decodes) for width in self._widths},
            window_tokens={width: window_token_sizes(width, tokens) for width in self._widths},
        )
        return sizes if self._adapters.pool is None else sizes.with_adapters()

    @property
    def _widths(self) -> tuple[int, ...]:
        return window_widths(self._options.speculate)

    def build_runner(self, limits: ServingLimits) -> StepRunner:
        """Builds a runner of the model with rows, pool and sampler of the given sizes."""
        model, num_rows, num_slots = self._model, limits.max_batch_size, limits.max_batch_total_tokens
        model.reserve_positions(limits.max_total_tokens)
        recurrent = bool(model.states)
        at_once, media = self._asked.max_batch_prefill_tokens, self._media
        adapters, widths = self._adapters.checker(), WidthChecker(self._widths)
        keeps = model.drafter is not None and self._options.speculate > 0 and model.drafter.keeps_pairs
        checkers = media.checker(), adapters, widths
        checker = PlanChecker(limits, at_once, model.vocab_size, recurrent, *checkers, keeps, model.classes > 0)
        table = RowTable(num_rows, limits.max_total_tokens, num_slots, model.device, media.axes)
        sampling = SamplingState(
            *(num_rows + 1, model.vocab_size, model.device, self._eos_token_ids), max(self._widths, default=1)
        )
        masks = MaskPool(self._max_masks, model.vocab_size, model.device)
        sampler = Sampler(sampling, masks, self._watermark, model.vocabulary, self._group)
        pool = allocate_pool(model, num_slots, num_rows, self._window_tokens)
        parts = (table, pool, sampling, masks, sampler)
        speculation, most = None, self._options.speculate
        if most:
            drafter = model.drafter
            drafting = None if drafter is None else Drafting(drafter, model, pool, self._most_tokens)
            speculation = Speculation(table, most, sampling.columns, drafting)
        others = media.pool(), speculation, self._adapters.of_runner(adapters)
        return StepRunner(model, self._group, checker, *parts, self._runner_options, *others)

    def fitting_slots(self, copies: int = 0) -> int:
        """Returns the slots that fit on this rank besides everything else. `copies` are the bytes of 16-bit copies that
        are still to be made. The first call measures a CUDA device.
        """
        asked = self._asked
        chosen = asked.max_batch_total_tokens is not None
        if not self._memory.shared:
            self.budget = replace(self.budget or self._measured(), copies=copies)
            return self._slots_in(self.budget.room(chosen))
        available = self._memory.free() // self._group.local_world_size - copies - self._state_bytes
        available -= self._media.num_bytes
        if chosen:
            return self._slots_in(available)
        longest = asked.max_total_tokens or self._model.max_context_length
        return min(self._slots_in(int(available * CPU_POOL_FRACTION)), asked.max_batch_size * longest)

    def compile_ahead(self) -> None:
        """Compiles the kernels that serving needs in parallel, before any of them runs (the compile dry run). One after
        the other, they take some 20 s. Triton loads those that its cache on disk holds. Raises `EngineFailed` where a
        kernel would read early what an earlier one may still be writing.
        """
        if not self._is_cuda:
            return
        runner = self.build_runner(self._probe_limits())
        try:
            with compile_only(len(os.sched_getaffinity(0))):
                self.run_every_kernel(runner)
        except LaunchOrderError as error:
            remedy = "report this with config.json, and start with --attention torch, which launches no such kernels"
            raise EngineFailed(f"{error}; {remedy}") from error

    def run_every_kernel(self, runner: StepRunner) -> None:
        """Runs steps of few and of many requests, short and long, so that every kernel variant that serving needs is
        compiled and loaded, with graphs or without. Call it before graphs are captured.

        Attention has variants for ranges of the number of requests, and chooses tiles by the longest chunk; other
        kernels have variants for numbers rounded up to a power of two.
        """
        if not self._is_cuda:
            return
        limits = runner.checker.limits
        rows = limits.max_batch_size
        padding = torch.full((rows,), runner.table.padding_row, dtype=torch.int64, device=self._model.device)
        for size in (1, *((1 << power) + 1 for power in range(rows.bit_length()) if 1 << power < rows)):
            for adapter in self._adapters.numbers:
                runner.decode_rows(padding[:size], limits.max_total_tokens, adapter)
            for width in self._widths:
                if size * width <= MAX_WINDOW_TOKENS:
                    for adapter in self._adapters.numbers:
                        runner.decode_windows(padding[:size], width, limits.max_total_tokens, adapter)
        self._media.encode_samples()
        for adapter in self._adapters.numbers:
            self._run_chunks(runner, adapter)
        if runner.checker.media.has_own_matrices:
            runner.rehearses_media = True
            self._run_chunks(runner, 0)
            runner.rehearses_media = False
        torch.cuda.synchronize(self._model.device)

    def _run_chunks(self, runner: StepRunner, adapter: int) -> None:
        """Does the part of `run_every_kernel` that has prompts, whose requests use `adapter`."""
        limits = runner.checker.limits
        rows = limits.max_batch_size
        tokens = min(self._asked.max_batch_prefill_tokens, limits.max_batch_total_tokens)
        requests, most = 1, min(rows, tokens)
        while requests <= most:
            # One long chunk among many short ones chooses the tiles for all.
            longest = min(limits.max_input_tokens, tokens - requests + 1)
            alike = min(padded_batch(requests), most)
            for length in sorted({min(length, longest) for length in _CHUNK_LENGTHS}):
                run_step(runner, [length, *[1] * (requests - 1)], scored=requests == 1, adapter=adapter)
                # Few tiles split a long prefix among thread blocks; many tiles need not.
                if requests < (full := min(alike, tokens // length)):
                    run_step(runner, [length] * full, adapter=adapter)
            # This is the smallest number with other kernel variants.
            requests = padded_batch(requests) + 1
        if rows > 1 and tokens > 1:
            for width in (1, *self._widths):
                run_step(runner, [min(16, tokens // 2)], decodes=1, adapter=adapter, width=width)
        run_step(runner, [1], constrained=True, adapter=adapter)

    @property
    def _most_tokens(self) -> int:
        """The most tokens of a step: where a drafter reads them, each chunk may have one more."""
        decodes = max(self._asked.max_batch_size, MAX_WINDOW_TOKENS if self._widths else 0)
        return self._asked.max_batch_prefill_tokens + self._asked.max_batch_size + decodes

    @property
    def _state_bytes(self) -> int:
        """Bytes of all rows in recurrent layers, the padding row included, and of what these read of windows."""
        rows = (self._asked.max_batch_size + 1) * bytes_per_row(self._model)
        return rows + self._window_tokens * bytes_per_window_token(self._model)

    @property
    def _window_tokens(self) -> int:
        """The most tokens that the windows of a step have together."""
        return most_window_tokens(self._options.speculate, self._asked.max_batch_size)

    def _slots_in(self, room: int) -> int:
        """Returns the slots that fit into `room` bytes besides rows, masks and the tables of positions. A request may
        have as many positions as the operator asked for, or the model has, or, where that is fewer, the pool holds.
        """
        model, num_rows = self._model, self._asked.max_batch_size
        per_slot = bytes_per_slot(model)
        per_position = RowTable.bytes_per_position(num_rows) + model.bytes_per_position
        if shared_heads(model):
            # The slots of this rank, of a step and of graphs.
            per_position += 2 * RowTable.bytes_per_position(num_rows)
        if self._widths:
            per_position += Speculation.bytes_per_position(num_rows)
        # The pool has one slot more, for padding.
        room -= (num_rows + 1) * SamplingState.bytes_per_row(model.vocab_size) + per_slot
        room -= self._max_masks * mask_bytes(model.vocab_size)
        room -= Drafting.num_bytes(model, self._most_tokens, num_rows)
        room -= context_bytes(model, self._asked.max_batch_prefill_tokens)
        positions = self._asked.max_total_tokens or model.max_context_length
        if not per_slot:
            # Only the table of slots takes memory, so every row gets all its positions.
            return min(num_rows * min(positions, max(0, room) // per_position), _MOST_SLOTS)
        slots = max(0, room - positions * per_position) // per_slot
        if self._asked.max_total_tokens is None and slots < positions:
            slots = max(0, room) // (per_slot + per_position)
        return min(slots, _MOST_SLOTS)

    def _probe_limits(self) -> ServingLimits:
        """Returns the limits while probing: rows as the operator asked for, and slots for the largest step alone."""
        asked = self._asked
        longest = asked.max_total_tokens or min(self._model.max_context_length, _PROBE_POSITIONS)
        slots = asked.max_batch_prefill_tokens + 2 * asked.max_batch_size
        return ServingLimits(slots, min(asked.longest_prompt(longest), longest - 1), longest, asked.max_batch_size)

    def _measured(self) -> MemoryBudget:
        """Runs the largest steps and measures their memory, of which it releases everything."""
        memory = self._memory
        self._model.reserve_positions(0)
        memory.release()
        adapters = self._adapters.num_bytes
        weights = memory.held() - adapters
        encoding = self._media.encode_largest(memory)
        step, others, graphs = self._run_largest_steps()
        self._model.reserve_positions(0)
        memory.release()
        fraction = self._options.memory_fraction
        parts = (others, weights, step, graphs, self._state_bytes)
        return MemoryBudget(
            memory.name, memory.total(), fraction, *parts, media=self._media.num_bytes + encoding, adapters=adapters
        )

    def _run_largest_steps(self) -> tuple[int, int, int]:
        """Runs a step with as many prompt tokens as a step may have, with log-probabilities of every token, and decodes
        of all other rows; then decodes of all rows.

        Returns the bytes that they need besides weights, rows and pool, the bytes that others than the allocator have
        taken by then, and the bytes that graphs will take. A driver keeps the memory of graphs that are gone.
        """
        asked, memory, limits = self._asked, self._memory, self._probe_limits()
        lengths = _split(asked.max_batch_prefill_tokens, limits.max_input_tokens)[: asked.max_batch_size]
        runner = self.build_runner(limits)
        memory.release()
        memory.begin_peak()
        held = memory.held()
        adapter, decodes = self._adapters.numbers[-1], asked.max_batch_size - len(lengths)
        # Matrices of images take memory of their own.
        runner.rehearses_media = runner.checker.media.has_own_matrices
        run_step(runner, lengths, decodes, scored=True, adapter=adapter)
        runner.rehearses_media = False
        for width in self._widths[-1:]:
            beside = min(decodes, MAX_WINDOW_TOKENS // width - len(lengths))
            if beside > 0:
                run_step(runner, lengths, beside, scored=True, adapter=adapter, width=width)
        padding = torch.full(
            (asked.max_batch_size,), runner.table.padding_row, dtype=torch.int64, device=self._model.device
        )
        runner.decode_rows(padding, limits.max_total_tokens, adapter)
        # Many narrow windows have as many tokens as few wide ones, and more copies of states.
        for width in self._widths if self._model.states else self._widths[-1:]:
            runner.decode_windows(padding[: MAX_WINDOW_TOKENS // width], width, limits.max_total_tokens, adapter)
        step = memory.peak() - held
        memory.release()
        others = self._used() - memory.held()
        return step, others, self._graph_bytes(runner)

    def _graph_bytes(self, runner: StepRunner) -> int:
        """Estimates the bytes of all graphs. The largest graphs allocate the memory that all share; some of each kind
        tell what the others add, because drivers allocate in pieces that hold several.
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
        """Captures graphs of these sizes, and returns the bytes of the device in use by all processes."""
        runner.capture(sizes)
        self._memory.release()
        return self._used()

    def _used(self) -> int:
        return self._memory.total() - self._memory.free()


def _split(total: int, largest: int) -> list[int]:
    """Splits `total` into summands of at most `largest`."""
    full, rest = divmod(total, largest)
    return [largest] * full + ([rest] if rest else [])
