"""The part of a layer that treats each token alone."""

from typing import Protocol

from torch import Tensor

from ... import kernels
from ...config.spec import DenseSpec
from ..weights import Activations, ActivationScheme, DenseWeights
from .state import InferState


class FeedForward(Protocol):
    """Of one layer."""

    @property
    def wants(self) -> ActivationScheme | None:
        """How it wants its input; see `Linear`."""
        ...

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """[N, hidden] to this rank's part of the result, [N, hidden]: the sum over the ranks is for the caller."""
        ...


class DenseFeedForward(FeedForward):
    """Two products, and an activation between them."""

    def __init__(self, spec: DenseSpec, weights: DenseWeights) -> None:
        self._activation = spec.activation
        self._gated = spec.gated
        self._weights = weights

    @property
    def wants(self) -> ActivationScheme | None:
        """See `FeedForward`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `FeedForward`."""
        first, down = self._weights.first.apply(x, state.linear_block), self._weights.down
        if self._gated:
            activated, room = Activations.to_fill(first.new_empty(first.shape[0], first.shape[1] // 2), down.wants)
            kernels.act_and_mul(first, self._activation, activated.x, *room)
        else:
            activated = Activations(first)
            kernels.activate(first, self._activation, first)
        return down.apply(activated, state.linear_block)
