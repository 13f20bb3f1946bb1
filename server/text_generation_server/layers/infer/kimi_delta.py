"""Kimi delta attention (KDA, Kimi Team, 2025): each request has a state in place of keys and values."""

from collections.abc import Sequence

from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import KimiDeltaSpec
from ..weights import Activations, ActivationScheme, HeadSplit, KimiDeltaWeights, Linear, each_alone
from .layer_state import StateShape
from .mixer import RecurrentMixer
from .state import InferState
from .state_windows import Recurrence


class KimiDelta(RecurrentMixer):
    """The heads of this rank in one layer."""

    def __init__(self, index: int, spec: KimiDeltaSpec, weights: KimiDeltaWeights, heads: HeadSplit) -> None:
        """`index` is the place of its state among the states of all layers."""
        self._index = index
        self._spec = spec
        self._weights = weights
        self.out = weights.out
        self._num_heads = heads.num_heads
        keys, values = heads.num_heads * spec.key_dim, heads.num_heads * spec.value_dim
        channels = 2 * keys + values
        self._parts = (channels, spec.rank or keys, spec.rank or values, heads.num_heads)
        size = (heads.num_heads, spec.key_dim, spec.value_dim)
        self.state = StateShape(spec.kernel, channels, size, (channels, keys, heads.num_heads))

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        weights, spec, block = self._weights, self._spec, state.linear_block
        inputs, decays, gates, betas = weights.first.apply(x, block).split(self._parts, dim=1)
        decays, gates = _made(decays, weights.decay, block), _made(gates, weights.gate, block)
        read = (inputs, decays, betas)
        state.keep(self._index, *read)
        heads = self._recur(read, state.recurrences(self._index), state.deterministic)
        for part, its_gate in each_alone(block, heads, gates.view(heads.shape)):
            kernels.gated_norm(part, its_gate, weights.norm, spec.norm_eps, False, part, "sigmoid")
        return heads.flatten(1)

    def replay(self, read: Sequence[Tensor], tokens: Recurrence, deterministic: bool) -> None:
        """See `RecurrentMixer`."""
        self._recur(read, [tokens], deterministic)

    def _recur(self, read: Sequence[Tensor], recurrences: Sequence[Recurrence], deterministic: bool) -> Tensor:
        """Returns what the heads read, [T, heads, value_dim], of tokens with these inputs, decays and betas."""
        (inputs, decays, betas), weights, spec = read, self._weights, self._spec
        qkv = inputs.new_empty(inputs.shape)
        heads = inputs.new_empty(len(inputs), self._num_heads, spec.value_dim)
        for runs, kept in recurrences:
            kernels.causal_conv(inputs, weights.conv, None, kept.inputs, runs, qkv)
            of_state = (weights.rate, weights.bias, kept.state)
            kernels.kimi_delta(qkv, betas, decays, *of_state, runs, heads, deterministic, spec.least)
        return heads


def _made(x: Tensor, matrix: Linear | None, block: int | None) -> Tensor:
    """What a matrix makes of the low-rank vectors `x` [T, rank]; `x` itself without one."""
    return x if matrix is None else matrix.apply(Activations(x.contiguous()), block)
