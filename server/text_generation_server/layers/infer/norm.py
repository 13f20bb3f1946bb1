"""Norms, and the residual add + norm between two sublayers."""

import copy

from torch import Tensor

import text_generation_kernels as kernels

from ...config.spec import NormSpec
from ...distributed import PendingAllReduce, TensorParallelGroup
from ..weights import Activations, ActivationScheme, Adapting, NormWeights, ReplacedNorm, RmsNorm
from .fusion import SublayerOutput


class Norm:
    """One norm over the last dimension, whole on every rank."""

    def __init__(self, spec: NormSpec, weights: NormWeights) -> None:
        self.eps = spec.eps
        self.is_rms = spec.kind == "rms"
        self.weights = weights
        self._replaced: ReplacedNorm | None = None

    def adapted(self, adapting: Adapting) -> "Norm":
        """Returns a norm for tokens with adapters, which shares everything else with this one."""
        made = copy.copy(self)
        made._replaced = adapting.norm(self.weights)
        return made

    def of_adapters(self, x: Tensor, made: Activations) -> Activations:
        """Returns `made`, the norm of `x` [T, hidden] by the base's weights, with those of the tokens' adapters."""
        if self._replaced is None:
            return made
        self._replaced.apply(x, self.eps, self.is_rms, made.x)
        return Activations(made.x).made_for(made.scheme)

    @property
    def is_replaced(self) -> bool:
        """Whether tokens may have weights of their adapters."""
        return self._replaced is not None

    def apply(self, x: Tensor, out: Tensor) -> None:
        """Normalises `x` into `out`, [N, size] each, which may be one tensor."""
        if self._replaced is not None:
            given, _ = x.clone() if x is out else x, self._apply(x, out)
            self._replaced.apply(given, self.eps, self.is_rms, out)
            return
        self._apply(x, out)

    def _apply(self, x: Tensor, out: Tensor) -> None:
        if self.is_rms:
            kernels.rms_norm(x, self.weights.weight, self.eps, out)
        else:
            kernels.layer_norm(x, self.weights.weight, self.weights.bias, self.eps, out)

    def read(self, x: Tensor, out: Tensor, wants: ActivationScheme | None) -> Activations:
        """Normalises `x` for a matrix that `wants` its input quantised in some way. The RMS norm of one token is left
        to the prologue of the GEMV that reads it.
        """
        return self.of_adapters(x, self._read(x, out, wants))

    def _read(self, x: Tensor, out: Tensor, wants: ActivationScheme | None) -> Activations:
        if not self.is_rms:
            self._apply(x, out)
            return Activations(out)
        if wants is None and x.shape[0] == 1:
            return Activations(x, norm=RmsNorm(self.weights.weight, self.eps))
        made, room = Activations.to_fill(out, wants)
        kernels.rms_norm(x, self.weights.weight, self.eps, out, room)
        return made


class AddNorm:
    """The residual add + norm between two sublayers.

    It all-reduces the output of the previous sublayer, normalises it by `output_norm`, adds it to the residual stream,
    and normalises the sum by `input_norm` for the next sublayer, which `wants` its input quantised in some way. All of
    this is in one place so that one operator can do it. Either norm may be missing.
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
        """With `replaces`, the normalised sum is the new residual stream (post-norm)."""
        self._group = group
        self._input = input_norm
        self._output = output_norm
        self._scale = scale
        self._wants = wants
        self._replaces = replaces
        self._is_one = not replaces and input_norm is not None and input_norm.is_rms and _fits(input_norm, output_norm)

    def adapted(self, adapting: Adapting) -> "AddNorm":
        """Returns one for tokens with adapters, which may replace both norms. It shares all else with this one."""
        made = copy.copy(self)
        made._input = None if self._input is None else self._input.adapted(adapting)
        made._output = None if self._output is None else self._output.adapted(adapting)
        return made

    @property
    def takes_partials(self) -> bool:
        """Whether it adds up split-K partials at no cost."""
        return self._is_one and self._group.world_size == 1

    def read(self, x: SublayerOutput, residual: Tensor | None) -> tuple[Activations, Tensor]:
        """Adds `x`, of which each rank has partial sums, to `residual`, both [N, hidden]. Returns the input of the next
        sublayer and the new residual stream, which may be one tensor; it reuses the memory of both arguments. Without
        `residual`, or where both are one tensor, `x` is the residual stream already. `x` may also be an all-reduce that
        has begun, or split-K partials, float32 [splits, N, hidden].
        """
        if residual is not None and x is not residual and self._output is not None and self._output.is_replaced:
            return self._read_apart(x, residual)
        if isinstance(x, PendingAllReduce):
            return self._first(x.end()) if residual is None else self.read_sum(x, residual)
        if residual is None or x is residual:
            return self._first(x)
        if x.dim() == 3 and self.takes_partials and self._input is not None:
            weight, eps = self._input.weights.weight, self._input.eps
            made, room = Activations.to_fill(residual.new_empty(residual.shape), self._wants)
            kernels.add_rms_norm(x, residual, weight, eps, made.x, self._scale, self._x_weight, room)
            return self._input.of_adapters(residual, made), residual
        if x.dim() == 3:
            x = x.sum(0).to(residual.dtype)
        if self._is_one and self._input is not None:
            weight, eps = self._input.weights.weight, self._input.eps
            made, room = Activations.to_fill(x, self._wants)
            self._group.allreduce_add_norm(x, residual, weight, eps, self._scale, self._x_weight, room)
            return self._input.of_adapters(residual, made), residual
        self._group.all_reduce(x)
        return self._read_summed(x, residual)

    def read_sum(self, x: PendingAllReduce, residual: Tensor) -> tuple[Activations, Tensor]:
        """Finishes an all-reduce that was begun before, then does what `read` does."""
        if self._is_one and self._input is not None:
            made, room = Activations.to_fill(x.x, self._wants)
            x.add_norm(residual, self._input.weights.weight, self._input.eps, self._scale, self._x_weight, room)
            return self._input.of_adapters(residual, made), residual
        return self._read_summed(x.end(), residual)

    def _read_apart(self, x: SublayerOutput, residual: Tensor) -> tuple[Activations, Tensor]:
        """Does what `read` does where adapters replace the output norm, as no fused operator can."""
        if isinstance(x, PendingAllReduce):
            x = x.end()
        elif x.dim() == 3:
            x = x.sum(0).to(residual.dtype)
        else:
            self._group.all_reduce(x)
        if not self._is_one or self._input is None or self._output is None:
            return self._read_summed(x, residual)
        self._output.apply(x, x)
        made, room = Activations.to_fill(x, self._wants)
        weight, eps = self._input.weights.weight, self._input.eps
        kernels.add_rms_norm(x, residual, weight, eps, made.x, self._scale, None, room)
        return self._input.of_adapters(residual, made), residual

    def _read_summed(self, x: Tensor, residual: Tensor) -> tuple[Activations, Tensor]:
        if self._output is not None:
            self._output.apply(x, x)
        if self._input is None or self._replaces:
            return self._first(residual.add_(x, alpha=self._scale))
        if self._scale != 1.0:
            x.mul_(self._scale)
        weights = self._input.weights
        kernels.add_layer_norm(x, residual, weights.weight, weights.bias, self._input.eps, x)
        return self._input.of_adapters(residual, Activations(x)), residual

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
    """Whether the fused operator computes these two norms."""
    return output_norm is None or (output_norm.is_rms and output_norm.eps == input_norm.eps)
