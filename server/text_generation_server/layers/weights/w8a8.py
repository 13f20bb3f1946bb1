"""W8A8 matrices: 8-bit weights and 8-bit activations."""

from dataclasses import dataclass, field

from torch import Tensor

import text_generation_kernels as kernels

from .activations import Activations, ActivationScheme
from .linear import activated, in_blocks, total_bytes
from .sites import Site


@dataclass(frozen=True)
class W8A8Linear:
    """See `Linear`."""

    weight: Tensor
    """[outputs, inputs] float8_e4m3fn or int8"""
    scale: Tensor
    """float32 [outputs], or [outputs or ceil(outputs / 128), ceil(inputs / 128)] of blocks"""
    wants: ActivationScheme
    """Activations that come with another scheme are quantised anew."""
    bias: Tensor | None = None
    site: Site | None = field(default=None, kw_only=True)

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
        return self._matmul(x, self.bias, block)

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        return self._matmul(x, None, block)

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`. The GEMV that reads the result of a single token quantises it."""
        if block is not None:
            return activated(self.apply(x, block), activation, wants, block)
        if x.x.shape[0] == 1 and self.scale.dim() == 1:
            return Activations(self._matmul(x, self.bias, None, activation))
        made, room = Activations.to_fill(x.x.new_empty(x.x.shape[0], self.outputs // 2), wants)
        held = self.weight, self.scale, self.bias
        kernels.w8a8_gated(*x.eight_bit(self.wants), *held, activation, made.x, room)
        return made

    def split_k(self, x: Activations) -> Tensor:
        """Computes `apply`, or leaves its split-K partials, float32 [splits, T, outputs], where that is faster."""
        if self.bias is not None or not 1 < x.x.shape[0] <= kernels.SMALL_BATCH:
            return self.apply(x)
        made = x.made_for(self.wants)
        eight, scale = made.eight_bit(self.wants)
        splits = kernels.w8a8_splits(eight, scale, self.weight, self.scale)
        if splits == 1:
            return self.apply(made)
        out = scale.new_empty(splits, eight.shape[0], self.outputs)
        kernels.w8a8_split_k(eight, scale, self.weight, self.scale, out)
        return out

    def _matmul(self, x: Activations, bias: Tensor | None, block: int | None, activation: str | None = None) -> Tensor:
        def matmul(x: Tensor, scale: Tensor | None) -> Tensor:
            out = like.new_empty(x.shape[0], self.outputs // (1 if activation is None else 2))
            kernels.w8a8_linear(x, scale, self.weight, self.scale, bias, out, activation, self.wants.bound)
            return out

        like, wants = x.x, self.wants
        if block is None and not wants.group and not wants.equals(x.scheme):
            # `w8a8_linear` quantises 16-bit activations by itself.
            return matmul(like, wants.static)
        return in_blocks(x.eight_bit(wants), block, matmul)
