"""Weight-only quantised matrices, with a scale for each group of inputs and 16-bit activations."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

import text_generation_kernels as kernels

from .activations import Activations, ActivationScheme
from .linear import activated, are_alone, dense_matmul, in_blocks, total_bytes
from .sites import Site


@dataclass
class WeightOnlyLinear:
    """See `Linear`."""

    inputs: int
    weight: kernels.PackedMatrix
    perm: Tensor | None = None
    """int64 [inputs]: the order in which the matrix takes the activations."""
    bias: Tensor | None = None
    wants: ActivationScheme | None = None
    copy: Tensor | None = None
    """The 16-bit copy for large batches, where it is kept (`copies.py`); never in deterministic mode."""
    site: Site | None = field(default=None, kw_only=True)

    @property
    def outputs(self) -> int:
        """See `Linear`."""
        return self.weight.outputs

    @property
    def nbytes(self) -> int:
        """See `Linear`."""
        return self.weight.nbytes + total_bytes(self.perm, self.bias, self.copy)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """Dequantises the matrix to [outputs, inputs], with inputs in the order of the activations."""
        matrix = torch.empty(self.outputs, self.inputs, dtype=dtype, device=self.weight.packed.device)
        kernels.dequantise(self.weight, matrix)
        return matrix if self.perm is None else matrix.index_select(1, self.perm.argsort())

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._matmul(x, self.bias, block)

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._matmul(x, None, block)

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`. The GEMV that reads the result of a single token quantises it."""
        if are_alone(self.weight.packed, block) or (wants is not None and (block is not None or x.x.shape[0] > 1)):
            return activated(self.apply(x, block), activation, wants, block)
        return Activations(self._matmul(x, self.bias, block, activation))

    def _matmul(self, x: Activations, bias: Tensor | None, block: int | None, activation: str | None = None) -> Tensor:
        def matmul(x: Tensor) -> Tensor:
            if self.copy is not None and x.shape[0] > kernels.SMALL_BATCH:
                return dense_matmul(x, self.copy, bias, activation)
            out = x.new_empty(x.shape[0], self.outputs // (1 if activation is None else 2))
            kernels.weight_only_linear(x, self.weight, self.perm, bias, out, activation)
            return out

        return in_blocks((x.x,), block, matmul)
