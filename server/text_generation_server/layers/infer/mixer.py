"""Interface of token mixers: attention and recurrent sublayers, in which tokens of one request read each other."""

import copy
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from ..weights import Activations, ActivationScheme, Adapting, Linear, wrapped
from .fusion import OutputFusion, SublayerOutput
from .layer_state import StateShape
from .state import InferState
from .state_windows import Recurrence


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

    def adapted(self, adapting: Adapting) -> "Mixer":
        """Returns a mixer for tokens with adapters, which shares everything else with this one. `adapting` makes its
        linear layers.
        """
        ...


class LinearMixer(Mixer):
    """A mixer that reads its linear layers from its weights alone."""

    _weights: Any
    """A dataclass, of which `out` is a field."""

    def adapted(self, adapting: Adapting) -> "LinearMixer":
        """See `Mixer`."""
        made = copy.copy(self)
        made._weights = wrapped(self._weights, adapting)
        made.out = made._weights.out
        return made


class RecurrentMixer(LinearMixer):
    """A mixer that keeps a state of each row."""

    state: StateShape
    """What the layer keeps of each row."""

    def replay(self, read: Sequence[Tensor], tokens: Recurrence, deterministic: bool) -> None:
        """Advances states once more, by tokens that `forward` has computed: from `read`, what it gave to
        `InferState.keep`, [T, elements] each, which may be overwritten. `deterministic` has the meaning of
        `InferState`. Adapters have no part in it.
        """
        ...
