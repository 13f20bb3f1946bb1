"""CUDA graphs of decode steps and of small prefills: a step costs the host one launch instead of some hundred.

A graph replays the kernels that were captured, with the same addresses and grids; everything that changes is read from
device memory. What is smaller than a graph is padded: with a row that nobody owns, and with tokens of no request.

A prefill of few tokens is mostly the reading of weights: 16 tokens keep an H200 busy for 4.3 ms and 128 for 5.2 (8B),
while the host takes 5 to 10 ms to launch its 350 kernels. From some 512 tokens on the device is the slower one.
"""

import gc
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from .sampling import SampledTokens
from .steps import PackedPrompts, part_lengths
from .transfer import upload

Step = TypeVar("Step")

_MAX_PREFILL = 512
"""Tokens of the largest prefill that gets a graph."""
_PREFILL_REQUESTS = 16
"""Requests, copies among them, that fit into the graph of a prefill, and the tokens whose logits are wanted."""


def decode_buckets(max_batch_size: int) -> list[int]:
    """Fine steps where batches are small and padding weighs most; the largest is `max_batch_size`, at most 512."""
    largest = min(max_batch_size, 512)
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(288, 513, 32)]
    return [size for size in sizes if size < largest] + [largest]


def prefill_buckets(max_batch_prefill_tokens: int) -> list[int]:
    """Numbers of tokens."""
    largest = min(max_batch_prefill_tokens, _MAX_PREFILL)
    sizes = [16, 32, 48, *range(64, 257, 32), *range(320, _MAX_PREFILL, 64)]
    return [size for size in sizes if size < largest] + [largest]


class StepGraphs(Generic[Step]):
    """Graphs by size. `step(size)` is what is captured: it reads no tensor on the host. Engine thread only."""

    def __init__(self, step: Callable[[int], Step], device: torch.device) -> None:
        self._step = step
        self._device = device
        self._sizes: list[int] = []
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Step]] = {}

    def capture(self, sizes: Sequence[int], memory: Any) -> None:
        """Captures one graph a size, the largest first, so that the others fit into its part of the pool `memory`."""
        self._graphs.clear()
        self._sizes = sorted(set(sizes))
        gc.collect()
        for size in reversed(self._sizes):
            # Libraries load kernels and take their workspaces, which a capture must not do.
            self._step(size)
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            # Other threads go on using the device, such as the watchdog of NCCL.
            with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
                result = self._step(size)
            self._graphs[size] = graph, result

    def fitting(self, number: int) -> int | None:
        """The smallest size that holds `number`."""
        index = bisect_left(self._sizes, number)
        return self._sizes[index] if index < len(self._sizes) else None

    def replay(self, size: int) -> Step:
        """Computes the step again. The next replay overwrites its result."""
        graph, result = self._graphs[size]
        graph.replay()
        return result


class DecodeGraphs:
    """`step`: a function of rows int64 [B]. Engine thread only."""

    def __init__(self, step: Callable[[Tensor], SampledTokens], padding_row: int, device: torch.device) -> None:
        self._padding_row = padding_row
        self._device = device
        self._graphs = StepGraphs(lambda size: step(self._rows[:size]), device)
        self._rows = torch.empty(0, dtype=torch.int64)
        self._held: list[int] = []

    def capture(self, buckets: Sequence[int], memory: Any) -> None:
        """Captures a graph for each batch size."""
        self._held.clear()
        self._rows = torch.full((max(buckets, default=0),), self._padding_row, dtype=torch.int64, device=self._device)
        self._graphs.capture(buckets, memory)

    def prepare(self, rows: list[int]) -> Callable[[], SampledTokens] | None:
        """Puts `rows` where the fitting graph reads them and returns what replays it. None where no graph fits.

        The result's first entries are those of `rows`; the next replay overwrites them.
        """
        bucket = self._graphs.fitting(len(rows))
        if bucket is None:
            return None
        padded = rows + [self._padding_row] * (bucket - len(rows))
        if padded != self._held[:bucket]:
            self._rows[:bucket].copy_(upload(np.array(padded), self._device))
            self._held[:bucket] = padded
        return partial(self._graphs.replay, bucket)


class PrefillGraphs:
    """`forward`: a function of the parts of `PackedPrompts` on the device, and of the longest length, to the hidden
    states whose logits are wanted. Engine thread only.
    """

    def __init__(
        self, forward: Callable[[Sequence[Tensor], int], Tensor], padding_row: int, device: torch.device
    ) -> None:
        self._padding_row = padding_row
        self._device = device
        self._graphs = StepGraphs(lambda size: forward(self._parts(size), size), device)
        self._packed = torch.empty(0, dtype=torch.int64)

    def capture(self, buckets: Sequence[int], memory: Any) -> None:
        """Captures a graph for each number of tokens."""
        # Zeros are tokens of no request, at the first slot of row 0.
        length = sum(_lengths(max(buckets, default=0)))
        self._packed = torch.zeros(length, dtype=torch.int64, device=self._device)
        self._graphs.capture(buckets, memory)

    def prepare(self, prompts: PackedPrompts) -> Callable[[], Tensor] | None:
        """Puts `prompts` where the fitting graph reads them and returns what replays it. None where no graph fits.

        The result's first entries are those of `prompts.logit_indices`; the next replay overwrites them.
        """
        bucket = self._graphs.fitting(len(prompts.input_ids))
        if bucket is None or max(len(prompts.rows), len(prompts.logit_indices)) > _PREFILL_REQUESTS:
            return None
        padded = prompts.padded(bucket, _PREFILL_REQUESTS, _PREFILL_REQUESTS, self._padding_row)
        packed = np.concatenate(padded.parts)
        self._packed[: len(packed)].copy_(upload(packed, self._device))
        return partial(self._graphs.replay, bucket)

    def _parts(self, size: int) -> Sequence[Tensor]:
        lengths = _lengths(size)
        return self._packed[: sum(lengths)].split(lengths)


def _lengths(size: int) -> list[int]:
    return part_lengths(size, _PREFILL_REQUESTS, _PREFILL_REQUESTS)
