"""CUDA graphs: a step costs the host one launch instead of hundreds.

A graph replays the captured kernels with the same addresses and grids; everything that changes is in device memory. A
smaller step is padded with a row that nobody owns, and with tokens of no request.

A step of few tokens is memory-bound, and launch-bound without a graph: an 8B with 16 tokens keeps an H200 busy for 4.3
ms, while the host takes 5 to 10 ms to launch its 350 kernels, and twice to four times as long while other threads of
the shard read plans and write replies. Steps that keep the device busy for longer than the host get no graph, which
would take memory from the KV pool.
"""

import gc
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..layers.weights import StepAdapters
from .adapters import AdapterBuffer, AdapterTables
from .context_plan import ContextPlan
from .running import CheckedPlan
from .steps import StepInput, StepSize, pack
from .transfer import overwrite
from .widths import MAX_WINDOW_TOKENS

Result = TypeVar("Result")

_DECODES = (1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(288, 513, 32))
"""Batch sizes of decode-only steps; sizes are dense for small batches, where padding costs most."""
_FORWARDS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Batch sizes of decode-only steps whose sampling waits for masks; there are fewer, to keep a start short."""
_TOKENS = (16, 32, 48, *range(64, 257, 32), *range(320, 1537, 64), *range(1664, 2049, 128))
"""Tokens of steps with chunks."""
_MOST_MACS = 21 << 40
"""Multiply-accumulates of the largest step with chunks that gets a graph. They take an H200 66 ms."""
_MANY_TOKENS = range(2304, 4097, 256)
"""As `_TOKENS`, of steps of no more than `_FEW_MACS`: small models, and slices of larger ones on several cards."""
_FEW_MACS = 11 << 40
"""They take an H200 35 ms, about as long as a busy host takes to launch them."""
_CHUNKS = 16
"""Chunks that fit into a graph."""
_SHARED_DECODES = 64
"""Decodes that fit into it besides, where the queries of all of them, there or not, go to every rank."""


def decode_sizes(max_batch_size: int) -> list[int]:
    """Returns the batch sizes of decode-only steps that get a graph."""
    return _up_to(_DECODES, max_batch_size)


def forward_sizes(decodes: Sequence[int]) -> list[int]:
    """Returns the batch sizes of decode-only steps whose forward pass gets a graph of its own. `decodes` are the sizes
    with a graph of the whole step.
    """
    return _up_to(_FORWARDS, max(decodes)) if decodes else []


def chunk_sizes(max_tokens: int, dense_macs: int = 0) -> list[int]:
    """Returns the numbers of tokens of steps with chunks that get a graph. `max_tokens` are those of the largest step;
    `dense_macs` has the meaning of `CausalLM`.
    """
    short = [size for size in _TOKENS if size * dense_macs <= _MOST_MACS]
    if dense_macs:
        short += [size for size in _MANY_TOKENS if size * dense_macs <= _FEW_MACS]
    return _up_to(short or _TOKENS[:1], max_tokens)


def _up_to(sizes: Sequence[int], largest: int) -> list[int]:
    """Returns the sizes below `largest`, and `largest` itself, or the last size if that is smaller."""
    largest = min(largest, sizes[-1])
    return [size for size in sizes if size < largest] + [largest]


@dataclass(frozen=True)
class GraphSizes:
    """The sizes for which graphs are captured, ascending."""

    decodes: Sequence[int] = ()
    """Batch sizes of whole decode-only steps."""
    forwards: Sequence[int] = ()
    """Batch sizes of decode-only forward passes."""
    tokens: Sequence[int] = ()
    """Numbers of tokens of forward passes with chunks."""
    adapted_decodes: Sequence[int] = ()
    """As `decodes`, of steps in which tokens use adapters."""
    adapted_forwards: Sequence[int] = ()
    adapted_tokens: Sequence[int] = ()
    windows: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    """Numbers of windows of whole steps, by the width of windows."""
    forward_windows: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    """Numbers of windows of forward passes, by the width of windows."""
    window_tokens: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    """Numbers of tokens of forward passes with chunks and windows, by the width of windows."""
    adapted_windows: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    """As `windows`, of steps in which tokens use adapters."""
    adapted_forward_windows: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])
    adapted_window_tokens: Mapping[int, Sequence[int]] = field(default_factory=dict[int, Sequence[int]])

    @property
    def count(self) -> int:
        """The number of all graphs."""
        by_width = (sizes for name in self._by_width for sizes in getattr(self, name).values())
        return sum(map(len, (*(getattr(self, name) for name in self._kinds), *by_width)))

    def every(self, number: int) -> "GraphSizes":
        """Returns every `number`-th size of each kind, counted from the largest."""
        kinds = {name: getattr(self, name)[::-1][::number] for name in self._kinds}
        return replace(self, **kinds, **{name: _every(getattr(self, name), number) for name in self._by_width})

    def with_adapters(self) -> "GraphSizes":
        """Adds graphs for steps with adapters: fewer, because each takes time at the start."""
        return replace(
            self,
            adapted_decodes=self.forwards,
            adapted_forwards=self.forwards,
            adapted_tokens=sorted(self.tokens[::-1][::2]),
            adapted_windows=self.forward_windows,
            adapted_forward_windows=self.forward_windows,
            adapted_window_tokens=_every(self.window_tokens, 2),
        )

    @property
    def of_adapters(self) -> "GraphSizes":
        """The sizes of steps in which tokens use adapters, as those of a family of graphs."""
        return GraphSizes(
            self.adapted_decodes,
            self.adapted_forwards,
            self.adapted_tokens,
            windows=self.adapted_windows,
            forward_windows=self.adapted_forward_windows,
            window_tokens=self.adapted_window_tokens,
        )

    @property
    def _kinds(self) -> list[str]:
        return [each.name for each in fields(self) if "window" not in each.name]

    @property
    def _by_width(self) -> list[str]:
        return [each.name for each in fields(self) if "window" in each.name]


def _every(windows: Mapping[int, Sequence[int]], number: int) -> dict[int, Sequence[int]]:
    return {width: sizes[::-1][::number] for width, sizes in windows.items()}


class StepGraphs(Generic[Result]):
    """Graphs by size. Only the engine thread uses them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.sizes: list[int] = []
        """Ascending."""
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Result]] = {}

    def capture(self, step: Callable[[int], Result], sizes: Sequence[int], memory: Any) -> None:
        """Captures `step(size)` for each size, the largest first, so that the others reuse its part of the pool
        `memory`. `step` reads no tensor on the host.
        """
        self._graphs.clear()
        self.sizes = sorted(set(sizes))
        gc.collect()
        for size in reversed(self.sizes):
            # Libraries load kernels and allocate workspaces in the first call, which a capture must not do.
            step(size)
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            # Other threads use the device meanwhile, such as the watchdog of NCCL.
            with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
                result = step(size)
            self._graphs[size] = graph, result

    def fitting(self, number: int) -> int | None:
        """Returns the smallest size that holds `number`, or None."""
        index = bisect_left(self.sizes, number)
        return self.sizes[index] if index < len(self.sizes) else None

    def replay(self, size: int) -> Result:
        """Replays the graph of a size. The next replay overwrites its result."""
        graph, result = self._graphs[size]
        graph.replay()
        return result


