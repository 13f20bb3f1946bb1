"""Where the matrix of a linear layer comes from: rows and columns of stored matrices. What changes these, as an adapter
does, goes through the same cuts, orders and repetitions.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from .blocks import RowBlock, cut_ranges, row_order


@dataclass(frozen=True)
class Site:
    """A linear layer of this rank, as parts of stored matrices."""

    blocks: tuple[RowBlock, ...]
    """Its rows, one block below the other."""
    inputs: int
    """Columns of the stored matrices."""
    columns: tuple[int, int] | None = None
    """Which of these it has; None: all."""
    order: tuple[int, ...] = ()
    """The stored columns in the order of its inputs, where they come in another one (act-order)."""
    padding: int = 0
    """Rows of zeros behind the blocks."""
    stored_as: str = ""
    """The name of the matrix in the checkpoint, where it is not that of the block: a head that is the embedding."""
    adds_bias: bool = True
    """Whether this rank adds the bias: of outputs that are all-reduced, one does."""
    input_scales: Tensor | None = None
    """[inputs of this rank] by which its inputs were divided, and its columns multiplied (AWQ)."""

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """The stored matrices, each once: the parts of the layer."""
        return tuple(dict.fromkeys(block.name for block in self.blocks))

    @property
    def outputs(self) -> int:
        """Rows of the layer."""
        return sum(block.rows for block in self.blocks) + self.padding

    @property
    def own_inputs(self) -> int:
        """Inputs of the layer."""
        if self.order:
            return len(self.order)
        return self.inputs if self.columns is None else self.columns[1] - self.columns[0]

    def ranges(self) -> list[tuple[int, int, int]]:
        """Returns which outputs are of which part: first output, end, number of the part in `modules`."""
        numbers, found = {name: number for number, name in enumerate(self.modules)}, list[tuple[int, int, int]]()
        first = 0
        for block in self.blocks:
            part, end = numbers[block.name], first + block.rows
            if found and found[-1][2] == part:
                first = found.pop()[0]
            found.append((first, end, part))
            first = end
        return found

    def rows_of(self, stored: Iterable[Tensor], fill: float = 0.0) -> Tensor:
        """Returns the rows of the layer, of tensors that have the rows of the stored matrix of each block. Padding gets
        `fill`.
        """
        rows = [cut_ranges(each, 0, block.ranges) for each, block in zip(stored, self.blocks, strict=True)]
        if self.padding:
            rows.append(rows[0].new_full((self.padding, *rows[0].shape[1:]), fill))
        made = rows[0].new_empty(self.outputs, *rows[0].shape[1:])
        first = 0
        for each in rows:
            made[first : first + len(each)] = each
            first += len(each)
        if (order := row_order(self.blocks, made.device)) is not None:
            made[: len(order)] = made[: len(order)][order]
        return made

    def columns_of(self, stored: Tensor) -> Tensor:
        """Returns the columns of the layer, of a tensor [rows, inputs] that has those of the stored matrices."""
        if self.order:
            columns = stored[:, list(self.order)]
        else:
            columns = stored if self.columns is None else stored[:, slice(*self.columns)]
        return columns if self.input_scales is None else columns.float() * self.input_scales.to(columns.device)
