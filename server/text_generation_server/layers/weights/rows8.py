"""Matrices of 8-bit numbers, multiplied by 8-bit inputs."""

from dataclasses import dataclass

from torch import Tensor

from ... import kernels
from .activations import Activations, ActivationScheme
from .linear import in_blocks, total_bytes


@dataclass(frozen=True)
class Rows8:
    """See `Linear`."""

    weight: Tensor
    """[outputs, inputs] float8_e4m3fn or int8"""
    scale: Tensor
    """float32 [outputs], or [outputs or ceil(outputs / 128), ceil(inputs / 128)] of blocks"""
    wants: ActivationScheme
    """Inputs that come otherwise are quantised once more."""
    bias: Tensor | None = None

    @property
    def outputs(self) -> int:
        """See `Linear`."""
        return self.weight.shape[0]

    @property
    def nbytes(self) -> int:
        """See `Linear`."""
        return total_bytes(self.weight, self.scale, self.bias)

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._product(x, self.bias, block)

    def product(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._product(x, None, block)

    def _product(self, x: Activations, bias: Tensor | None, block: int | None) -> Tensor:
        def product(eight: Tensor, scale: Tensor) -> Tensor:
            out = x.x.new_empty(eight.shape[0], self.outputs)
            kernels.scaled_linear(eight, scale, self.weight, self.scale, bias, out)
            return out

        return in_blocks(x.eight_bit(self.wants), block, product)
