"""Lightning attention (Qin et al., 2024): each request has a state in place of keys and values, which decays by a
constant of each head.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...config.recurrent import LightningSpec
from ...distributed import TensorParallelGroup
from ..rope import RopeTable
from ..weights import Activations, ActivationScheme, HeadSplit, LightningWeights, each_alone
from .layer_state import StateShape
from .mixer import RecurrentMixer
from .rotation import new_tokens
from .state import InferState
from .state_windows import Recurrence
from .whole_norm import whole_norm


class Lightning(RecurrentMixer):
    """The heads of this rank in one layer."""

    def __init__(
        self,
        index: int,
        spec: LightningSpec,
        weights: LightningWeights,
        heads: HeadSplit,
        rope: RopeTable,
        group: TensorParallelGroup,
    ) -> None:
        """`index` is the place of its state among the states of all layers."""
        self._index = index
        self._spec = spec
        self._weights = weights
        self.out = weights.out
        self._shape = heads.num_heads, spec.head_dim
        self._rope = rope
        self._group = group
        size = (heads.num_heads, spec.head_dim, spec.head_dim)
        self.state = StateShape(spec.kernel, 0, size, (heads.num_heads * spec.head_dim,) * 3)

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        weights, spec, block = self._weights, self._spec, state.linear_block
        width = self._shape[0] * self._shape[1]
        qkv, gates = weights.first.apply(x, block).split((3 * width, width), dim=1)
        if spec.activated:
            kernels.activate(qkv, "silu", qkv)
        read = self._rotated(qkv, state)
        state.keep(self._index, *read)
        heads = self._recur(read, state.recurrences(self._index), state.deterministic)
        if spec.norm_groups < self._group.world_size:
            channels = spec.num_heads * spec.head_dim
            norm = weights.norm.flatten(), spec.norm_eps, channels
            return whole_norm(heads.flatten(1), gates, norm, self._group, block, False, "sigmoid")
        out, gates = (each.view(len(qkv), len(weights.norm), -1) for each in (heads, gates))
        for part, its_gates in each_alone(block, out, gates):
            kernels.gated_norm(part, its_gates, weights.norm, spec.norm_eps, False, part, "sigmoid")
        return out.flatten(1)

    def replay(self, read: Sequence[Tensor], tokens: Recurrence, deterministic: bool) -> None:
        """See `RecurrentMixer`."""
        self._recur([each.unflatten(1, self._shape) for each in read], [tokens], deterministic)

    def _recur(self, read: Sequence[Tensor], recurrences: Sequence[Recurrence], deterministic: bool) -> Tensor:
        """Returns what the heads read, [T, heads, head_dim], of tokens with these queries, keys and values."""
        q, k, v = read
        heads = v.new_empty(len(v), *self._shape)
        # The kernels take no step of a token but that of the layer, so all tokens share one row of zeros.
        steps = v.new_zeros(self._shape[0]).as_strided((len(v), self._shape[0]), (0, 1))
        for runs, kept in recurrences:
            kernels.state_space(v, steps, k, q, self._weights.dynamics, kept.state, runs, heads, deterministic)
        return heads

    def _rotated(self, qkv: Tensor, state: InferState) -> tuple[Tensor, Tensor, Tensor]:
        """Turns [T, 3 * heads * head_dim] into queries, keys and values, [T, heads, head_dim] each."""
        weights, spec = self._weights, self._spec
        q, k, v = qkv.unflatten(1, (3, *self._shape)).unbind(1)
        if spec.rope is None and spec.qk_norm_eps is None:
            return q, k, v
        # The kernel of attention writes keys and values to slots, which here are one for each new token.
        cache = kernels.KvCache(qkv.new_empty(q.shape), qkv.new_empty(q.shape))
        prologue = kernels.QkvPrologue(None, weights.q_norm, weights.k_norm, spec.qk_norm_eps or 0.0)
        kernels.qkv_postprocess(qkv, prologue, _in_order(self._rope, state), cache)
        return q, cache.k, cache.v


def _in_order(table: RopeTable, state: InferState) -> kernels.NewTokens:
    """Returns the new tokens of the step, each with its own number as its slot."""

    def made() -> kernels.NewTokens:
        tokens = new_tokens(table, state)
        return replace(tokens, slots=torch.arange(len(tokens.slots), device=tokens.slots.device))

    return state.once((table, "in order"), made)
