"""Convolution between two gates (LFM 2, Liquid AI, 2025)."""

from collections.abc import Sequence

from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import ShortConvSpec
from ..weights import Activations, ActivationScheme, ShortConvWeights
from .layer_state import StateShape
from .mixer import RecurrentMixer
from .state import InferState
from .state_windows import Recurrence


class ShortConv(RecurrentMixer):
    """The channels of this rank in one layer."""

    def __init__(self, index: int, spec: ShortConvSpec, weights: ShortConvWeights) -> None:
        """`index` is the place of its state among the states of all layers."""
        self._index = index
        self._weights = weights
        self.out = weights.out
        self._channels = len(weights.conv)
        # The last inputs are all that it keeps.
        self.state = StateShape(spec.kernel, self._channels, (0,), (self._channels,))

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        first = self._weights.first.apply(x, state.linear_block)
        before, behind, values = first.split(self._channels, dim=1)
        inputs = before * values
        state.keep(self._index, inputs)
        return self._convolved(inputs, state.recurrences(self._index)).mul_(behind)

    def replay(self, read: Sequence[Tensor], tokens: Recurrence, deterministic: bool) -> None:  # noqa: ARG002 - it always is
        """See `RecurrentMixer`."""
        self._convolved(read[0], [tokens])

    def _convolved(self, inputs: Tensor, recurrences: Sequence[Recurrence]) -> Tensor:
        weights, out = self._weights, inputs.new_empty(inputs.shape)
        for runs, kept in recurrences:
            kernels.causal_conv(inputs, weights.conv, weights.conv_bias, kept.inputs, runs, out, False)
        return out
