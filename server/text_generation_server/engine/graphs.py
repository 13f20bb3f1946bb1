"""CUDA graphs: a step costs the host one launch instead of some hundred.

A graph replays the kernels that were captured, with the same addresses and grids; everything that changes is read from
device memory. What is smaller than a graph is padded: with a row that nobody owns, and with tokens of no request.

A step of few tokens is mostly the reading of weights: 16 tokens keep an H200 busy for 4.3 ms and 128 for 5.2 (8B),
while the host takes 5 to 10 ms to launch its 350 kernels. From some 512 tokens on the device of a large model is the
slower one; that of a small model is later. Steps that keep a device busy for long get no graph, which would take
memory from the KV pool.
"""

import gc
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from .running import CheckedPlan
from .steps import StepInput, StepSize, pack
from .transfer import overwrite

Result = TypeVar("Result")

_DECODES = (1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(288, 513, 32))
"""Decodes of steps without chunks: fine where batches are small and padding weighs most."""
_FORWARDS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Decodes of steps whose choice waits for masks: fewer, so that a start does not take much longer."""
_TOKENS = (16, 32, 48, *range(64, 257, 32), *range(320, 1537, 64), *range(1664, 2049, 128))
"""Tokens of steps with chunks."""
_MOST_MACS = 21 << 40
"""Of a step with chunks that gets a graph: more of them take the fastest device, an H200, 66 ms."""
_CHUNKS = 16
"""Chunks that fit into a graph."""


def decode_sizes(max_batch_size: int) -> list[int]:
    """Batch sizes of steps without chunks that get a graph."""
    return _up_to(_DECODES, max_batch_size)


def forward_sizes(decodes: Sequence[int]) -> list[int]:
    """Batch sizes of steps without chunks whose forward pass gets a graph of its own. `decodes`: those that get one for
    the whole step.
    """
    return _up_to(_FORWARDS, max(decodes)) if decodes else []


def chunk_sizes(max_tokens: int, dense_macs: int = 0) -> list[int]:
    """Numbers of tokens of steps with chunks that get a graph. `max_tokens`: of the largest step; `dense_macs`: of
    a token, as of `CausalLM`.
    """
    short = [size for size in _TOKENS if size * dense_macs <= _MOST_MACS]
    return _up_to(short or _TOKENS[:1], max_tokens)


def _up_to(sizes: Sequence[int], largest: int) -> list[int]:
    """Those below `largest`, and it, unless it is above them all."""
    largest = min(largest, sizes[-1])
    return [size for size in sizes if size < largest] + [largest]


@dataclass(frozen=True)
class GraphSizes:
    """What graphs are captured for, ascending."""

    decodes: Sequence[int] = ()
    """Batch sizes of whole steps without chunks."""
    forwards: Sequence[int] = ()
    """Batch sizes of forward passes without chunks."""
    tokens: Sequence[int] = ()
    """Numbers of tokens of forward passes with chunks."""

    @property
    def count(self) -> int:
        """All of them."""
        return len(self.decodes) + len(self.forwards) + len(self.tokens)

    def every(self, number: int) -> "GraphSizes":
        """Of each kind the largest, and of the others every so many-th."""
        return GraphSizes(*(kind[::-1][::number] for kind in (self.decodes, self.forwards, self.tokens)))


class StepGraphs(Generic[Result]):
    """Graphs by size. Engine thread only."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.sizes: list[int] = []
        """Ascending."""
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Result]] = {}

    def capture(self, step: Callable[[int], Result], sizes: Sequence[int], memory: Any) -> None:
        """Captures one graph a size, the largest first, so that the others fit into its part of the pool `memory`.

        `step(size)` is what is captured: it reads no tensor on the host.
        """
        self._graphs.clear()
        self.sizes = sorted(set(sizes))
        gc.collect()
        for size in reversed(self.sizes):
            # Libraries load kernels and take their workspaces, which a capture must not do.
            step(size)
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            # Other threads go on using the device, such as the watchdog of NCCL.
            with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
                result = step(size)
            self._graphs[size] = graph, result

    def fitting(self, number: int) -> int | None:
        """The smallest size that holds `number`."""
        index = bisect_left(self.sizes, number)
        return self.sizes[index] if index < len(self.sizes) else None

    def replay(self, size: int) -> Result:
        """Computes the step again. The next replay overwrites its result."""
        graph, result = self._graphs[size]
        graph.replay()
        return result


