"""Dense feed-forward network of a layer."""

from dataclasses import replace
from typing import Protocol

from torch import Tensor

from ...config.spec import DenseSpec
from ..weights import Activations, ActivationScheme, Adapting, DenseWeights, activate
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

    def adapted(self, adapting: Adapting) -> "FeedForward":
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

    def adapted(self, adapting: Adapting) -> "DenseFeedForward":
        """See `FeedForward`."""
        first, down = adapting.linear(self._weights.first), adapting.linear(self._weights.down)
        return DenseFeedForward(self._spec, replace(self._weights, first=first, down=down))
