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
    """Rows `start` to `stop` of the stored matrix `name`, which has `size` rows."""

    name: str
    size: int
    start: int
    stop: int


def column_parallel(source: WeightSource, blocks: Sequence[RowBlock], inputs: int, bias: bool) -> Linear:
    """Stacks this rank's rows of several stored matrices into one, so that one product computes them all."""
    weights = [
        source.read(f"{block.name}.weight", (block.size, inputs), Slice(0, block.start, block.stop)) for block in blocks
    ]
    biases = [
        source.read(f"{block.name}.bias", (block.size,), Slice(0, block.start, block.stop)) for block in blocks if bias
    ]
    return Linear(torch.cat(weights), torch.cat(biases) if biases else None)


def row_parallel(
    source: WeightSource, name: str, shape: tuple[int, int], columns: tuple[int, int], bias: bool
) -> Linear:
    """Reads this rank's input columns of a stored matrix. `bias`: whether this rank adds it; one of the ranks must."""
    weight = source.read(f"{name}.weight", shape, Slice(1, *columns))
    return Linear(weight, source.read(f"{name}.bias", shape[:1]) if bias else None)
