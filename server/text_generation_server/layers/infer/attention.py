"""Attention: each token of a request reads the keys and values of the tokens before it."""

from dataclasses import replace

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...config.spec import AttentionSpec
from ...distributed import TensorParallelGroup
from ..rope import RopeTable
from ..weights import Activations, ActivationScheme, AdaptedDense, Adapting, AttentionWeights, Dense, HeadSplit
from .gates import gate_heads
from .mixer import Mixer
from .qk_norm import QkNorm
from .queries import normalise_values, rotate_queries, widened_values
from .rotation import new_tokens
from .state import CacheShape, InferState
from .stretches import within_stretches


class Attention(Mixer):
    """The attention heads of this rank in one layer."""

    def __init__(
        self,
        index: int,
        spec: AttentionSpec,
        weights: AttentionWeights,
        heads: HeadSplit,
        rope: RopeTable,
        group: TensorParallelGroup,
        codes: torch.dtype | None = None,
        kv_scales: Tensor | None = None,
    ) -> None:
        """`index` is the place of the cache that it reads among those of all layers. `codes` and `kv_scales` go into
        the `CacheShape`.
        """
        self._index = index
        self._spec = spec
        self._group = group
        self._weights = weights
        self.out = weights.out
        self._heads = heads
        self._rope = rope
        self._q_size = heads.num_heads * spec.head_dim
        norm = spec.qk_norm
        # `qkv_postprocess` normalises each head by itself.
        is_simple = norm is None or (norm.over != "width" and norm.norm.kind == "rms")
        self._qk_norm = None if norm is None or is_simple else QkNorm(spec, norm, weights, heads, group)
        self._owns_cache = spec.reads_layer is None
        # Where values are smaller than keys, `widened_values` adds it.
        self._bias = None if spec.value_dim else weights.qkv.bias
        self._norm_eps = 0.0 if norm is None else norm.norm.eps
        # What comes between bias and RoPE, and no operator knows.
        self._is_apart = bool(spec.clip) or spec.value_norm or self._qk_norm is not None
        norms = (weights.q_norm, weights.k_norm) if is_simple else (None, None)
        after_rope, bias = norm is not None and norm.after_rope, None if self._is_apart else self._bias
        self._prologue = kernels.QkvPrologue(bias, *norms, self._norm_eps, after_rope)
        # Clipping, an output gate, an indexer and other norms need sums, not split-K partials.
        is_plain = is_simple and not spec.value_norm and not spec.value_dim and self._owns_cache
        takes_partials = is_plain and not spec.clip and not spec.output_gate and spec.indexer is None
        self._dense = weights.qkv if takes_partials and isinstance(weights.qkv, Dense | AdaptedDense) else None
        self._options = kernels.AttentionOptions(spec.window, spec.softcap, weights.sinks, weights.slopes)
        self.cache = CacheShape(heads.num_kv_heads, spec.head_dim, spec.head_dim, codes, kv_scales)
        """What the layer keeps of each position; nothing, where it reads the cache of another one."""

    @property
    def takes_spans(self) -> bool:
        """Whether `span_attention` computes this attention, or need not."""
        options = self._options
        return self._spec.causal_media or (not options.softcap and options.sinks is None and options.slopes is None)

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.qkv.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        if self._dense is not None and not state.deterministic:
            return self.attend(self._dense.split_k(x), state)
        return self.attend(self.project_qkv(x, state), state)

    def keep(self, x: Activations, state: InferState) -> None:
        """Writes this layer's cache for [T, hidden] whose heads nobody reads. Raises ValueError for layers whose keys
        and values take more than a plain matrix, norms of heads and RoPE.
        """
        weights, prologue = self._weights.qkv, self._prologue
        if self._dense is None or not isinstance(weights, Dense):
            raise ValueError("keys and values alone need a plain matrix")
        # The operator takes one head of queries at least.
        first = self._q_size - self._spec.head_dim
        bias = None if prologue.bias is None else prologue.bias[first:]
        kv = Dense(weights.weight[first:]).matmul(x, state.linear_block)
        tokens = new_tokens(self._rope, state)
        kernels.qkv_postprocess(kv, replace(prologue, bias=bias), tokens, state.caches[self._index])

    def adapted(self, adapting: Adapting) -> "Attention":
        """See `Mixer`. Keys and values of all tokens are in one cache."""
        weights = replace(self._weights, qkv=adapting.linear(self._weights.qkv), out=adapting.linear(self._weights.out))
        made = Attention(self._index, self._spec, weights, self._heads, self._rope, self._group)
        made.cache = self.cache
        return made

    def project_qkv(self, x: Activations, state: InferState) -> Tensor:
        """Turns [N, hidden] into queries, keys and values of some tokens, [N, (heads + 2 * kv_heads) * head_dim],
        followed by the gates of all heads where the layer has them. `attend` also takes the concatenated results of
        several calls.
        """
        return self._weights.qkv.matmul(x, state.linear_block)

    def attend(self, qkv: Tensor, state: InferState) -> Tensor:
        """Turns what `project_qkv` made of all tokens, or its split-K partials, float32 [splits, T, ...], into what the
        heads of this rank read, [T, heads * head_dim]. It writes this layer's cache, and reuses the memory of `qkv`.
        """
        if (scales := self._rope.query_scales) is not None:
            qkv[..., : self._q_size].mul_(scales[state.positions][:, None])
        if self._spec.value_dim:
            wide = widened_values(qkv, self._weights.qkv.bias, self._spec, self._heads.num_kv_heads)
            heads = self._attend(wide, state).view(len(qkv), -1, self._spec.head_dim)
            return heads[..., : self._spec.value_dim].flatten(1)
        if not self._spec.output_gate:
            return self._attend(qkv, state)
        gates = self._heads.num_heads * self._spec.gate_size
        qkv, gate = qkv.split((qkv.shape[1] - gates, gates), dim=1)
        heads = self._attend(qkv, state)
        gate_heads(heads, gate, self._heads.num_heads, self._spec.output_gate, state.linear_block)
        return heads

    def _attend(self, qkv: Tensor, state: InferState) -> Tensor:
        cache = state.caches[self._index]
        num_tokens = qkv.shape[-2]
        q_out = None
        if self._dense is not None and qkv.dim() == 3:
            q_out = qkv.new_empty(num_tokens, self._q_size, dtype=self._dense.weight.dtype)
        q = (qkv[:, : self._q_size] if q_out is None else q_out).view(num_tokens, -1, self._spec.head_dim)
        out = q.new_empty(q.shape)
        if self._is_one(qkv, state) and (d := self._requests(state)[0]) is not None:
            tokens = new_tokens(self._rope, state)
            kernels.token_attention(qkv, self._prologue, tokens, cache, d, self._spec.scale, out, self._options)
            return out.view(num_tokens, self._q_size)
        self._prepare(qkv, state, q_out)
        self._read(q, cache, state, out)
        return out.view(num_tokens, self._q_size)

    def _read(self, q: Tensor, cache: kernels.KvCache, state: InferState, out: Tensor) -> None:
        """Attends with rotated queries `q` [T, heads, head_dim] and writes `out`, of the same shape."""
        scale, how = self._spec.scale, (state.deterministic, self._options)
        # Padding of the decodes overlaps the tokens of chunks, and decode attention writes zeros there, so it runs
        # first.
        d, c = self._requests(state)
        if d is not None:
            n = len(d.rows)
            kernels.decode_attention(q[:n], cache, d, scale, out[:n], *how)
        if c is not None:
            if c.seen_ends is None or self._spec.causal_media:
                kernels.prefill_attention(q, cache, c, scale, out, *how)
            else:
                kernels.span_attention(q, cache, c, scale, out, self._spec.window)

    def _requests(self, state: InferState) -> tuple[kernels.Decodes | None, kernels.Chunks | None]:
        """Returns the decodes and chunks of a step with the contexts that this layer attends to."""
        stretch = self._spec.stretch
        return within_stretches(state, stretch) if stretch else (state.decodes, state.chunks)

    def _is_one(self, qkv: Tensor, state: InferState) -> bool:
        """Whether `token_attention` does everything that is left, because the step is one decode."""
        own = self._owns_cache and not self._spec.value_norm and self._spec.indexer is None
        plain = own and self._qk_norm is None and not self._spec.clip and self.cache.codes is None
        return plain and qkv.shape[0] == 1 and state.chunks is None and not state.deterministic

    def _prepare(self, qkv: Tensor, state: InferState, q_out: Tensor | None) -> None:
        """Writes rotated queries to `q_out`, or to the first columns of `qkv` without it, and keys and values to the
        cache.
        """
        spec = self._spec
        if not self._owns_cache:
            rotate_queries(qkv, self._bias, self._prologue.q_norm, self._norm_eps, self._rope.cos_sin, state)
            return
        if self._is_apart:
            if self._bias is not None:
                qkv.add_(self._bias)
            if spec.clip:
                qkv.clamp_(-spec.clip, spec.clip)
            heads = qkv.view(qkv.shape[0], -1, spec.head_dim)
            q, k, v = heads.split((self._heads.num_heads, *[self._heads.num_kv_heads] * 2), dim=1)
            if self._qk_norm is not None:
                self._qk_norm.apply(q, k, state.linear_block)
            if spec.value_norm:
                normalise_values(v, self._norm_eps)
        tokens = new_tokens(self._rope, state)
        kernels.qkv_postprocess(qkv, self._prologue, tokens, state.caches[self._index], q_out)
