"""Gated delta net (Yang et al., 2024): each request has a state in place of keys and values."""

from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import GatedDeltaSpec
from ..weights import Activations, ActivationScheme, GatedDeltaWeights, HeadSplit, each_alone
from .mixer import LinearMixer
from .state import InferState, StateShape


class GatedDelta(LinearMixer):
    """The heads of this rank in one layer."""

    def __init__(self, index: int, spec: GatedDeltaSpec, weights: GatedDeltaWeights, heads: HeadSplit) -> None:
        """`index` is the place of its state among the states of all layers."""
        self._index = index
        self._spec = spec
        self._weights = weights
        self.out = weights.out
        self._num_heads = heads.num_heads
        self._values = heads.num_heads * spec.value_dim
        self._channels = 2 * heads.num_kv_heads * spec.key_dim + self._values
        self.state = StateShape(spec.kernel, self._channels, (heads.num_heads, spec.key_dim, spec.value_dim))
        """What the layer keeps of each row."""

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        weights, kept = self._weights, state.states[self._index]
        first = weights.first.apply(x, state.linear_block)
        inputs, gate, scalars = first.split((self._channels, self._values, 2 * self._num_heads), dim=1)
        qkv = inputs.new_empty(inputs.shape)
        heads = inputs.new_empty(len(inputs), self._num_heads, self._spec.value_dim)
        of_state = (weights.rate, weights.bias, kept.state)
        for runs in state.runs:
            kernels.causal_conv(inputs, weights.conv, None, kept.inputs, runs, qkv)
            kernels.gated_delta(qkv, scalars, *of_state, runs, heads, state.deterministic, self._spec.most_beta)
        for part, its_gate in each_alone(state.linear_block, heads, gate.view(heads.shape)):
            kernels.gated_norm(part, its_gate, weights.norm, self._spec.norm_eps, False, part)
        return heads.flatten(1)
