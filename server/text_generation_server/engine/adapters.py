"""Which adapter each token of a step uses, on its way from the plan to the device.

One int32 vector brings the tables that the kernels read (`text_generation_kernels.lora`). Copies bring it, never a
kernel: kernels of adapted layers read the tables while the kernel before them may still run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from text_generation_kernels import LAST_TURN, TILE_TOKENS, TableSizes, adapter_tables

from ..layers.weights import StepAdapters
from .adapter_plans import AdapterChecker, Resident
from .running import Vector
from .transfer import overwrite, upload

_TALL_TILES_FROM, _TALL_TILES = 1024, 64
"""Steps with so many tokens have tiles of 64: with fewer tiles, each page is read less often."""


@dataclass(frozen=True)
class Layout:
    """Where the tables of a step with so many tokens lie in the vector."""

    tokens: int
    sizes: TableSizes

    @property
    def lengths(self) -> tuple[int, int, int, int, int]:
        """The lengths of `order`, `tiles`, `work`, `numbers` and `counts`."""
        return self.tokens, 4 * self.sizes.tiles, 2 * self.sizes.work, self.tokens, 3

    @property
    def total(self) -> int:
        """The length of the vector."""
        return sum(self.lengths)


class AdapterTables:
    """Makes the tables of steps. Only the engine thread uses it."""

    def __init__(self, checker: AdapterChecker, most_pages: int, by_output: bool, words: Tensor) -> None:
        """Graphs have room for adapters of at most `most_pages`. `by_output` says whether they compute what adapters do
        to outputs (`StepAdapters`): steps that need it and do not find it there run without a graph. `words`, on the
        device, are those of the pool, which nobody else hands out.
        """
        self._checker = checker
        self._most_pages = most_pages
        self._by_output = by_output
        self._words = words
        self._device = words.device
        self._step = 0

    def of(self, numbers: Vector) -> StepAdapters:
        """Queues a copy of the tables of a step whose token t uses adapter `numbers[t]`, 0 for none."""
        sizes = TableSizes.needed(numbers - 1, self._checker.pages, _height(len(numbers)))
        layout = Layout(len(numbers), sizes)
        by_output = any(each.by_output for each in self._used(numbers))
        return self.view(upload(self.packed(numbers, layout), self._device), layout, by_output)

    def view(self, vector: Tensor, layout: Layout, by_output: bool) -> StepAdapters:
        """Returns what kernels read of a vector with this layout."""
        order, tiles, work, numbers, counts = vector[: layout.total].split(layout.lengths)
        tables = order, tiles.view(-1, 4), work.view(-1, 2), numbers, counts, self._words
        return StepAdapters(*tables, layout.sizes.tile_tokens, by_output)

    def fit_graphs(self, numbers: Vector) -> bool:
        """Whether graphs compute all that these adapters do, and have room for their pages."""
        used = self._used(numbers)
        has_room = all(each.pages <= self._most_pages for each in used)
        return has_room and (self._by_output or not any(each.by_output for each in used))

    def _used(self, numbers: Vector) -> list[Resident]:
        residents = self._checker.residents
        return [residents[number] for number in np.flatnonzero(np.bincount(numbers)).tolist() if number]

    def buffer(self, sizes: Sequence[int]) -> "AdapterBuffer":
        """Allocates memory for the tables of steps with these numbers of tokens, for graphs to read. They are zeros:
        tiles without tokens.
        """
        total = max(self.layout(size).total for size in sizes)
        vector = torch.zeros(total, dtype=torch.int32, device=self._device)
        return AdapterBuffer(self, vector, self._by_output)

    def layout(self, tokens: int) -> Layout:
        """Returns where the tables of a graph of so many tokens lie."""
        pages = self._checker.num_pages
        return Layout(tokens, TableSizes.of(tokens, pages, self._most_pages, _height(tokens), pages))

    def packed(self, numbers: Vector, layout: Layout) -> NDArray[np.int32]:
        """Makes the tables of the tokens that use these adapters."""
        tables = adapter_tables(numbers - 1, self._checker.pages, layout.sizes)
        used = np.count_nonzero(tables.tiles[:, 1]), np.count_nonzero(tables.work[:, 1] >= 0)
        counts = np.array([self._next_step(), *used], dtype=np.int32)
        return np.concatenate((*(each.reshape(-1) for each in tables), numbers.astype(np.int32), counts))

    def _next_step(self) -> int:
        """Returns the number of the next step that runs with tables made here."""
        if self._step == LAST_TURN:
            self._step = 0
            self._words.zero_()
        self._step += 1
        return self._step


class AdapterBuffer:
    """The tables that CUDA graphs read."""

    def __init__(self, tables: AdapterTables, vector: Tensor, by_output: bool) -> None:
        self._tables = tables
        self._vector = vector
        self._by_output = by_output

    def view(self, tokens: int) -> StepAdapters:
        """Returns what the graph of so many tokens reads."""
        return self._tables.view(self._vector, self._tables.layout(tokens), self._by_output)

    def write(self, numbers: Vector, tokens: int) -> None:
        """Queues the tables of the next replay of that graph. Tokens behind those of `numbers` use no adapter."""
        layout = self._tables.layout(tokens)
        padded = np.zeros(tokens, dtype=np.int64)
        padded[: len(numbers)] = numbers
        overwrite(self._vector[: layout.total], self._tables.packed(padded, layout))


def _height(tokens: int) -> int:
    return _TALL_TILES if tokens >= _TALL_TILES_FROM else TILE_TOKENS
