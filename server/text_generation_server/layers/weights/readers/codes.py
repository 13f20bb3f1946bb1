"""Quantised weights in the layout of the kernels that multiply them by 16-bit activations."""

from dataclasses import dataclass, replace

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
        layout = self.inputs, self.group_size, offset
        scales, size = kernels.pack_scales(self.scales, *layout)
        zeros = None if self.zeros is None else kernels.pack_scales(self.zeros, *layout)[0]
        return WeightOnlyLinear(self.inputs, kernels.PackedMatrix(self.packed, scales, zeros, self.table, size), perm)
