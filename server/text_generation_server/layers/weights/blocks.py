"""Rows of stored matrices that become one fused matrix, so that one GEMM computes them all."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...weights import Slice, WeightSource


@dataclass(frozen=True)
class RowBlock:
    """Rows of the stored matrix `name`, which has `size` rows: those of each of `ranges`, concatenated."""

    name: str
    """Name of the tensor, without `.weight`."""
    size: int
    ranges: tuple[tuple[int, int], ...]
    order: tuple[int, ...] = ()
    """Order of the rows in each run of `len(order)` rows: which row comes first, second, and so on. Empty: as stored.
    """
    part: int = 0
    """Rows after which the blocks in which the matrix is quantised begin anew; 0: they begin once."""

    @property
    def rows(self) -> int:
        """How many rows the block has."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def span(self) -> tuple[int, int]:
        """The first row, and the end of the last."""
        return min(start for start, _ in self.ranges), max(stop for _, stop in self.ranges)


def ranges(rows: Sequence[int], size: int = 1) -> tuple[tuple[int, int], ...]:
    """Returns the ranges of the runs of `size` rows that `rows` numbers; adjacent runs become one range."""
    found: list[tuple[int, int]] = []
    for row in rows:
        start = found.pop()[0] if found and found[-1][1] == row * size else row * size
        found.append((start, (row + 1) * size))
    return tuple(found)


def read_ranges(
    source: WeightSource, name: str, shape: tuple[int, ...], dim: int, cuts: Sequence[tuple[int, int]]
) -> Tensor:
    """Reads ranges of dimension `dim` of a stored tensor in one go, in the model's type."""
    first, last = min(start for start, _ in cuts), max(stop for _, stop in cuts)
    return cut_ranges(source.read(name, shape, Slice(dim, first, last)), dim, cuts, first)


def cut_ranges(tensor: Tensor, dim: int, cuts: Sequence[tuple[int, int]], first: int = 0) -> Tensor:
    """Returns ranges of dimension `dim` of a tensor that begins at index `first` of a stored one."""
    parts = [tensor.narrow(dim, start - first, stop - start) for start, stop in cuts]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def row_order(blocks: Sequence[RowBlock], device: torch.device) -> Tensor | None:
    """Returns [rows of all blocks] int64: which of the rows, in the order of `ranges`, comes first, second, and so on.
    None: they stay as they are.
    """
    if not any(block.order for block in blocks):
        return None
    indices: list[Tensor] = []
    first = 0
    for block in blocks:
        rows = torch.arange(block.rows, device=device)
        if block.order:
            rows = rows.view(-1, len(block.order))[:, torch.tensor(block.order, device=device)].flatten()
        indices.append(rows + first)
        first += block.rows
    return torch.cat(indices)


def in_step(conv: Tensor) -> Tensor:
    """Turns a stored depthwise convolution [channels, 1, kernel] into [channels, kernel] with adjacent channels
    adjacent in memory, as the kernel reads them.
    """
    return conv.squeeze(1).t().contiguous().t()
