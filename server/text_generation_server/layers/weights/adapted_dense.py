"""16-bit matrices with adapters beside them, whose GEMMs have neighbours fused in steps of few tokens, as those of
`Dense` have.

One token: the adapter is computed within the GEMV. A few tokens: one kernel makes what adapters add, beside the GEMM as
one more split-K partial, or before it for its epilogue. More tokens, deterministic steps, adapters that multiply
outputs or change biases, and layers whose parts do not begin at blocks of outputs are left to `AdaptedLinear`.
"""

import torch
from torch import Tensor

import text_generation_kernels as kernels

from .activations import Activations, ActivationScheme
from .adapted import AdaptedLinear, SitePages
from .current_adapters import CurrentAdapters
from .linear import Dense


class AdaptedDense(AdaptedLinear):
    """See `Linear`; `split_k` and `add` are those of `Dense`."""

    def __init__(self, base: Dense, pages: SitePages, current: CurrentAdapters) -> None:
        super().__init__(base, pages, current)
        self.weight = base.weight
        """[outputs, inputs]"""
        self._takes_one = self._piece is not None and kernels.adapted_gemv_takes(self.weight, self._piece.a)

    def apply(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        out = self._fused(x, self.bias, block)
        return super().apply(x, block) if out is None else out

    def matmul(self, x: Activations, block: int | None = None) -> Tensor:
        """See `Linear`."""
        out = self._fused(x, None, block)
        return super().matmul(x, block) if out is None else out

    def gated(
        self, x: Activations, activation: str, wants: ActivationScheme | None, block: int | None = None
    ) -> Activations:
        """See `Linear`."""
        out = None if wants is not None else self._fused(x, self.bias, block, activation)
        return super().gated(x, activation, wants, block) if out is None else Activations(out)

    def split_k(self, x: Activations) -> Tensor:
        """See `Dense`: what adapters add is the last partial."""
        if self._is_one(x) or not kernels.leaves_partials(x.x, self.weight) or not self._takes_some(x):
            return self.matmul(x)
        splits = kernels.linear_splits(x.x, self.weight)
        out = x.x.new_empty(splits + 1, len(x.x), self.outputs, dtype=torch.float32)
        kernels.linear_split_k(x.x, self.weight, out[:splits])
        kernels.lora_delta(x.x, self._adapters(), out[splits], beside=True)
        return out

    def add(self, x: Activations, residual: Tensor) -> Tensor:
        """See `Dense`."""
        if not self._takes_one or not self._is_plain:
            return residual.add_(self.apply(x))
        self._gemv(x, self.bias, residual, adds=True)
        return residual

    def _fused(
        self, x: Activations, bias: Tensor | None, block: int | None, activation: str | None = None
    ) -> Tensor | None:
        """Computes it for one or a few tokens; None: no kernel does."""
        width = self.outputs if activation is None else self.outputs // 2
        if block is not None or not self._is_plain:
            return None
        if self._is_one(x):
            if not self._takes_one:
                return None
            out = self.weight.new_empty(1, width)
            self._gemv(x, bias, out, activation)
            return out
        if not self._takes_some(x):
            return None
        delta = x.x.new_empty(len(x.x), self.outputs, dtype=torch.float32)
        kernels.lora_delta(x.x, self._adapters(), delta)
        out = x.x.new_empty(len(x.x), width)
        kernels.adapted_linear(x.x, self.weight, bias, delta, out, activation)
        return out

    def _gemv(
        self, x: Activations, bias: Tensor | None, out: Tensor, activation: str | None = None, adds: bool = False
    ) -> None:
        norm = kernels.NormPrologue()
        if x.is_one_before_norm:
            read, before, normalised = x.before_norm()
            norm = kernels.NormPrologue(before.weight, before.eps, normalised)
        else:
            read = x.x
        kernels.adapted_gemv(read, self.weight, bias, out, self._adapters(), activation, norm, adds)

    def _adapters(self) -> kernels.SiteAdapters:
        """Returns what the next launch reads of the adapters."""
        step, piece = self._current.step, self._piece
        if piece is None:
            raise ValueError("the parts of this layer do not begin at blocks of outputs")
        pages = piece.a, piece.b, piece.scale, piece.blocks, piece.run
        tables = step.order, step.tiles, step.work, step.counts, step.words
        return kernels.SiteAdapters(*pages, *tables, self._current.next_launch())

    @property
    def _is_plain(self) -> bool:
        """Whether fused kernels compute all that adapters of this step do."""
        return self._only_adds and self._piece is not None and self._current.has_launches

    @staticmethod
    def _is_one(x: Activations) -> bool:
        return x.is_one_before_norm or len(x.x) == 1

    def _takes_some(self, x: Activations) -> bool:
        is_short = self._current.step.tile_tokens == kernels.TILE_TOKENS
        return is_short and self._is_plain and self._piece is not None and kernels.lora_delta_takes(x.x, self._piece.a)
