"""Dense feed-forward network of a layer."""

import copy
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from ...config.spec import DenseSpec
from ...distributed import TensorParallelGroup
from ..weights import Activations, ActivationScheme, DenseWeights, Wrap, activate, activated, each_alone
from .fusion import OutputFusion, SublayerOutput
from .state import InferState


class FeedForward(Protocol):
    """The feed-forward network of one layer."""

    @property
    def wants(self) -> ActivationScheme | None:
        """How the network wants its input quantised; see `Linear`."""
        ...

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """Turns [N, hidden] into this rank's partial sums, [N, hidden]. The caller all-reduces them."""
        ...

    def forward_fused(self, x: Activations, state: InferState, fusion: OutputFusion) -> SublayerOutput:
        """Computes `forward` with its last GEMM fused as `fusion` allows."""
        ...

    def adapted(self, wrap: Wrap) -> "FeedForward":
        """Returns a network for tokens with adapters; see `Mixer.adapted`."""
        ...


class DenseFeedForward(FeedForward):
    """Two GEMMs, and an activation between them."""

    def __init__(self, spec: DenseSpec, weights: DenseWeights) -> None:
        self._spec = spec
        self._activation = spec.activation
        self._gated = spec.gated
        self._weights = weights

    @property
    def wants(self) -> ActivationScheme | None:
        """See `FeedForward`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `FeedForward`."""
        return self._weights.down.apply(self._activated(x, state.linear_block), state.linear_block)

    def forward_fused(self, x: Activations, state: InferState, fusion: OutputFusion) -> SublayerOutput:
        """See `FeedForward`."""
        return fusion.apply(self._weights.down, self._activated(x, state.linear_block), state)

    def _activated(self, x: Activations, block: int | None) -> Activations:
        """Turns [N, hidden] into the input of the second GEMM, [N, inner]."""
        matrix = self._weights.first
        if self._gated:
            return matrix.gated(x, self._activation, self._weights.down.wants, block)
        first = matrix.apply(x, block)
        activate(first, self._activation, block)
        if self._weights.act_scales is not None:
            first /= self._weights.act_scales
        return Activations(first)

    def adapted(self, wrap: Wrap) -> "DenseFeedForward":
        """See `FeedForward`."""
        made = copy.copy(self)
        made._weights = replace(self._weights, first=wrap(self._weights.first), down=wrap(self._weights.down))
        return made


class ScaledFeedForward(DenseFeedForward):
    """A gated network whose gates and outputs are multiplied by numbers (muP, Yang et al., 2022)."""

    def _activated(self, x: Activations, block: int | None) -> Activations:
        first = self._weights.first.apply(x, block)
        gates, up = first.chunk(2, dim=1)
        gates.mul_(self._spec.gate_factor)
        # The second matrix is linear.
        up.mul_(self._spec.out_factor)
        return activated(first, self._activation, self._weights.down.wants, block)


class SparseFeedForward(DenseFeedForward):
    """A gated network most of whose gates are 0: those below a cutoff, which follows from mean and standard deviation
    of the gates of a token on all ranks together (Gemma 3n).
    """

    def __init__(self, spec: DenseSpec, weights: DenseWeights, group: TensorParallelGroup, cutoff: float) -> None:
        """`cutoff` is that of the spec."""
        super().__init__(spec, weights)
        self._group = group
        self._cutoff = cutoff

    def _activated(self, x: Activations, block: int | None) -> Activations:
        first = self._weights.first.apply(x, block)
        gates = first[:, : first.shape[1] // 2]
        mean = self._mean(gates.float(), block)
        variance = self._mean((gates - mean).square_(), block)
        gates.copy_((gates - mean - variance.sqrt_() * self._cutoff).relu_())
        return activated(first, self._activation, self._weights.down.wants, block)

    def _mean(self, gates: Tensor, block: int | None) -> Tensor:
        """Turns [N, gates of this rank] float32 into the means of all ranks' gates, [N, 1]."""
        parts = [part.sum(dim=1, keepdim=True) for (part,) in each_alone(block, gates)]
        total = torch.cat(parts)
        self._group.all_reduce(total)
        return total.div_(self._spec.inner)
