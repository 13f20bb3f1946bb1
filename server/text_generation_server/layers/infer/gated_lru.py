"""Gated linear recurrent unit (RG-LRU of Griffin, De et al., 2024), behind a convolution."""

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import GatedLruSpec
from ..weights import Activations, ActivationScheme, GatedLruWeights, in_blocks
from .mixer import LinearMixer
from .state import InferState, StateShape


class GatedLru(LinearMixer):
    """The blocks of channels of this rank in one layer."""

    def __init__(self, index: int, spec: GatedLruSpec, weights: GatedLruWeights) -> None:
        """`index` is the place of its state among the states of all layers."""
        self._index = index
        self._weights = weights
        self.out = weights.out
        self._dynamics = kernels.LruDynamics(weights.rate, weights.gates_bias, spec.width)
        self._channels = len(weights.rate)
        self.state = StateShape(spec.kernel, self._channels, (self._channels,))
        """What the layer keeps of each row."""

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        weights, kept = self._weights, state.states[self._index]
        inputs, gate = weights.first.apply(x, state.linear_block).split(self._channels, dim=1)
        channels = inputs.new_empty(inputs.shape)
        for runs in state.runs:
            kernels.causal_conv(inputs, weights.conv, weights.conv_bias, kept.inputs, runs, channels, False)
        gates = in_blocks((channels,), state.linear_block, self._gates)
        out = inputs.new_empty(inputs.shape)
        for runs in state.runs:
            kernels.gated_lru(channels, gates, gate, self._dynamics, kept.state, runs, out)
        return out

    def _gates(self, channels: Tensor) -> Tensor:
        """Returns the gates of [T, channels], [T, 2 * channels] by block, without their bias."""
        blocks = channels.unflatten(1, (-1, self._dynamics.width)).transpose(0, 1)
        out = channels.new_empty(len(channels), len(blocks), 2 * self._dynamics.width)
        torch.bmm(blocks, self._weights.gates, out=out.transpose(0, 1))
        return out.flatten(1)
