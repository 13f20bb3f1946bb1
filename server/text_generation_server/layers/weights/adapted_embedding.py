"""The embedding with adapters beside it: `c (row + s B a) ` where a is the column of A of the token's id, or a row that
the adapter has instead. Every rank has the factors of the whole vocabulary; new rows are where the table's are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels import RANK_UNITS, lora_expand, lora_lookup

from ...adapters import Change, EmbeddingDelta
from ...errors import ModelFilesError
from .checkpoint import Matrices
from .current_adapters import CurrentAdapters, Room, by_number, first_of
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
        name, table = f"{weights.module}.weight", weights.tokens
        change = changes.get(name)
        if isinstance(change, EmbeddingDelta):
            return cls(_factors(checkpoint, name, change), None)
        span = weights.span
        rows = NewRows.of(rows_change(changes, name), span, table, 0 if weights.first is None else 1)
        return None if rows is None else cls(None, rows)


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
        self, weights: EmbeddingWeights, made: Sequence[EmbeddingChange | None], room: Room, current: CurrentAdapters
    ) -> None:
        """Allocates what `made` needs; `put` fills it."""
        self._current = current
        pages = [None if each is None else each.pages for each in made]
        rows = [None if each is None else each.rows for each in made]
        like = next((each for each in pages if each is not None), None)
        table = weights.tokens
        self._a = self._b = self._scale = self._factors = self._rows = None
        if like is not None:
            self._a = table.new_zeros(room.pages, *like.a.shape[1:])
            self._b = table.new_zeros(room.pages, *like.b.shape[1:])
            self._scale = torch.zeros(room.pages, device=table.device)
        factors = first_of([None if each is None else each.factors for each in pages])
        if factors is not None:
            self._factors = by_number(room, factors, 1.0)
        if any(each is not None for each in rows):
            self._rows = ReplacedEmbedding(rows, room, table)

    def put(self, number: int, pages: slice, made: EmbeddingChange | None) -> None:
        """Writes what an adapter does to its pages, and to the rows of its number. None: nothing."""
        factors = None if made is None else made.pages
        if self._a is not None and self._b is not None and self._scale is not None:
            self._a[pages], self._b[pages], self._scale[pages] = 0.0, 0.0, 0.0
            if factors is not None:
                own = slice(pages.start, pages.start + len(factors.a))
                self._a[own], self._b[own], self._scale[own] = factors.a, factors.b, factors.scale
        if self._factors is not None:
            self._factors[number] = 1.0 if factors is None or factors.factors is None else factors.factors
        if self._rows is not None:
            self._rows.put(number, None if made is None else made.rows)

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
