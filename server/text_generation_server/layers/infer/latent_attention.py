"""Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads are GEMMs of one latent vector."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels

from ...config.spec import LatentAttentionSpec
from ..rope import RopeTable
from ..weights import Activations, ActivationScheme, HeadSplit, LatentAttentionWeights, in_blocks
from .context_parallel import ContextParallel
from .expanded import ExpandedContexts, expanded_in
from .gates import gate_heads
from .indexer import Indexer, attend_to_chosen
from .mixer import LinearMixer
from .rotation import new_tokens, unrotated_tokens
from .sparse_step import Choice, SparseStep, sparse_step
from .state import CacheShape, InferState


class LatentAttention(LinearMixer):
    """The heads of this rank in layer `index`, in the absorbed form: the key projection is applied to the queries and
    the value projection to the result, so that all heads read the latent vectors themselves. For long chunks, the
    latent vectors of the context are expanded into keys and values (`expanded.py`). Where the model is sparse, tokens
    with long contexts attend to the positions that an indexer has chosen (`indexer.py`). Ranks may have some of the
    positions each (`context_parallel.py`).
    """

    def __init__(
        self,
        index: int,
        spec: LatentAttentionSpec,
        weights: LatentAttentionWeights,
        heads: HeadSplit,
        rope: RopeTable,
        indexer: Indexer | None = None,
        parallel: ContextParallel | None = None,
    ) -> None:
        """With `parallel` ranks have some of the positions each, and there is no indexer; else each has all."""
        self._index = index
        self._spec = spec
        self._weights = weights
        self.out = weights.out
        self._num_heads = heads.num_heads
        self._rope = rope
        self._indexer = indexer
        self._parallel = parallel
        self._width = spec.latent_dim + spec.shared_dim
        self.cache = CacheShape(1, self._width, spec.latent_dim, shared=True)
        """What the layer keeps of each position, or of those that this rank has."""
        if parallel is not None:
            self.cache = replace(self.cache, ranks=parallel.ranks, readers=spec.num_heads)

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """See `Mixer`."""
        first = self._weights.first.apply(x, state.linear_block)
        gates = self._num_heads * self._spec.gate_size
        first, gate = first.split((first.shape[1] - gates, gates), dim=1)
        q, queries = self._queries(x, first, state)
        values = queries.new_empty(*q.shape[:2], self._spec.value_dim)
        sparse = sparse_step(state, Choice.of(self._spec)) if self._spec.top_k else None
        chunks = state.chunks if sparse is None else sparse.dense
        contexts = state.caches[self._index].k
        if self._parallel is not None and chunks is not None:
            contexts, chunks = self._parallel.gathered(contexts, chunks, state)
        own = expanded_in(state, chunks, self._spec)
        attended = self._attend(queries, state, sparse, contexts, chunks if own is None else own.others)
        by_heads(attended, self._weights.values, values, state.linear_block)
        if chunks is not None and own is not None:
            q[..., self._spec.key_dim :] = queries[..., self._spec.latent_dim :]
            self._attend_expanded(q, contexts, chunks, own, values)
        heads = values.flatten(1)
        if gates:
            gate_heads(heads, gate, self._num_heads, "sigmoid", state.linear_block)
        return heads

    def _attend(
        self, q: Tensor, state: InferState, sparse: SparseStep | None, contexts: Tensor, chunks: kernels.Chunks | None
    ) -> Tensor:
        """Attends with `q` [T, heads, latent_dim + shared_dim] and returns [T, heads, latent_dim]; `chunks` attend to
        `contexts`, a cache. The result is undefined for tokens whose context is expanded.
        """
        out = q.new_empty(*q.shape[:2], self._spec.latent_dim)
        cache, scale, how = state.caches[self._index].k, self._spec.scale, state.deterministic
        # Padding of the decodes overlaps the tokens of chunks, and decode attention writes zeros there, so it runs
        # first. The same holds for tokens that attend to chosen positions alone.
        if sparse is not None:
            attend_to_chosen(q, cache, sparse, scale, out, how)
        elif (d := state.decodes) is not None:
            n = len(d.rows)
            if self._parallel is None:
                kernels.latent_decode_attention(q[:n], cache, d, scale, out[:n], how)
            else:
                self._parallel.attend(q[:n], cache, d, scale, out[:n], state)
        if chunks is not None:
            kernels.latent_prefill_attention(q, contexts, chunks, scale, out, how)
        if self._parallel is not None and state.chunks is not None:
            self._parallel.attend_with_queries(q, cache, state.chunks, scale, out, state)
        return out

    def _attend_expanded(
        self, q: Tensor, contexts: Tensor, chunks: kernels.Chunks, own: ExpandedContexts, out: Tensor
    ) -> None:
        """Fills `out` [T, heads, value_dim] for chunks with an expanded context in `contexts`, a cache, from `q` [T,
        heads, key_dim + rope_dim].
        """
        k, v = q.new_empty(own.room, *q.shape[1:]), out.new_empty(own.room, *out.shape[1:])
        of_context = (chunks.slot_table, chunks.rows, own.first, own.chunks.kv_lens)
        kernels.latent_expand(contexts, *of_context, self._weights.keys, self._weights.values, k, v)
        kernels.prefill_attention(q, kernels.KvCache(k, v), own.chunks, self._spec.scale, out)

    def _queries(self, x: Activations, first: Tensor, state: InferState) -> tuple[Tensor, Tensor]:
        """Turns what the first matrix makes of `x`, but for gates, into the queries before RoPE, [T, heads, key_dim +
        rope_dim], and the absorbed queries that read latent vectors, [T, heads, latent_dim + shared_dim], rotated. It
        writes the latent vectors to the cache.
        """
        spec, weights, block = self._spec, self._weights, state.linear_block
        width = spec.latent_dim + spec.rope_dim
        q, latent = first.split((first.shape[1] - width, width), dim=1)
        made = None
        if weights.queries is not None and weights.query_norm is not None:
            made, room = Activations.to_fill(q.new_empty(q.shape), weights.queries.wants)
            kernels.rms_norm(q, weights.query_norm, spec.norm_eps, made.x, room)
            q = weights.queries.apply(made, block)
        if (scales := self._rope.query_scales) is not None:
            q = q.mul_(scales[state.positions][:, None])
        q = q.unflatten(1, (self._num_heads, -1))
        rotated = q
        if not spec.rope_dim:
            latent = functional.pad(latent, (0, spec.shared_dim))
            rotated = q.new_zeros(1, 1, spec.shared_dim).expand(*q.shape[:2], -1)
        queries = q.new_empty(*q.shape[:2], self._width)
        where = new_tokens if spec.rope is not None else unrotated_tokens
        tokens, cache = where(self._rope, state), state.caches[self._index].k
        if self._parallel is not None:
            tokens = self._parallel.tokens(tokens, state, cache)
        kernels.latent_postprocess(latent, weights.latent_norm, spec.norm_eps, tokens, rotated, queries, cache)
        if self._indexer is not None and made is not None:
            self._indexer.choose(x, made, state)
        by_heads(q[..., : spec.key_dim], weights.keys, queries[..., : spec.latent_dim], block)
        return q, queries


def by_heads(x: Tensor, weight: Tensor, out: Tensor, block: int | None) -> None:
    """Multiplies [T, heads, inputs] by [heads, inputs, outputs]. `block` has the meaning of `Linear.apply`."""
    if block is None:
        torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
        return
    # Libraries choose their algorithm by strides too, so each block gets the same strides.
    out.copy_(in_blocks((x.contiguous(),), block, lambda each: torch.bmm(each.transpose(0, 1), weight).transpose(0, 1)))
