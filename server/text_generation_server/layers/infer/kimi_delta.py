"""Kimi delta attention (KDA, Kimi Team, 2025): each request has a state in place of keys and values."""

from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import KimiDeltaSpec
from ..weights import Activations, ActivationScheme, HeadSplit, KimiDeltaWeights, Linear, each_alone
from .mixer import LinearMixer
from .state import InferState, StateShape


class KimiDelta(LinearMixer):
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
        self.state = StateShape(spec.kernel, channels, (heads.num_heads, spec.key_dim, spec.value_dim))
        """What the layer keeps of each row."""

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        weights, kept, spec, block = self._weights, state.states[self._index], self._spec, state.linear_block
        inputs, decays, gates, betas = weights.first.apply(x, block).split(self._parts, dim=1)
        decays, gates = _made(decays, weights.decay, block), _made(gates, weights.gate, block)
        qkv = inputs.new_empty(inputs.shape)
        heads = inputs.new_empty(len(inputs), self._num_heads, spec.value_dim)
        of_state = (weights.rate, weights.bias, kept.state)
        for runs in state.runs:
            kernels.causal_conv(inputs, weights.conv, None, kept.inputs, runs, qkv)
            kernels.kimi_delta(qkv, betas, decays, *of_state, runs, heads, state.deterministic, spec.least)
        for part, its_gate in each_alone(block, heads, gates.view(heads.shape)):
            kernels.gated_norm(part, its_gate, weights.norm, spec.norm_eps, False, part, "sigmoid")
        return heads.flatten(1)


def _made(x: Tensor, matrix: Linear | None, block: int | None) -> Tensor:
    """What a matrix makes of the low-rank vectors `x` [T, rank]; `x` itself without one."""
    return x if matrix is None else matrix.apply(Activations(x.contiguous()), block)
