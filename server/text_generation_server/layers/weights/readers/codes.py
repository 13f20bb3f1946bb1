"""Quantised weights in the layout of the kernels that multiply them by 16-bit activations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ..formats import FactoredScales
from ..weight_only import WeightOnlyLinear


@dataclass(frozen=True)
class Codes:
    """The codes of a matrix, or of some outputs of one expert."""

    packed: Tensor
    """[outputs, ...] as `pack_codes` makes it, or float8."""
    inputs: int
    scales: Tensor
    """[outputs, groups] float32"""
    zeros: Tensor | None
    table: Tensor | None
    group_size: int
    """0: all inputs are one group."""
    w8a8: bool = False
    """See `ExpertMatrix`."""
    factored: FactoredScales | None = None
    """What `scales` were made of, if of such."""

    def scaled(self, factor: Tensor) -> "Codes":
        """Returns those of the matrix times a number."""
        factored = self.factored
        if factored is not None:
            factored = replace(factored, factors=factored.factors * factor)
        return replace(self, scales=self.scales * factor, factored=factored)

    def linear(self, offset: int = 0, perm: Tensor | None = None) -> WeightOnlyLinear:
        """Returns the `Linear` of these codes. `offset` and `perm` have the meaning of `Groups`."""
        scales, size, factors = packed_scales([self], offset)
        zeros = self.zeros
        zeros = None if zeros is None else kernels.pack_scales(zeros, self.inputs, self.group_size, offset)[0]
        matrix = kernels.PackedMatrix(self.packed, scales, zeros, self.table, size, factors)
        return WeightOnlyLinear(self.inputs, matrix, perm)


def packed_scales(parts: Sequence[Codes], offset: int = 0) -> tuple[Tensor, int, Tensor | None]:
    """Scales of matrices one below the other and the size of their groups, as the kernels read them, and what scales
    that stay float8 are multiplied by. `offset` has the meaning of `Groups`.
    """
    layout = parts[0].inputs, parts[0].group_size, offset
    factored = [part.factored for part in parts if part.factored is not None]
    is_whole = parts[0].group_size == min(kernels.KERNEL_GROUPS) and offset % parts[0].group_size == 0
    if len(factored) < len(parts) or not is_whole:
        return *kernels.pack_scales(torch.cat([part.scales for part in parts]), *layout), None
    whole = FactoredScales.cat(factored)
    scales, size = kernels.pack_scales(whole.scales.float(), *layout)
    return scales.to(whole.scales.dtype), size, whole.factors
