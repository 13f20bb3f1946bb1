"""Convolution between two gates (LFM 2, Liquid AI, 2025)."""

from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import ShortConvSpec
from ..weights import Activations, ActivationScheme, ShortConvWeights
from .mixer import LinearMixer
from .state import InferState, StateShape


class ShortConv(LinearMixer):
    """The channels of this rank in one layer."""

    def __init__(self, index: int, spec: ShortConvSpec, weights: ShortConvWeights) -> None:
        """`index` is the place of its state among the states of all layers."""
        self._index = index
        self._weights = weights
        self.out = weights.out
        self._channels = len(weights.conv)
        self.state = StateShape(spec.kernel, self._channels, (0,))
        """What the layer keeps of each row: the last inputs."""

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        weights, kept = self._weights, state.states[self._index]
        before, behind, values = weights.first.apply(x, state.linear_block).split(self._channels, dim=1)
        inputs = before * values
        out = inputs.new_empty(inputs.shape)
        for runs in state.runs:
            kernels.causal_conv(inputs, weights.conv, weights.conv_bias, kept.inputs, runs, out, False)
        return out.mul_(behind)
