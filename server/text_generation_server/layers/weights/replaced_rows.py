"""Rows of embedding and head that adapters replace, of some tokens or of all (`trainable_token_indices`,
`modules_to_save`): one table of rows, of which each adapter has a span.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...adapters import Change, Replaced, TokenRows
from .activations import Activations, ActivationScheme
from .current_adapters import CurrentAdapters, Room, StepAdapters
from .linear import Linear, activated, total_bytes
from .sites import Site


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
    """The rows of all adapters, next to each other."""

    def __init__(self, made: Sequence[NewRows | None], room: Room, like: Tensor) -> None:
        """Allocates what `made` needs; `put` fills it. `like` [hidden] has the model's type and device."""
        counts = [0 if each is None else len(each.rows) for each in made]
        self.most = max(counts, default=0)
        """Rows of the adapter that has most."""
        self.rows = like.new_zeros(sum(counts), *like.shape)
        self.spans = torch.zeros(1 + room.adapters, 2, dtype=torch.int32, device=like.device)
        """[1 + adapters, 2] int32, the first row of each adapter, and how many there are."""
        self._spans: dict[int, tuple[int, int]] = {}

    def put(self, number: int, made: NewRows | None) -> slice:
        """Writes the rows of an adapter, and returns where they are. Raises ValueError where there is no room."""
        self._spans.pop(number, None)
        count = 0 if made is None else len(made.rows)
        first = self._free(count)
        own = slice(first, first + count)
        if made is not None:
            self.rows[own] = made.rows
        self._spans[number] = first, count
        self.spans[number] = torch.tensor([first, count], dtype=torch.int32)
        return own

    def _free(self, count: int) -> int:
        """Returns the first row of a run of `count` that no adapter has."""
        first = 0
        for start, used in sorted(self._spans.values()):
            if start - first >= count:
                return first
            first = max(first, start + used)
        if first + count > len(self.rows):
            raise ValueError(f"there is no room for {count} more rows of adapters")
        return first


class ReplacedEmbedding:
    """Replaces rows that were looked up."""

    def __init__(self, made: Sequence[NewRows | None], room: Room, table: Tensor) -> None:
        """`table` [rows, hidden] is what this rank looks up tokens in."""
        self._table = RowTable(made, room, table[0])
        self._places = torch.full((1 + room.adapters, len(table)), -1, dtype=torch.int32, device=table.device)

    def put(self, number: int, made: NewRows | None) -> None:
        """Writes the rows of an adapter; None: it has none."""
        own = self._table.put(number, made)
        self._places[number] = -1
        if made is not None:
            self._places[number, made.places] = torch.arange(
                own.start, own.stop, dtype=torch.int32, device=self._places.device
            )

    def apply(self, ids: Tensor, x: Tensor, step: StepAdapters) -> None:
        """Replaces, in `x` [T, hidden], the rows of the table's rows `ids` int64 [T]."""
        kernels.replace_rows(ids, step.numbers, self._places, self._table.rows, x)

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return total_bytes(self._table.rows, self._table.spans, self._places)


class ReplacedHead(Linear):
    """The head, and logits of rows that the adapters of a step's tokens replace."""

    def __init__(
        self, base: Linear, made: Sequence[NewRows | None], room: Room, like: Tensor, current: CurrentAdapters
    ) -> None:
        """`like` [hidden] has the model's type and device."""
        self._base = base
        self._current = current
        self._table = RowTable(made, room, like)
        self._ids = torch.zeros(len(self._table.rows), dtype=torch.int32, device=like.device)

    def put(self, number: int, made: NewRows | None) -> None:
        """Writes the rows of an adapter; None: it has none."""
        own = self._table.put(number, made)
        if made is not None:
            self._ids[own] = made.places.to(torch.int32)

    @property
    def site(self) -> Site | None:
        """See `Linear`."""
        return self._base.site

    @property
    def bias(self) -> Tensor | None:
        """See `Linear`."""
        return self._base.bias

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Linear`."""
        return self._base.wants

    @property
    def outputs(self) -> int:
        """See `Linear`."""
        return self._base.outputs

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

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`."""
        return activated(self.apply(x, block), activation, wants, block)

    def _replaced(self, x: Activations, out: Tensor, bias: Tensor | None) -> Tensor:
        """Replaces logits in `out`. Those of tokens without adapter keep their bits."""
        table, step = self._table, self._current.step
        tables = step.order, step.tiles, step.numbers, step.tile_tokens
        kernels.replaced_logits(x.x, table.rows, self._ids, table.spans, bias, *tables, table.most, out)
        return out


def rows_change(changes: Mapping[str, Change], name: str) -> Change | None:
    """Returns the change of a table that replaces rows, if there is one."""
    change = changes.get(name)
    return change if isinstance(change, Replaced | TokenRows) else None
