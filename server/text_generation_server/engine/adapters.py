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

from text_generation_kernels import TILE_TOKENS, TableSizes, adapter_tables

from ..layers.weights import StepAdapters
from ..models.adapters import ServedAdapters
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
    def lengths(self) -> tuple[int, int, int, int]:
        """The lengths of `order`, `tiles`, `work` and `numbers`."""
        return self.tokens, 4 * self.sizes.tiles, 2 * self.sizes.work, self.tokens

    @property
    def total(self) -> int:
        """The length of the vector."""
        return sum(self.lengths)


class AdapterTables:
    """Makes the tables of steps. Only the engine thread uses it."""

    def __init__(self, served: ServedAdapters, device: torch.device) -> None:
        self._served = served
        self._device = device

    def of(self, numbers: Vector) -> StepAdapters:
        """Queues a copy of the tables of a step whose token t uses adapter `numbers[t]`, 0 for none."""
        layout = self.layout(len(numbers))
        return _view(upload(self.packed(numbers, layout), self._device), layout)

    def buffer(self, sizes: Sequence[int]) -> "AdapterBuffer":
        """Allocates memory for the tables of steps with these numbers of tokens, for graphs to read. They are zeros:
        tiles without tokens.
        """
        total = max(self.layout(size).total for size in sizes)
        return AdapterBuffer(self, torch.zeros(total, dtype=torch.int32, device=self._device))

    def layout(self, tokens: int) -> Layout:
        """Returns where the tables of a step with so many tokens lie."""
        height = _TALL_TILES if tokens >= _TALL_TILES_FROM else TILE_TOKENS
        adapters = min(tokens, len(self._served.infos))
        return Layout(tokens, TableSizes.of(tokens, adapters, self._served.most_pages, height))

    def packed(self, numbers: Vector, layout: Layout) -> NDArray[np.int32]:
        """Makes the tables of the tokens that use these adapters."""
        tables = adapter_tables(numbers - 1, self._served.pages, layout.sizes)
        return np.concatenate((*(each.reshape(-1) for each in tables), numbers.astype(np.int32)))


class AdapterBuffer:
    """The tables that CUDA graphs read."""

    def __init__(self, tables: AdapterTables, vector: Tensor) -> None:
        self._tables = tables
        self._vector = vector

    def view(self, tokens: int) -> StepAdapters:
        """Returns what the graph of so many tokens reads."""
        return _view(self._vector, self._tables.layout(tokens))

    def write(self, numbers: Vector, tokens: int) -> None:
        """Queues the tables of the next replay of that graph. Tokens behind those of `numbers` use no adapter."""
        layout = self._tables.layout(tokens)
        padded = np.zeros(tokens, dtype=np.int64)
        padded[: len(numbers)] = numbers
        overwrite(self._vector[: layout.total], self._tables.packed(padded, layout))


def _view(vector: Tensor, layout: Layout) -> StepAdapters:
    order, tiles, work, numbers = vector[: layout.total].split(layout.lengths)
    return StepAdapters(order, tiles.view(-1, 4), work.view(-1, 2), numbers, layout.sizes.tile_tokens)
