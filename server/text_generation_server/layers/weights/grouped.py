"""Matrices of few bits with a scale for each group of inputs, multiplied by 16-bit inputs."""

from dataclasses import dataclass

from torch import Tensor

from ... import kernels
from ...config.quantisation import BLOCK
from .activations import Activations, ActivationScheme
from .linear import in_blocks, total_bytes


@dataclass(frozen=True)
class Grouped:
    """See `Linear`; tensors are as `kernels.grouped_linear` reads them."""

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    table: Tensor | None
    perm: Tensor | None
    group_size: int
    bias: Tensor | None = None
    wants: ActivationScheme | None = None

    @classmethod
    def of_float8(cls, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> "Grouped":
        """float8 weights [outputs, inputs] that run without float8 products; scales as those of `Rows8`."""
        inputs = weight.shape[1]
        blocks = scale if scale.dim() == 2 else scale[:, None]
        if blocks.shape[0] != weight.shape[0]:
            blocks = blocks.repeat_interleave(BLOCK, 0)[: weight.shape[0]]
        group_size = BLOCK if scale.dim() == 2 else 0
        packed, size = kernels.pack_scales(blocks, inputs, group_size)
        return cls(weight, packed, None, None, None, size, bias)

    @property
    def outputs(self) -> int:
        """See `Linear`."""
        return self.packed.shape[0]

    @property
    def nbytes(self) -> int:
        """See `Linear`."""
        return total_bytes(self.packed, self.scales, self.zeros, self.table, self.perm, self.bias)

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._product(x, self.bias, block)

    def product(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._product(x, None, block)

    def _product(self, x: Activations, bias: Tensor | None, block: int | None) -> Tensor:
        def product(x: Tensor) -> Tensor:
            out = x.new_empty(x.shape[0], self.outputs)
            held = self.packed, self.scales, self.zeros, self.table, self.perm
            kernels.grouped_linear(x, *held, bias, out, self.group_size)
            return out

        return in_blocks((x.x,), block, product)
