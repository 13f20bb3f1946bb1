"""Matrices of 8-bit numbers, multiplied by 8-bit inputs."""

from dataclasses import dataclass

from torch import Tensor

from ... import kernels
from ...kernels.scaled_linear import MAX_TOKENS
from .activations import Activations, ActivationScheme
from .linear import Linear, in_blocks, total_bytes


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

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """`apply`, then `act_and_mul`: [T, inputs] to [T, outputs / 2], in the form that the next matrix wants."""
        made, room = Activations.to_fill(x.x.new_empty(x.x.shape[0], self.outputs // 2), wants)
        if block is None:
            held = self.weight, self.scale, self.bias
            kernels.scaled_gated(*x.eight_bit(self.wants), *held, activation, made.x, *room)
        else:
            kernels.act_and_mul(self.apply(x, block), activation, made.x, *room)
        return made

    def in_parts(self, x: Activations) -> Tensor:
        """See the function of this name."""
        if self.bias is not None or not 1 < x.x.shape[0] <= MAX_TOKENS:
            return self.apply(x)
        made = x.made_for(self.wants)
        eight, scale = made.eight_bit(self.wants)
        parts = kernels.parts_of(eight, scale, self.weight, self.scale)
        if parts == 1:
            return self.apply(made)
        out = scale.new_empty(parts, eight.shape[0], self.outputs)
        kernels.scaled_in_parts(eight, scale, self.weight, self.scale, out)
        return out

    def _product(self, x: Activations, bias: Tensor | None, block: int | None) -> Tensor:
        def product(eight: Tensor, scale: Tensor) -> Tensor:
            out = x.x.new_empty(eight.shape[0], self.outputs)
            kernels.scaled_linear(eight, scale, self.weight, self.scale, bias, out)
            return out

        return in_blocks(x.eight_bit(self.wants), block, product)


def in_parts(matrix: Linear, x: Activations, block: int | None) -> Tensor:
    """`matrix.apply`, or float32 [parts, T, outputs] that are yet to be added up, where that is faster."""
    if block is None and isinstance(matrix, Rows8):
        return matrix.in_parts(x)
    return matrix.apply(x, block)
