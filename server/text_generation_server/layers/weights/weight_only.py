"""Weight-only quantised matrices, with a scale for each group of inputs and 16-bit activations."""

from dataclasses import dataclass

import torch
from torch import Tensor

import text_generation_kernels as kernels

from .activations import Activations, ActivationScheme
from .linear import activated, are_alone, dense_product, in_blocks, total_bytes

_FEW = 64
"""Up to so many tokens, GEMMs read the codes though there is a copy. For more, the copy is faster on an H200."""


@dataclass
class WeightOnlyLinear:
    """See `Linear`; tensors are as `kernels.weight_only_linear` reads them."""

    inputs: int
    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    table: Tensor | None
    perm: Tensor | None
    group_size: int
    bias: Tensor | None = None
    wants: ActivationScheme | None = None
    copy: Tensor | None = None
    """What `dequantised` returns, where it is kept for many tokens (`copies.py`). Not for batches whose size must not
    change a result.
    """

    @property
    def outputs(self) -> int:
        """See `Linear`."""
        return self.packed.shape[0]

    @property
    def nbytes(self) -> int:
        """See `Linear`."""
        return total_bytes(self.packed, self.scales, self.zeros, self.table, self.perm, self.bias, self.copy)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """[outputs, inputs], with the inputs in the order in which they come."""
        matrix = torch.empty(self.outputs, self.inputs, dtype=dtype, device=self.packed.device)
        kernels.dequantise(self.packed, self.scales, self.zeros, self.table, matrix, self.group_size)
        return matrix if self.perm is None else matrix.index_select(1, self.perm.argsort())

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._product(x, self.bias, block)

    def product(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._product(x, None, block)

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`. Of a single token, whoever reads the result quantises it."""
        if are_alone(self.packed, block) or (wants is not None and (block is not None or x.x.shape[0] > 1)):
            return activated(self.apply(x, block), activation, wants, block)
        return Activations(self._product(x, self.bias, block, activation))

    def _product(self, x: Activations, bias: Tensor | None, block: int | None, activation: str | None = None) -> Tensor:
        def product(x: Tensor) -> Tensor:
            if self.copy is not None and x.shape[0] > _FEW:
                return dense_product(x, self.copy, bias, activation)
            out = x.new_empty(x.shape[0], self.outputs // (1 if activation is None else 2))
            held = self.packed, self.scales, self.zeros, self.table, self.perm
            kernels.weight_only_linear(x, *held, bias, out, self.group_size, activation)
            return out

        return in_blocks((x.x,), block, product)
