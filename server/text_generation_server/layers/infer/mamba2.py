"""State space whose heads decay as a whole (Mamba 2, Dao and Gu, 2024)."""

from torch import Tensor

from ... import kernels
from ...config.recurrent import Mamba2Spec
from ..weights import Activations, ActivationScheme, Mamba2Weights, each_alone
from .mixer import Mixer
from .state import InferState, StateShape


class Mamba2(Mixer):
    """Groups of heads of this rank in one layer."""

    def __init__(self, index: int, spec: Mamba2Spec, weights: Mamba2Weights) -> None:
        """`index`: of its state among those of all layers."""
        self._index = index
        self._spec = spec
        self._weights = weights
        self.out = weights.out
        heads, self._groups = len(weights.rate), len(weights.norm)
        self._width, self._keys = heads * spec.head_dim, self._groups * spec.state_size
        self._steps = heads
        size = (heads, spec.head_dim, spec.state_size)
        self.state = StateShape(spec.kernel, self._width + 2 * self._keys, size)
        """What it keeps of each row."""

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        weights, spec, kept = self._weights, self._spec, state.states[self._index]
        first = weights.first.apply(x, state.linear_block)
        gate, inputs, steps = first.split((self._width, self._width + 2 * self._keys, self._steps), dim=1)
        mixed = inputs.new_empty(inputs.shape)
        heads = inputs.new_empty(len(inputs), self._steps, spec.head_dim)
        channels, writes, reads = mixed.split((self._width, self._keys, self._keys), dim=1)
        channels = channels.unflatten(1, heads.shape[1:])
        writes, reads = (each.unflatten(1, (self._groups, spec.state_size)) for each in (writes, reads))
        of_heads = (weights.rate, weights.skip, weights.bias, spec.least_step, float("inf"), kept.state)
        for runs in state.runs:
            where = (runs.rows, runs.starts, runs.kv_lens)
            kernels.causal_conv(inputs, weights.conv, weights.conv_bias, kept.inputs, *where, mixed)
            selected = (channels, steps, writes, reads)
            kernels.state_space(*selected, *of_heads, *where, runs.max_len, heads, state.deterministic)
        out, gate = (each.view(len(inputs), self._groups, -1) for each in (heads, gate))
        for part, its_gate in each_alone(state.linear_block, out, gate):
            kernels.gated_norm(part, its_gate, weights.norm, spec.norm_eps, True, part)
        return out.flatten(1)
