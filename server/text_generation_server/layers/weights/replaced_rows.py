"""Rows of embedding and head that adapters replace, of some tokens or of all (`trainable_token_indices`,
`modules_to_save`): one table of rows, of which each adapter has a span.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...adapters import Change, Replaced, TokenRows
from .activations import Activations
from .current_adapters import CurrentAdapters, Room, StepAdapters
from .linear import Linear, LinearOver, total_bytes


@dataclass(frozen=True)
class NewRows:
    """The rows of one adapter that this rank looks up or multiplies by."""

    places: Tensor
    """[rows] int64, where the rows are in this rank's table."""
    rows: Tensor
    """[rows, hidden], of the model's type."""

    @classmethod
    def of(cls, change: Change | None, span: tuple[int, int], like: Tensor, offset: int = 0) -> "NewRows | None":
        """Of a change of a table [vocabulary, hidden], of which this rank has rows `span`, from place `offset` on;
        None: it replaces none of them. `like` has the model's type and device.
        """
        first, end = span
        if isinstance(change, Replaced):
            places = torch.arange(end - first, device=like.device)
            return cls(places + offset, change.tensor[first:end].to(like))
        if not isinstance(change, TokenRows):
            return None
        tokens = torch.tensor(change.tokens, dtype=torch.int64)
        here = (tokens >= first) & (tokens < end)
        return cls((tokens[here] - first + offset).to(like.device), change.rows[here].to(like))


class RowTable:
    """The rows of all adapters that have some, next to each other, by generation. They stay on the device, whichever
    adapters have numbers.
    """

    def __init__(self, made: Mapping[int, NewRows], room: Room, like: Tensor) -> None:
        """`like` [hidden] has the model's type and device."""
        counts = [len(each.rows) for each in made.values()]
        self.most = max(counts, default=0)
        """Rows of the adapter that has most."""
        self.rows = torch.cat([each.rows.to(like) for each in made.values()])
        self.spans = torch.zeros(1 + room.adapters, 2, dtype=torch.int32, device=like.device)
        """[1 + adapters, 2] int32, the first row of each adapter, and how many there are."""
        self.of = dict(zip(made, zip(accumulate([0, *counts]), counts, strict=False), strict=True))
        """The first row of each generation, and how many it has."""

    def put(self, number: int, generation: int) -> None:
        """Gives a number the rows of a generation, if it has some."""
        for index, value in enumerate(self.of.get(generation, (0, 0))):
            self.spans[number, index].fill_(value)


class ReplacedEmbedding:
    """Replaces rows that were looked up."""

    def __init__(self, made: Mapping[int, NewRows], room: Room, table: Tensor) -> None:
        """`made` is by generation; `table` [rows, hidden] is what this rank looks up tokens in."""
        self._table = RowTable(made, room, table[0])
        device = table.device
        self._places = torch.full((1 + room.adapters, len(table)), -1, dtype=torch.int32, device=device)
        self._of: dict[int, Tensor] = {}
        for generation, each in made.items():
            first, count = self._table.of[generation]
            own = self._places[0].clone()
            own[each.places.to(device)] = torch.arange(first, first + count, dtype=torch.int32, device=device)
            self._of[generation] = own

    def has(self, generation: int) -> bool:
        """Whether the rows of an adapter are here."""
        return generation in self._of

    def put(self, number: int, generation: int) -> None:
        """Gives a number the rows of a generation, if it has some."""
        self._places[number].copy_(self._of.get(generation, self._places[0]))

    def apply(self, ids: Tensor, x: Tensor, step: StepAdapters) -> None:
        """Replaces, in `x` [T, hidden], the rows of the table's rows `ids` int64 [T]."""
        kernels.replace_rows(ids, step.numbers, self._places, self._table.rows, x)

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return total_bytes(self._table.rows, self._table.spans, self._places, *self._of.values())


class ReplacedHead(LinearOver):
    """The head, and logits of rows that the adapters of a step's tokens replace."""

    def __init__(
        self, base: Linear, made: Mapping[int, NewRows], room: Room, like: Tensor, current: CurrentAdapters
    ) -> None:
        """`made` is by generation; `like` [hidden] has the model's type and device."""
        super().__init__(base)
        self._current = current
        self._table = RowTable(made, room, like)
        places = torch.cat([each.places for each in made.values()])
        self._ids = places.to(device=like.device, dtype=torch.int32)

    def has(self, generation: int) -> bool:
        """Whether the rows of an adapter are here."""
        return generation in self._table.of

    def put(self, number: int, generation: int) -> None:
        """Gives a number the rows of a generation, if it has some."""
        self._table.put(number, generation)

    @property
    def nbytes(self) -> int:
        """The bytes of the rows: those of the matrix are the base's."""
        return total_bytes(self._table.rows, self._table.spans, self._ids)

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._replaced(x, self._base.apply(x, block), self._base.bias)

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._replaced(x, self._base.matmul(x, block), None)

    def _replaced(self, x: Activations, out: Tensor, bias: Tensor | None) -> Tensor:
        """Replaces logits in `out`. Those of tokens without adapter keep their bits."""
        table, step = self._table, self._current.step
        tables = step.order, step.tiles, step.numbers, step.tile_tokens
        replaced = kernels.ReplacedRows(table.rows, self._ids, table.spans, table.most)
        kernels.replaced_logits(x.x, replaced, bias, *tables, out)
        return out


def rows_change(changes: Mapping[str, Change], name: str) -> Change | None:
    """Returns the change of a table that replaces rows, if there is one."""
    change = changes.get(name)
    return change if isinstance(change, Replaced | TokenRows) else None
