"""The part of a layer that treats each token alone."""

from typing import Protocol

from torch import Tensor

from ... import kernels
from ...config.spec import DenseSpec
from ..weights import DenseWeights
from .state import InferState


class FeedForward(Protocol):
    """Of one layer."""

    def forward(self, x: Tensor, state: InferState) -> Tensor:
        """[N, hidden] to this rank's part of the result, [N, hidden]: the sum over the ranks is for the caller."""
        ...


class DenseFeedForward(FeedForward):
    """Two products, and an activation between them."""

    def __init__(self, spec: DenseSpec, weights: DenseWeights) -> None:
        self._activation = spec.activation
        self._gated = spec.gated
        self._weights = weights

    def forward(self, x: Tensor, state: InferState) -> Tensor:
        """See `FeedForward`."""
        first = self._weights.first.apply(x, state.linear_block)
        if self._gated:
            activated = first.new_empty(x.shape[0], first.shape[1] // 2)
            kernels.act_and_mul(first, self._activation, activated)
        else:
            activated = first
            kernels.activate(first, self._activation, activated)
        return self._weights.down.apply(activated, state.linear_block)
