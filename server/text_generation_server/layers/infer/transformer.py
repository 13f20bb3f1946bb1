"""One transformer layer: attention and MLP, each after its own normalisation of the running sum.

The sum of everything before (`residual`) and the last addend (`x`) travel apart, so that addition and normalisation
are one operator.
"""

from dataclasses import dataclass

from torch import Tensor

from ... import kernels
from ...distributed import TensorParallelGroup
from ..rope import RopeTable
from ..weights import Linear, TransformerLayerWeights
from .state import InferState


@dataclass(frozen=True)
class LayerSettings:
    """What all layers of a model share."""

    head_dim: int
    rms_norm_eps: float
    hidden_act: str
    rope: RopeTable

    @property
    def softmax_scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-0.5


class TransformerLayer:
    """Layer `index` of a model."""

    def __init__(
        self, index: int, weights: TransformerLayerWeights, settings: LayerSettings, group: TensorParallelGroup
    ) -> None:
        self._index = index
        self._weights = weights
        self._settings = settings
        self._group = group

    def forward(
        self, x: Tensor, residual: Tensor | None, state: InferState, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """[T, hidden] each, before and after; the layer reuses the memory of both. `residual` is None in layer 0.

        `kept`, [N] int64: of the new tokens only these are needed after this layer, so what follows attention is
        computed for them alone, and the results are [N, hidden].
        """
        eps = self._settings.rms_norm_eps
        if residual is None:
            residual = x
            x = x.new_empty(x.shape)
            kernels.rms_norm(residual, self._weights.input_norm, eps, x)
        else:
            kernels.add_rms_norm(x, residual, self._weights.input_norm, eps, x)
        x = self._attention(x, state)
        if kept is not None:
            x, residual = x.index_select(0, kept), residual.index_select(0, kept)
        x = self._reduced(self._weights.out, x, state)
        kernels.add_rms_norm(x, residual, self._weights.post_attention_norm, eps, x)
        return self._mlp(x, state), residual

    def _attention(self, x: Tensor, state: InferState) -> Tensor:
        """[T, hidden] to what the heads of this rank read, [T, heads * head_dim]."""
        settings, weights = self._settings, self._weights
        k_cache, v_cache = state.k_cache[self._index], state.v_cache[self._index]
        qkv = weights.qkv.product(x, state.linear_block)
        norms = (weights.q_norm, weights.k_norm, settings.rms_norm_eps)
        kernels.qkv_postprocess(
            qkv, weights.qkv.bias, *norms, settings.rope.cos_sin, state.positions, state.slots, k_cache, v_cache
        )
        num_tokens, q_size = x.shape[0], qkv.shape[1] - 2 * k_cache.shape[1] * settings.head_dim
        q = qkv[:, :q_size].view(num_tokens, -1, settings.head_dim)
        out = q.new_empty(q.shape)
        cache, scale = (k_cache, v_cache, state.slot_table), settings.softmax_scale
        # Padded decodes reach into the tokens of chunks and write zeros there: chunks come second.
        if (d := state.decodes) is not None:
            n = len(d.rows)
            kernels.decode_attention(
                q[:n], *cache, d.rows, d.kv_lens, d.max_kv_len, scale, out[:n], state.deterministic
            )
        if (c := state.chunks) is not None:
            kernels.prefill_attention(
                q, *cache, c.rows, c.starts, c.kv_lens, c.max_len, scale, out, state.deterministic
            )
        return out.view(num_tokens, q_size)

    def _mlp(self, x: Tensor, state: InferState) -> Tensor:
        gate_up = self._weights.gate_up.apply(x, state.linear_block)
        activated = gate_up.new_empty(x.shape[0], gate_up.shape[1] // 2)
        kernels.act_and_mul(gate_up, self._settings.hidden_act, activated)
        return self._reduced(self._weights.down, activated, state)

    def _reduced(self, linear: Linear, x: Tensor, state: InferState) -> Tensor:
        """Product with this rank's input columns, summed over the ranks."""
        partial = linear.apply(x, state.linear_block)
        self._group.all_reduce(partial)
        return partial
