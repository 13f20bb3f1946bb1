"""Interface of mixers: the parts of layers in which tokens of one request read each other."""

from typing import Protocol

from torch import Tensor

from ..weights import Activations, ActivationScheme, Linear
from .addend import Addend, Destination
from .state import InferState


class Mixer(Protocol):
    """One rank's part of the mixer of a layer."""

    out: Linear
    """From what `forward` returns to hidden states, row parallel."""

    @property
    def wants(self) -> ActivationScheme | None:
        """How it wants its input; see `Linear`."""
        ...

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """[T, hidden] to what the heads of this rank read, [T, heads * value_dim]. Writes what this layer keeps."""
        ...

    def project(self, heads: Tensor, state: InferState) -> Tensor:
        """What `forward` returned, or some of its tokens, to this rank's part of the result, [N, hidden]: the sum over
        the ranks is for the caller.
        """
        return self.out.apply(Activations(heads), state.linear_block)

    def addend(self, heads: Tensor, state: InferState, to: Destination) -> Addend:
        """As `project`, left where the running sum takes it."""
        return to.product(self.out, Activations(heads), state)
