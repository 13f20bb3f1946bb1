"""Gated delta net (Yang et al., 2024): each request has a state in place of keys and values."""

from collections.abc import Sequence

from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import GatedDeltaSpec
from ..weights import Activations, ActivationScheme, GatedDeltaWeights, HeadSplit, each_alone
from .layer_state import StateShape
from .mixer import RecurrentMixer
from .state import InferState
from .state_windows import Recurrence


class GatedDelta(RecurrentMixer):
    """The heads of this rank in one layer."""

    def __init__(self, index: int, spec: GatedDeltaSpec, weights: GatedDeltaWeights, heads: HeadSplit) -> None:
        """`index` is the place of its state among the states of all layers."""
        self._index = index
        self._spec = spec
        self._weights = weights
        self.out = weights.out
        self._num_heads = heads.num_heads
        values = heads.num_heads * spec.value_dim
        channels = 2 * heads.num_kv_heads * spec.key_dim + values
        self._parts = (channels, values, 2 * heads.num_heads)
        size = (heads.num_heads, spec.key_dim, spec.value_dim)
        self.state = StateShape(spec.kernel, channels, size, (sum(self._parts),))

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        first = self._weights.first.apply(x, state.linear_block)
        state.keep(self._index, first)
        heads = self._recur(first, state.recurrences(self._index), state.deterministic)
        gate = first.split(self._parts, dim=1)[1]
        for part, its_gate in each_alone(state.linear_block, heads, gate.view(heads.shape)):
            kernels.gated_norm(part, its_gate, self._weights.norm, self._spec.norm_eps, False, part)
        return heads.flatten(1)

    def replay(self, read: Sequence[Tensor], tokens: Recurrence, deterministic: bool) -> None:
        """See `RecurrentMixer`."""
        self._recur(read[0], [tokens], deterministic)

    def _recur(self, first: Tensor, recurrences: Sequence[Recurrence], deterministic: bool) -> Tensor:
        """Returns what the heads read, [T, heads, value_dim], of tokens that the first projection has read."""
        weights = self._weights
        inputs, _, scalars = first.split(self._parts, dim=1)
        qkv = inputs.new_empty(inputs.shape)
        heads = inputs.new_empty(len(inputs), self._num_heads, self._spec.value_dim)
        for runs, kept in recurrences:
            kernels.causal_conv(inputs, weights.conv, None, kept.inputs, runs, qkv)
            of_state = (weights.rate, weights.bias, kept.state)
            kernels.gated_delta(qkv, scalars, *of_state, runs, heads, deterministic, self._spec.most_beta)
        return heads
