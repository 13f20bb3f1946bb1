"""Matrices, and the two ways of cutting them (Megatron-LM, Shoeybi et al., 2019).

Column parallel: each rank holds some outputs, and no communication is needed. Row parallel: each rank holds some
inputs, and the outputs of all ranks must be summed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ...kernels.skinny_linear import MAX_TOKENS, skinny_linear
from ...weights import Slice, WeightSource


@dataclass(frozen=True)
class Linear:
    """`x @ weight.T + bias`, or a rank's part of it."""

    weight: Tensor
    """[outputs, inputs]"""
    bias: Tensor | None = None
    """[outputs]"""

    def apply(self, x: Tensor, block: int | None = None) -> Tensor:
        """[T, inputs] to [T, outputs].

        With `block`, products are made of so many tokens at a time, the last ones padded: libraries choose their way
        of adding up by the number of tokens, so only then does a token's result not depend on the others.
        """
        return _linear(x, self.weight, self.bias, block)

    def product(self, x: Tensor, block: int | None = None) -> Tensor:
        """The same without the bias, for callers that add it elsewhere."""
        return _linear(x, self.weight, None, block)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, block: int | None) -> Tensor:
    if block is None:
        return _whole(x, weight, bias)
    padded = functional.pad(x, (0, 0, 0, -x.shape[0] % block))
    return torch.cat([_whole(part, weight, bias) for part in padded.split(block)])[: x.shape[0]]


def _whole(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """On CUDA, few tokens have an operator of ours, which reads the matrix faster."""
    if not x.is_cuda or x.shape[0] > MAX_TOKENS:
        return functional.linear(x, weight, bias)
    out = x.new_empty(x.shape[0], weight.shape[0])
    skinny_linear(x, weight, bias, out)
    return out


@dataclass(frozen=True)
class RowBlock:
    """Rows of the stored matrix `name`, which has `size` rows: those of each of `ranges`, one after the other."""

    name: str
    size: int
    ranges: tuple[tuple[int, int], ...]


def column_parallel(
    source: WeightSource, blocks: Sequence[RowBlock], inputs: int, bias: bool, transposed: bool = False
) -> Linear:
    """Stacks this rank's rows of several stored matrices into one, so that one product computes them all.

    `transposed`: what is called a row here is stored as a column.
    """

    def weight(block: RowBlock) -> Tensor:
        if transposed:
            return _ranges(source, f"{block.name}.weight", (inputs, block.size), 1, block.ranges).t()
        return _ranges(source, f"{block.name}.weight", (block.size, inputs), 0, block.ranges)

    biases = [_ranges(source, f"{block.name}.bias", (block.size,), 0, block.ranges) for block in blocks if bias]
    weights = [weight(block) for block in blocks]
    return Linear(torch.cat(weights).contiguous(), torch.cat(biases) if biases else None)


def _ranges(
    source: WeightSource, name: str, shape: tuple[int, ...], dim: int, ranges: Sequence[tuple[int, int]]
) -> Tensor:
    """Parts of dimension `dim` of a stored tensor, read at once."""
    first, last = min(start for start, _ in ranges), max(stop for _, stop in ranges)
    tensor = source.read(name, shape, Slice(dim, first, last))
    if len(ranges) == 1:
        return tensor
    return torch.cat([tensor.narrow(dim, start - first, stop - start) for start, stop in ranges], dim)


def row_parallel(
    source: WeightSource,
    name: str,
    shape: tuple[int, int],
    columns: tuple[int, int],
    bias: bool,
    transposed: bool = False,
) -> Linear:
    """Reads this rank's input columns of a stored matrix [outputs, inputs], which may be stored the other way round.

    `bias`: whether this rank adds it; one of the ranks must.
    """
    if transposed:
        weight = source.read(f"{name}.weight", (shape[1], shape[0]), Slice(0, *columns)).t().contiguous()
    else:
        weight = source.read(f"{name}.weight", shape, Slice(1, *columns))
    return Linear(weight, source.read(f"{name}.bias", shape[:1]) if bias else None)
