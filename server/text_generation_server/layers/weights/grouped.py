"""Matrices of few bits with a scale for each group of inputs, multiplied by 16-bit inputs."""

from dataclasses import dataclass

from torch import Tensor

from ... import kernels
from .activations import Activations, ActivationScheme
from .linear import activated, in_blocks, total_bytes


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

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`. Of a single token, whoever reads the result quantises it."""
        if wants is not None and (block is not None or x.x.shape[0] > 1):
            return activated(self.apply(x, block), activation, wants)
        return Activations(self._product(x, self.bias, block, activation))

    def _product(self, x: Activations, bias: Tensor | None, block: int | None, activation: str | None = None) -> Tensor:
        def product(x: Tensor) -> Tensor:
            out = x.new_empty(x.shape[0], self.outputs // (1 if activation is None else 2))
            held = self.packed, self.scales, self.zeros, self.table, self.perm
            kernels.grouped_linear(x, *held, bias, out, self.group_size, activation)
            return out

        return in_blocks((x.x,), block, product)
