"""One CUDA graph for each batch size of decode: a step costs the host one launch instead of some hundred.

A graph replays the kernels that were captured, with the same addresses and grids; everything that changes is read from
device memory. A batch runs in the smallest graph that holds it, padded with a row that nobody owns.
"""

import gc
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from .sampling import SampledTokens
from .transfer import upload

_WARM_UPS = 2
"""Runs before a capture: kernels are compiled and libraries take their workspaces, which a capture must not do."""


def default_buckets(max_batch_size: int) -> list[int]:
    """Fine steps where batches are small and padding weighs most; the largest is `max_batch_size`, at most 512."""
    largest = min(max_batch_size, 512)
    sizes = [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(288, 513, 32)]
    return [size for size in sizes if size < largest] + [largest]


class DecodeGraphs:
    """`step`: what is captured, a function of rows int64 [B] that reads no tensor on the host. Engine thread only."""

    def __init__(self, step: Callable[[Tensor], SampledTokens], padding_row: int, device: torch.device) -> None:
        self._step = step
        self._padding_row = padding_row
        self._device = device
        self._buckets: list[int] = []
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, SampledTokens]] = {}
        self._rows = torch.empty(0, dtype=torch.int64)
        self._held: list[int] = []

    def capture(self, buckets: Sequence[int]) -> None:
        """Captures one graph a size, the largest first, so that the others fit into its memory."""
        self._graphs.clear()
        self._held.clear()
        self._buckets = sorted(set(buckets))
        if not self._buckets:
            return
        self._rows = torch.full((self._buckets[-1],), self._padding_row, dtype=torch.int64, device=self._device)
        pool = torch.cuda.graph_pool_handle()
        gc.collect()
        for bucket in reversed(self._buckets):
            rows = self._rows[:bucket]
            for _ in range(_WARM_UPS):
                self._step(rows)
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            # Other threads go on using the device, such as the watchdog of NCCL.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                sampled = self._step(rows)
            self._graphs[bucket] = graph, sampled

    def prepare(self, rows: list[int]) -> Callable[[], SampledTokens] | None:
        """Puts `rows` where the fitting graph reads them and returns what replays it. None where no graph fits.

        The result's first entries are those of `rows`; the next replay overwrites them.
        """
        index = bisect_left(self._buckets, len(rows))
        if index == len(self._buckets):
            return None
        bucket = self._buckets[index]
        padded = rows + [self._padding_row] * (bucket - len(rows))
        if padded != self._held[:bucket]:
            self._rows[:bucket].copy_(upload(np.array(padded), self._device))
            self._held[:bucket] = padded
        return partial(_replay, *self._graphs[bucket])


def _replay(graph: torch.cuda.CUDAGraph, sampled: SampledTokens) -> SampledTokens:
    graph.replay()
    return sampled
