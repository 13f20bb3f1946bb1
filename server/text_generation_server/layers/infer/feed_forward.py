"""Dense feed-forward network of a layer."""

from typing import Protocol

from torch import Tensor

from ...config.spec import DenseSpec
from ..weights import Activations, ActivationScheme, DenseWeights, activate
from .addend import Addend, Destination
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

    def addend(self, x: Activations, state: InferState, to: Destination) -> Addend:
        """As `forward`, left where the running sum takes it."""
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
        return self._weights.down.apply(self._activated(x, state.linear_block), state.linear_block)

    def addend(self, x: Activations, state: InferState, to: Destination) -> Addend:
        """See `FeedForward`."""
        return to.product(self._weights.down, self._activated(x, state.linear_block), state)

    def _activated(self, x: Activations, block: int | None) -> Activations:
        """[N, hidden] to what the second product reads, [N, inner]."""
        matrix = self._weights.first
        if self._gated:
            return matrix.gated(x, self._activation, self._weights.down.wants, block)
        first = matrix.apply(x, block)
        activate(first, self._activation, block)
        if self._weights.act_scales is not None:
            first /= self._weights.act_scales
        return Activations(first)
