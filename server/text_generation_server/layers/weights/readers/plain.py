"""Reader of matrices that are stored with 16 or 32 bits and run so."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ....weights import Slice
from ..blocks import RowBlock, read_ranges, row_order
from ..linear import Dense
from .reader import Reader, Single


@dataclass(frozen=True)
class PlainReader(Reader):
    """Reads unquantised matrices."""

    def rows(self, blocks: Sequence[RowBlock], inputs: int) -> Sequence[Single]:
        """See `Reader`."""
        return [Dense(self._stacked(blocks, inputs))]

    def columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Single:
        """See `Reader`."""
        return Dense(self.dense_columns(name, shape, columns))

    def dense_rows(self, block: RowBlock, inputs: int) -> Tensor:
        """See `Reader`."""
        return self._stacked([block], inputs)

    def dense_columns(self, name: str, shape: tuple[int, int], columns: tuple[int, int]) -> Tensor:
        """See `Reader`."""
        source, weight = self.checkpoint.source, f"{name}.weight"
        if self.checkpoint.transposed:
            return source.read(weight, (shape[1], shape[0]), Slice(0, *columns)).t().contiguous()
        return source.read(weight, shape, Slice(1, *columns))

    def _stacked(self, blocks: Sequence[RowBlock], inputs: int) -> Tensor:
        """[rows of all blocks, inputs]"""
        # The stacked matrix is allocated first, so that its blocks, which come one by one, leave no gaps in memory.
        weight = self.checkpoint.source.empty((sum(block.rows for block in blocks), inputs))
        first = 0
        for block in blocks:
            weight[first : first + block.rows] = self._rows(block, inputs)
            first += block.rows
        order = row_order(blocks, weight.device)
        return weight if order is None else weight[order]

    def _rows(self, block: RowBlock, inputs: int) -> Tensor:
        source, weight = self.checkpoint.source, f"{block.name}.weight"
        if self.checkpoint.transposed:
            return read_ranges(source, weight, (inputs, block.size), 1, block.ranges).t()
        return read_ranges(source, weight, (block.size, inputs), 0, block.ranges)
