"""State space whose heads decay as a whole (Mamba 2, Dao and Gu, 2024)."""

from collections.abc import Sequence

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import Mamba2Spec
from ...distributed import TensorParallelGroup
from ..weights import Activations, ActivationScheme, HeadSplit, Mamba2Weights, activated, each_alone
from .layer_state import StateShape
from .mixer import RecurrentMixer
from .state import InferState
from .state_windows import Recurrence
from .whole_norm import whole_norm


class Mamba2(RecurrentMixer):
    """The heads of this rank in one layer."""

    def __init__(
        self, index: int, spec: Mamba2Spec, weights: Mamba2Weights, heads: HeadSplit, group: TensorParallelGroup
    ) -> None:
        """`index` is the place of its state among the states of all layers."""
        self._index = index
        self._spec = spec
        self._weights = weights
        self.out = weights.out
        of_heads = weights.rate, weights.skip, weights.bias
        self._dynamics = kernels.SpaceDynamics(*of_heads, spec.least_step, spec.most_step)
        self._group = group
        self._steps, self._groups = heads.num_heads, heads.num_kv_heads
        self._width, self._keys = self._steps * spec.head_dim, self._groups * spec.state_size
        sizes = (self._width, self._width, self._keys, self._keys, self._steps)
        self._factors = None if spec.factors is None else _vector(spec.factors, sizes, weights.rate.device)
        size = (self._steps, spec.head_dim, spec.state_size)
        self._parts = (self._width, self._width + 2 * self._keys, self._steps)
        self.state = StateShape(spec.kernel, self._parts[1], size, (sum(self._parts),))

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        weights, spec = self._weights, self._spec
        first = weights.first.apply(x, state.linear_block)
        if self._factors is not None:
            first.mul_(self._factors)
        state.keep(self._index, first)
        heads = self._recur(first, state.recurrences(self._index), state.deterministic)
        if weights.norm is None:
            return activated(first[:, : 2 * self._width], "silu", None, state.linear_block).x
        gate = first[:, : self._width]
        if spec.norm_over == "width" and self._group.world_size > 1:
            norm = weights.norm, spec.norm_eps, spec.num_heads * spec.head_dim
            is_first = spec.norm == "gate first"
            return whole_norm(heads.flatten(1), gate, norm, self._group, state.linear_block, is_first, "silu")
        out, gate = (each.view(len(first), len(weights.norm), -1) for each in (heads, gate))
        for part, its_gate in each_alone(state.linear_block, out, gate):
            kernels.gated_norm(part, its_gate, weights.norm, spec.norm_eps, spec.norm == "gate first", part)
        return out.flatten(1)

    def replay(self, read: Sequence[Tensor], tokens: Recurrence, deterministic: bool) -> None:
        """See `RecurrentMixer`."""
        self._recur(read[0], [tokens], deterministic)

    def _recur(self, first: Tensor, recurrences: Sequence[Recurrence], deterministic: bool) -> Tensor:
        """Returns what the heads read, [T, heads, head_dim], of tokens that the first projection has read."""
        weights, spec = self._weights, self._spec
        _, inputs, steps = first.split(self._parts, dim=1)
        mixed = inputs.new_empty(inputs.shape)
        # Where results are gated alone, they take the place of what the convolution has read, beside the gates.
        heads = first[:, self._width : 2 * self._width].unflatten(1, (self._steps, spec.head_dim))
        if weights.norm is not None:
            heads = inputs.new_empty(heads.shape)
        channels, writes, reads = mixed.split((self._width, self._keys, self._keys), dim=1)
        channels = channels.unflatten(1, heads.shape[1:])
        writes, reads = (each.unflatten(1, (self._groups, spec.state_size)) for each in (writes, reads))
        for runs, kept in recurrences:
            kernels.causal_conv(inputs, weights.conv, weights.conv_bias, kept.inputs, runs, mixed)
            selected = (channels, steps, writes, reads)
            kernels.state_space(*selected, self._dynamics, kept.state, runs, heads, deterministic)
        return heads


def _vector(factors: Sequence[float], sizes: Sequence[int], device: torch.device) -> Tensor:
    """Returns each factor as many times as its size says, float32."""
    return torch.cat([torch.full((size,), each, device=device) for each, size in zip(factors, sizes, strict=True)])