class DecodeGraphs(Generic[Result]):
    """Steps without chunks: from the embedding to the rows' next state, where `Result` is what was chosen, or to the
    last hidden states. Engine thread only.
    """

    def __init__(self, padding_row: int, device: torch.device) -> None:
        self._padding_row = padding_row
        self._device = device
        self._graphs = StepGraphs[Result](device)
        self._rows = torch.empty(0, dtype=torch.int64)
        self._held: list[int] = []

    def capture(self, step: Callable[[Tensor], Result], sizes: Sequence[int], memory: Any) -> None:
        """Captures a graph for each batch size. `step`: a function of rows int64 [D]."""
        self._held.clear()
        self._rows = torch.full((max(sizes, default=0),), self._padding_row, dtype=torch.int64, device=self._device)
        self._graphs.capture(lambda size: step(self._rows[:size]), sizes, memory)

    def prepare(self, plan: CheckedPlan) -> Callable[[], Result] | None:
        """Puts the rows where the fitting graph reads them and returns what replays it. None where no graph fits.

        The result's first entries are those of the plan; the next replay overwrites them.
        """
        size = self._graphs.fitting(len(plan.decodes))
        if size is None:
            return None
        padded = plan.decodes.tolist() + [self._padding_row] * (size - len(plan.decodes))
        if padded != self._held[:size]:
            overwrite(self._rows[:size], np.array(padded))
            self._held[:size] = padded
        return partial(self._graphs.replay, size)


class ChunkGraphs:
    """Forward passes of steps with chunks. Engine thread only."""

    def __init__(self, padding_row: int, device: torch.device) -> None:
        self._padding_row = padding_row
        self._device = device
        self._graphs = StepGraphs[Tensor](device)
        self._packed = torch.empty(0, dtype=torch.int64)

    @property
    def sizes(self) -> list[int]:
        """Numbers of tokens, ascending."""
        return self._graphs.sizes

    def capture(self, forward: Callable[[StepInput[Tensor], int], Tensor], sizes: Sequence[int], memory: Any) -> None:
        """Captures a graph for each number of tokens. `forward`: a function of the input, and of the number of tokens,
        to the hidden states whose logits are wanted.
        """
        # Zeros are tokens of no request, at the first slot of row 0.
        total = max((self._room(size).total for size in sizes), default=0)
        self._packed = torch.zeros(total, dtype=torch.int64, device=self._device)
        self._graphs.capture(lambda size: forward(self._input(size), size), sizes, memory)

    def prepare(self, plan: CheckedPlan) -> tuple[StepInput[Tensor], Callable[[], Tensor]] | None:
        """Puts the input where the fitting graph reads it and returns it, and what replays it. None where none fits.

        The result's first entries are those of the plan's samples; the next replay overwrites them.
        """
        size = self._graphs.fitting(plan.num_tokens)
        if size is None or len(plan.chunks) > _CHUNKS or any(each.num_scores for each in plan.chunks):
            return None
        packed = pack(plan, self._room(size), self._padding_row)
        overwrite(self._packed[: len(packed)], packed)
        return self._input(size), partial(self._graphs.replay, size)

    def _room(self, size: int) -> StepSize:
        decodes = min(size, self._padding_row)
        return StepSize(size, _CHUNKS, decodes, min(size, decodes + _CHUNKS))

    def _input(self, size: int) -> StepInput[Tensor]:
        return StepInput[Tensor].of(self._packed, self._room(size))
