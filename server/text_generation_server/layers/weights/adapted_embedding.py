"""The embedding with adapters beside it: `c (row + s B a) ` where a is the column of A of the token's id, or a row that
the adapter has instead. Every rank has the factors of the whole vocabulary; new rows are where the table's are.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels import RANK_UNITS, lora_expand, lora_lookup

from ...adapters import Change, EmbeddingDelta
from ...errors import ModelFilesError
from .checkpoint import Matrices
from .current_adapters import CurrentAdapters, Room, pinned
from .ends import EmbeddingWeights
from .linear import total_bytes
from .replaced_rows import NewRows, ReplacedEmbedding, rows_change


@dataclass(frozen=True)
class EmbeddingPages:
    """The factors of one adapter on an embedding."""

    a: Tensor
    """[pages, vocabulary, units]"""
    b: Tensor
    """[pages, hidden, units]"""
    scale: float
    factors: Tensor | None
    """[hidden] float32, what DoRA multiplies the rows by."""

    def pinned(self, device: torch.device) -> "EmbeddingPages":
        """Returns the same in memory from which `device` copies by itself."""
        factors = None if self.factors is None else pinned(self.factors, device)
        return EmbeddingPages(pinned(self.a, device), pinned(self.b, device), self.scale, factors)


@dataclass(frozen=True)
class EmbeddingChange:
    """What one adapter does to an embedding: either of both."""

    pages: EmbeddingPages | None
    rows: NewRows | None

    @classmethod
    def of(
        cls, checkpoint: Matrices, weights: EmbeddingWeights, changes: Mapping[str, Change]
    ) -> "EmbeddingChange | None":
        """Returns it for an adapter with these changes; None: it changes nothing. Raises ModelFilesError."""
        if not weights.module:
            return None
        name, like = f"{weights.module}.weight", checkpoint.source.empty((0,))
        change = changes.get(name)
        if isinstance(change, EmbeddingDelta):
            return cls(_factors(checkpoint, name, change), None)
        span = weights.span
        rows = NewRows.of(rows_change(changes, name), span, like, 0 if weights.first is None else 1)
        return None if rows is None else cls(None, rows)

    def pinned(self, device: torch.device) -> "EmbeddingChange":
        """Returns the same in memory from which `device` copies by itself."""
        return EmbeddingChange(None if self.pages is None else self.pages.pinned(device), self.rows)


def _factors(checkpoint: Matrices, name: str, delta: EmbeddingDelta) -> EmbeddingPages:
    like, width = checkpoint.source.empty((0,)), -delta.rank % RANK_UNITS
    a = functional.pad(delta.a.t().to(like), (0, width)).unflatten(1, (-1, RANK_UNITS))
    b = functional.pad(delta.b.to(like), (0, width)).unflatten(1, (-1, RANK_UNITS))
    factors = None
    if delta.magnitude is not None:
        if not checkpoint.source.has(name):
            raise ModelFilesError(f"tensor `{name}`, of which the adapter's DoRA needs the columns, is not stored")
        whole = checkpoint.source.read(name, delta.shape)
        factors = delta.row_factors(lambda start, stop: whole.t()[start:stop])
    return EmbeddingPages(a.transpose(0, 1).contiguous(), b.transpose(0, 1).contiguous(), delta.scale, factors)


class AdaptedEmbedding:
    """What the adapters of a step's tokens do to what was looked up."""

    def __init__(
        self, weights: EmbeddingWeights, made: Mapping[int, EmbeddingChange], room: Room, current: CurrentAdapters
    ) -> None:
        """Allocates what `made` needs, which is by generation."""
        self._current = current
        pages = [each.pages for each in made.values() if each.pages is not None]
        rows = {generation: each.rows for generation, each in made.items() if each.rows is not None}
        table = weights.tokens
        self._a = self._b = self._scale = self._factors = self._rows = None
        if pages:
            self._a = table.new_zeros(room.pages, *pages[0].a.shape[1:])
            self._b = table.new_zeros(room.pages, *pages[0].b.shape[1:])
            self._scale = torch.zeros(room.pages, device=table.device)
        if any(each.factors is not None for each in pages):
            self._factors = torch.ones(1 + room.adapters, table.shape[1], device=table.device)
        if rows:
            self._rows = ReplacedEmbedding(rows, room, table)

    def has(self, generation: int, made: EmbeddingChange) -> bool:
        """Whether there is room for what an adapter does."""
        pages, rows = made.pages, made.rows
        return (
            (pages is None or self._a is not None)
            and (pages is None or pages.factors is None or self._factors is not None)
            and (rows is None or (self._rows is not None and self._rows.has(generation)))
        )

    def put(self, number: int, first_page: int, pages: int, generation: int, made: EmbeddingPages | None) -> None:
        """Queues copies of an adapter to its pages, and gives its number the rows of its generation."""
        if self._a is not None and self._b is not None and self._scale is not None:
            for each in (self._a, self._b, self._scale):
                each[first_page : first_page + pages].zero_()
            if made is not None:
                own = slice(first_page, first_page + len(made.a))
                self._a[own].copy_(made.a, non_blocking=True)
                self._b[own].copy_(made.b, non_blocking=True)
                self._scale[own].fill_(made.scale)
        if self._factors is not None:
            factors = self._factors[0] if made is None or made.factors is None else made.factors
            self._factors[number].copy_(factors, non_blocking=True)
        if self._rows is not None:
            self._rows.put(number, generation)

    def replace(self, ids: Tensor, x: Tensor) -> None:
        """Replaces rows that were looked up in this rank's table: `ids` int64 [T] are places in it."""
        if self._rows is not None:
            self._rows.apply(ids, x, self._current.step)

    def add(self, ids: Tensor, x: Tensor) -> None:
        """Adds what adapters add to the rows `x` [T, hidden] of token ids [T]."""
        step = self._current.step
        if self._a is not None and self._b is not None and self._scale is not None:
            v = x.new_empty(1, len(step.work), 1, step.tile_tokens, RANK_UNITS, dtype=torch.float32)
            tables = step.order, step.tiles, step.work
            lora_lookup(ids, self._a, self._scale, *tables, v)
            lora_expand(v, self._b, None, *tables, x, True)
        if self._factors is not None:
            x.mul_(self._factors.index_select(0, step.numbers))

    @property
    def nbytes(self) -> int:
        """The bytes of all its tensors."""
        rows = 0 if self._rows is None else self._rows.nbytes
        return total_bytes(self._a, self._b, self._scale, self._factors) + rows
