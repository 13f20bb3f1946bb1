"""Interface of token mixers: attention and recurrent sublayers, in which tokens of one request read each other."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ..weights import Activations, ActivationScheme, Linear
from .fusion import OutputFusion, SublayerOutput
from .state import InferState

Wrap = Callable[[Linear], Linear]
"""Returns a linear layer with what adapters add to it, or the same one where none changes it."""


class Mixer(Protocol):
    """One rank's shard of the mixer of a layer."""

    out: Linear
    """The output projection, row parallel."""

    @property
    def wants(self) -> ActivationScheme | None:
        """How the mixer wants its input quantised; see `Linear`."""
        ...

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """Turns [T, hidden] into what the heads of this rank read, [T, heads * value_dim], and writes the layer's cache
        or state.
        """
        ...

    def project(self, heads: Tensor, state: InferState) -> Tensor:
        """Applies the output projection to what `forward` returned, or to some of its tokens, and returns this rank's
        partial sums, [N, hidden]. The caller all-reduces them.
        """
        return self.out.apply(Activations(heads), state.linear_block)

    def project_fused(self, heads: Tensor, state: InferState, fusion: OutputFusion) -> SublayerOutput:
        """Computes `project` fused as `fusion` allows."""
        return fusion.apply(self.out, Activations(heads), state)

    def adapted(self, wrap: Wrap) -> "Mixer":  # noqa: ARG002 - mixers with matrices for adapters read it
        """Returns a mixer for tokens with adapters, whose linear layers went through `wrap`; a mixer that has none for
        adapters returns itself.
        """
        return self
