"""Normalisation, and the places where a sublayer reads the residual stream."""

from torch import Tensor

import text_generation_kernels as kernels

from ...config.spec import NormSpec
from ...distributed import PendingAllReduce, TensorParallelGroup
from ..weights import Activations, ActivationScheme, NormWeights, RmsNorm
from .addend import Addend


class Norm:
    """One normalisation over the last dimension, whole on every rank."""

    def __init__(self, spec: NormSpec, weights: NormWeights) -> None:
        self.eps = spec.eps
        self.is_rms = spec.kind == "rms"
        self.weights = weights

    def apply(self, x: Tensor, out: Tensor) -> None:
        """[N, size] each; `out` may be `x`."""
        if self.is_rms:
            kernels.rms_norm(x, self.weights.weight, self.eps, out)
        else:
            kernels.layer_norm(x, self.weights.weight, self.weights.bias, self.eps, out)

    def read(self, x: Tensor, out: Tensor, wants: ActivationScheme | None) -> Activations:
        """As `apply`, for a matrix that wants its input so, or later, by a product of one token itself."""
        if not self.is_rms:
            self.apply(x, out)
            return Activations(out)
        if wants is None and x.shape[0] == 1:
            return Activations(x, norm=RmsNorm(self.weights.weight, self.eps))
        made, room = Activations.to_fill(out, wants)
        kernels.rms_norm(x, self.weights.weight, self.eps, out, *room)
        return made


class Junction:
    """Where the output of one part of a layer is added to the sum, and the next part reads it.

    `output_norm` is that of the part before, `input_norm` that of the part behind. Collective, addition and
    normalisations are in one place so that they can be one operator. `wants`: how the next part wants its input.
    """

    def __init__(
        self,
        group: TensorParallelGroup,
        input_norm: Norm | None,
        output_norm: Norm | None = None,
        scale: float = 1.0,
        wants: ActivationScheme | None = None,
        replaces: bool = False,
    ) -> None:
        """`replaces`: what the next part reads takes the place of the sum."""
        self._group = group
        self._input = input_norm
        self._output = output_norm
        self._scale = scale
        self._wants = wants
        self._replaces = replaces
        self._is_one = not replaces and input_norm is not None and input_norm.is_rms and _fits(input_norm, output_norm)

    @property
    def takes_parts(self) -> bool:
        """Whether it adds up what a product has left in parts at no cost."""
        return self._is_one and self._group.world_size == 1

    def read(self, x: Addend, residual: Tensor | None) -> tuple[Activations, Tensor]:
        """Adds `x`, which the ranks have parts of, to `residual`, both [N, hidden]: what the next part reads, and the
        sum, which may be one tensor. Reuses the memory of both. Without `residual`, and where both are one tensor, `x`
        is the whole sum. Where `takes_parts`, `x` may be float32 [parts, N, hidden], whose sum is meant.
        """
        if isinstance(x, PendingAllReduce):
            return self._first(x.end()) if residual is None else self.read_sum(x, residual)
        if residual is None or x is residual:
            return self._first(x)
        if x.dim() == 3 and self.takes_parts and self._input is not None:
            weight, eps = self._input.weights.weight, self._input.eps
            made, room = Activations.to_fill(residual.new_empty(residual.shape), self._wants)
            kernels.add_rms_norm(x, residual, weight, eps, made.x, self._scale, self._x_weight, *room)
            return made, residual
        if x.dim() == 3:
            x = x.sum(0).to(residual.dtype)
        if self._is_one and self._input is not None:
            weight, eps = self._input.weights.weight, self._input.eps
            made, room = Activations.to_fill(x, self._wants)
            self._group.allreduce_add_norm(x, residual, weight, eps, self._scale, self._x_weight, *room)
            return made, residual
        self._group.all_reduce(x)
        return self._read_summed(x, residual)

    def read_sum(self, x: PendingAllReduce, residual: Tensor) -> tuple[Activations, Tensor]:
        """As `read`, of a sum that was begun before."""
        if self._is_one and self._input is not None:
            made, room = Activations.to_fill(x.x, self._wants)
            x.add_norm(residual, self._input.weights.weight, self._input.eps, self._scale, self._x_weight, *room)
            return made, residual
        return self._read_summed(x.end(), residual)

    def _read_summed(self, x: Tensor, residual: Tensor) -> tuple[Activations, Tensor]:
        if self._output is not None:
            self._output.apply(x, x)
        if self._input is None or self._replaces:
            return self._first(residual.add_(x, alpha=self._scale))
        if self._scale != 1.0:
            x.mul_(self._scale)
        weights = self._input.weights
        kernels.add_layer_norm(x, residual, weights.weight, weights.bias, self._input.eps, x)
        return Activations(x), residual

    @property
    def _x_weight(self) -> Tensor | None:
        return None if self._output is None else self._output.weights.weight

    def _first(self, x: Tensor) -> tuple[Activations, Tensor]:
        if self._input is not None and not self._replaces:
            return self._input.read(x, x.new_empty(x.shape), self._wants), x
        if self._input is not None:
            self._input.apply(x, x)
        return Activations(x), x


def _fits(input_norm: Norm, output_norm: Norm | None) -> bool:
    """Whether the operator for both computes this."""
    return output_norm is None or (output_norm.is_rms and output_norm.eps == input_norm.eps)
