"""Gated linear recurrent unit (RG-LRU of Griffin, De et al., 2024), behind a convolution."""

from collections.abc import Sequence

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import GatedLruSpec
from ..weights import Activations, ActivationScheme, GatedLruWeights, in_blocks
from .layer_state import StateShape
from .mixer import RecurrentMixer
from .state import InferState
from .state_windows import Recurrence


class GatedLru(RecurrentMixer):
    """The blocks of channels of this rank in one layer."""

    def __init__(self, index: int, spec: GatedLruSpec, weights: GatedLruWeights) -> None:
        """`index` is the place of its state among the states of all layers."""
        self._index = index
        self._weights = weights
        self.out = weights.out
        self._dynamics = kernels.LruDynamics(weights.rate, weights.gates_bias, spec.width)
        self._channels = len(weights.rate)
        read = (self._channels, 2 * self._channels)
        self.state = StateShape(spec.kernel, self._channels, (self._channels,), read)

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        inputs, gate = self._weights.first.apply(x, state.linear_block).split(self._channels, dim=1)
        recurrences = state.recurrences(self._index)
        channels = self._convolved(inputs, recurrences)
        gates = in_blocks((channels,), state.linear_block, self._gates)
        state.keep(self._index, inputs, gates)
        return self._recur(channels, gates, gate, recurrences)

    def replay(self, read: Sequence[Tensor], tokens: Recurrence, deterministic: bool) -> None:  # noqa: ARG002 - it always is
        """See `RecurrentMixer`."""
        inputs, gates = read
        # What gates the results does not matter: nobody reads these.
        self._recur(self._convolved(inputs, [tokens]), gates, inputs, [tokens])

    def _convolved(self, inputs: Tensor, recurrences: Sequence[Recurrence]) -> Tensor:
        weights, channels = self._weights, inputs.new_empty(inputs.shape)
        for runs, kept in recurrences:
            kernels.causal_conv(inputs, weights.conv, weights.conv_bias, kept.inputs, runs, channels, False)
        return channels

    def _recur(self, channels: Tensor, gates: Tensor, gate: Tensor, recurrences: Sequence[Recurrence]) -> Tensor:
        """Returns the results [T, channels], which `gate` multiplies."""
        out = channels.new_empty(channels.shape)
        for runs, kept in recurrences:
            kernels.gated_lru(channels, gates, gate, self._dynamics, kept.state, runs, out)
        return out

    def _gates(self, channels: Tensor) -> Tensor:
        """Returns the gates of [T, channels], [T, 2 * channels] by block, without their bias."""
        blocks = channels.unflatten(1, (-1, self._dynamics.width)).transpose(0, 1)
        out = channels.new_empty(len(channels), len(blocks), 2 * self._dynamics.width)
        torch.bmm(blocks, self._weights.gates, out=out.transpose(0, 1))
        return out.flatten(1)