class DecodeGraphs(Generic[Result]):
    """Graphs of decode-only steps: up to the rows' next state, with sampled tokens as the `Result`, or up to the last
    hidden states. Only the engine thread uses them.
    """

    def __init__(self, padding_row: int, device: torch.device, adapters: AdapterTables | None = None) -> None:
        """`adapters` is None for steps in which no token uses any."""
        self._padding_row = padding_row
        self._device = device
        self._graphs = StepGraphs[Result](device)
        self._rows = torch.empty(0, dtype=torch.int64)
        self._held: list[int] = []
        self._adapters = adapters
        self._buffer: AdapterBuffer | None = None

    def capture(self, step: Callable[[Tensor, StepAdapters | None], Result], sizes: Sequence[int], memory: Any) -> None:
        """Captures a graph for each batch size. `step` is a function of rows int64 [D] and their adapters."""
        self._held.clear()
        largest = max(sizes, default=0)
        self._rows = torch.full((largest,), self._padding_row, dtype=torch.int64, device=self._device)
        self._buffer = buffer = adapter_buffer(self._adapters, sizes)
        self._graphs.capture(
            lambda size: step(self._rows[:size], None if buffer is None else buffer.view(size)), sizes, memory
        )

    def prepare(self, plan: CheckedPlan) -> Callable[[], Result] | None:
        """Writes the rows to where the fitting graph reads them, and returns a function that replays it; None where no
        graph fits. The result begins with the entries of the plan; the next replay overwrites them.
        """
        size = self._graphs.fitting(len(plan.decodes))
        if size is None:
            return None
        padded = plan.decodes.tolist() + [self._padding_row] * (size - len(plan.decodes))
        if padded != self._held[:size]:
            overwrite(self._rows[:size], np.array(padded))
            self._held[:size] = padded
        if self._buffer is not None and plan.adapters is not None:
            self._buffer.write(plan.adapters, size)
        return partial(self._graphs.replay, size)


