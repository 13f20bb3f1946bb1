"""The stacked weights of all experts of a mixture, in 16 or 32 bits, group-quantised or in float8."""

# pyright: basic
from dataclasses import dataclass

import torch
from torch import Tensor

from ..matmul.group_quantisation import PackedMatrix


@dataclass(frozen=True, slots=True, eq=False)
class ExpertMatrix:
    """Matrices [outputs, inputs] of one size, stacked.

    Those of 16 or 32 bits have only `weight`, `[experts, outputs, inputs]`, and `bias`. Otherwise `weight` holds codes,
    `[experts, outputs, ...]` as `pack_codes` makes them of each expert or float8, and scales and zeros are what
    `pack_scales` makes of all experts' outputs, one below the other. All are contiguous.
    """

    weight: Tensor
    bias: Tensor | None = None
    """[experts, outputs]"""
    scales: Tensor | None = None
    zeros: Tensor | None = None
    table: Tensor | None = None
    """[16] float32"""
    group_size: int = 0
    w8a8: bool = False
    """With float8: whether activations may be quantised too (W8A8)."""
    e2m1: bool = False
    """Whether codes are the bits of 4-bit floats (OCP Microscaling Formats, 2023), as the table has them too, and
    scales are float8 or none is above 2.
    """
    factors: Tensor | None = None
    """[experts * outputs] float32: what multiplies the scales of an output, which then are float8 (NVFP4)."""

    @property
    def experts(self) -> int:
        """The number of experts."""
        return self.weight.shape[0]

    @property
    def outputs(self) -> int:
        """Outputs of each expert."""
        return self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        held = (self.weight, self.bias, self.scales, self.zeros, self.table, self.factors)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    @property
    def bits(self) -> int:
        """Bits of a stored weight."""
        return 4 if self.weight.dtype == torch.int32 else 8 * self.weight.element_size()

    @property
    def groups(self) -> int:
        """Groups in 256 inputs; 1: all inputs are one group."""
        return 1 if self.scales is None or self.scales.dim() == 2 else self.scales.shape[2]

    @property
    def is_packed(self) -> bool:
        """Whether it holds codes."""
        return self.scales is not None

    def of(self, expert: int, inputs: int) -> Tensor:
        """One expert's weights [outputs, inputs]: as they are, or float32 where they are codes."""
        if self.scales is None:
            return self.weight[expert]
        rows = slice(expert * self.outputs, (expert + 1) * self.outputs)
        zeros = None if self.zeros is None else self.zeros[:, rows]
        factors = None if self.factors is None else self.factors[rows]
        matrix = PackedMatrix(self.weight[expert], self.scales[:, rows], zeros, self.table, self.group_size, factors)
        return matrix.values(inputs)
