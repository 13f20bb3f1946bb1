"""The part of a layer that treats each token alone."""

from typing import Protocol

from torch import Tensor

from ... import kernels
from ...config.spec import DenseSpec
from ..weights import Activations, ActivationScheme, Dense, DenseWeights, Rows8, in_parts
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

    def in_parts(self, x: Activations, state: InferState) -> Tensor:
        """`forward`, or float32 [parts, N, hidden] that are yet to be added up, where that is faster."""
        return self.forward(x, state)


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

    def in_parts(self, x: Activations, state: InferState) -> Tensor:
        """See `FeedForward`."""
        return in_parts(self._weights.down, self._activated(x, state.linear_block), state.linear_block)

    def _activated(self, x: Activations, block: int | None) -> Activations:
        """[N, hidden] to what the second product reads, [N, inner]."""
        matrix, wants = self._weights.first, self._weights.down.wants
        if self._gated and wants is None and isinstance(matrix, Dense):
            return Activations(matrix.gated(x, self._activation, block))
        if self._gated and isinstance(matrix, Rows8):
            return matrix.gated(x, self._activation, wants, block)
        first = matrix.apply(x, block)
        if not self._gated:
            kernels.activate(first, self._activation, first)
            return Activations(first)
        activated, room = Activations.to_fill(first.new_empty(first.shape[0], first.shape[1] // 2), wants)
        kernels.act_and_mul(first, self._activation, activated.x, *room)
        return activated