class ChunkGraphs:
    """Graphs of forward passes with chunks. Only the engine thread uses them."""

    def __init__(
        self,
        padding_row: int,
        device: torch.device,
        axes: bool = False,
        adapters: AdapterTables | None = None,
        width: int = 1,
        shares_contexts: bool = False,
    ) -> None:
        """`axes` has the meaning of `StepSize`; `adapters` is None for steps in which no token uses any. `width` is
        that of windows; `shares_contexts` says that the steps have `contexts`.
        """
        self._width = width
        self._adapters = adapters
        self._buffer: AdapterBuffer | None = None
        self._padding_row = padding_row
        self._device = device
        self._axes = axes
        self._shares_contexts = shares_contexts
        self._graphs = StepGraphs[Tensor](device)
        self._packed = torch.empty(0, dtype=torch.int64)

    @property
    def sizes(self) -> list[int]:
        """The numbers of tokens, ascending."""
        return self._graphs.sizes

    def capture(
        self,
        forward: Callable[[StepInput[Tensor], int, StepAdapters | None], Tensor],
        sizes: Sequence[int],
        memory: Any,
    ) -> None:
        """Captures a graph for each number of tokens. `forward` turns the input, the number of tokens and their
        adapters into the hidden states whose logits are wanted.
        """
        self._buffer = buffer = adapter_buffer(self._adapters, sizes)
        # Zeros are tokens of no request, at the first slot of row 0.
        total = max((self._room(size).total for size in sizes), default=0)
        self._packed = torch.zeros(total, dtype=torch.int64, device=self._device)
        self._graphs.capture(
            lambda size: forward(self._input(size), size, None if buffer is None else buffer.view(size)), sizes, memory
        )

    def prepare(self, plan: CheckedPlan) -> tuple[StepInput[Tensor], Callable[[], Tensor]] | None:
        """Writes the input to where the fitting graph reads it, and returns the input and a function that replays the
        graph; None where no graph fits. The result begins with the plan's samples; the next replay overwrites it.
        """
        size = self._graphs.fitting(plan.num_tokens)
        if size is None or len(plan.chunks) > _CHUNKS or any(each.num_scores for each in plan.chunks):
            return None
        room = self._room(size)
        if room.contexts is not None and (not room.contexts.fits(plan) or len(plan.decodes) > room.decodes):
            return None
        packed = pack(plan, room, self._padding_row)
        overwrite(self._packed[: len(packed)], packed)
        if self._buffer is not None and plan.adapters is not None:
            self._buffer.write(plan.adapters, size)
        return self._input(size), partial(self._graphs.replay, size)

    def contexts(self, size: int) -> ContextPlan | None:
        """Returns what the graph of so many tokens has room for, where ranks have some positions of a cache each."""
        return ContextPlan.of_graph(size, _CHUNKS) if self._shares_contexts else None

    def _room(self, size: int) -> StepSize:
        width, contexts = self._width, self.contexts(size)
        decodes = min(size // width, self._padding_row)
        if width > 1:
            decodes = min(decodes, MAX_WINDOW_TOKENS // width)
        if contexts is not None:
            decodes = min(decodes, max(1, _SHARED_DECODES // width))
        samples = min(size, decodes + _CHUNKS) * width
        return StepSize(size, _CHUNKS, decodes, samples, axes=self._axes, width=width, contexts=contexts)

    def _input(self, size: int) -> StepInput[Tensor]:
        return StepInput[Tensor].of(self._packed, self._room(size))


def adapter_buffer(adapters: AdapterTables | None, sizes: Sequence[int]) -> AdapterBuffer | None:
    """Allocates what graphs of these numbers of tokens read of adapters; None: no token of theirs uses any."""
    return None if adapters is None or not sizes else adapters.buffer(sizes)
