"""Attention to blocks of positions that an indexer chooses, for the heads of each KV head (MiniMax M3)."""

from dataclasses import replace

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import Decodes

from ...config.spec import AttentionSpec, BlockIndexerSpec
from ...distributed import TensorParallelGroup
from ..rope import RopeTable
from ..weights import Adapting, AttentionWeights, HeadSplit
from .attention import Attention
from .rotation import new_tokens
from .sparse_step import (
    Choice,
    SparseStep,
    for_each_head,
    parts_of_lists,
    parts_of_scores,
    slots_of,
    some,
    sparse_step,
)
from .state import CacheShape, InferState


class BlockSparseAttention(Attention):
    """The attention heads of this rank. The cache of index keys comes before that of keys and values.

    Decode attention knows one list of slots for each request, and here each KV head has its own. So a token is as many
    requests as it has KV heads, each with one KV head: of the cache as [slots * kv_heads, 1, head_dim].
    """

    def __init__(
        self,
        index: int,
        spec: AttentionSpec,
        weights: AttentionWeights,
        heads: HeadSplit,
        rope: RopeTable,
        group: TensorParallelGroup,
        indexer: BlockIndexerSpec,
        index_rope: RopeTable,
    ) -> None:
        """`index` is the place of the cache of index keys. `index_rope` has the elements of an index key that RoPE
        rotates.
        """
        super().__init__(index + 1, spec, weights, heads, rope, group)
        if weights.index_q_norm is None or weights.index_k_norm is None:
            raise ValueError("an indexer has norms")
        self._place = index
        self._indexer = indexer
        self._index_rope = index_rope
        self._choice = Choice(indexer.top_k, indexer.block, heads.num_kv_heads)
        self._norms = kernels.IndexNorms(weights.index_k_norm, None, weights.index_q_norm, indexer.norm.eps)
        self.index_cache = CacheShape(1, indexer.head_dim, indexer.head_dim, shared=True)
        """What the layer keeps of each position besides keys and values."""

    def adapted(self, adapting: Adapting) -> "BlockSparseAttention":
        """See `Mixer`."""
        weights = replace(self._weights, qkv=adapting.linear(self._weights.qkv), out=adapting.linear(self._weights.out))
        parts = (self._spec, weights, self._heads, self._rope, self._group)
        return BlockSparseAttention(self._place, *parts, self._indexer, self._index_rope)

    def attend(self, qkv: Tensor, state: InferState) -> Tensor:
        """See `Attention`. The queries and the key of the indexer follow what `qkv` has of the attention."""
        width = (self._heads.num_kv_heads + 1) * self._indexer.head_dim
        qkv, index = qkv.split((qkv.shape[1] - width, width), dim=1)
        self._choose(index, state)
        return super().attend(qkv, state)

    def _choose(self, index: Tensor, state: InferState) -> None:
        """Writes index keys, and chooses slots by index queries: `index` [T, (kv_heads + 1) * head_dim] has both."""
        spec, heads = self._indexer, self._heads.num_kv_heads
        q, keys = index.unflatten(1, (-1, spec.head_dim)).split((heads, 1), dim=1)
        cache, tokens = state.caches[self._place].k, new_tokens(self._index_rope, state)
        kernels.index_postprocess(keys[:, 0], self._norms, tokens, q, cache)
        if (step := sparse_step(state, self._choice)) is None:
            return
        width = -(-step.contexts.max_kv_len // spec.block)
        numbers = torch.arange(width, dtype=torch.int32, device=q.device)[None]
        for part in parts_of_scores(len(q), heads * width):
            contexts = some(step.contexts, part)
            scores = torch.empty(len(contexts.rows), heads, width, dtype=torch.float32, device=q.device)
            kernels.block_scores(q[part], cache, contexts, spec.block, spec.top_k, spec.local, scores)
            counts = for_each_head((contexts.kv_lens + spec.block - 1) // spec.block, heads)
            blocks = torch.zeros(len(counts), spec.top_k, dtype=torch.int32, device=q.device)
            of_blocks = Decodes(numbers, torch.zeros_like(counts, dtype=torch.int64), counts, width)
            kernels.top_slots(scores.flatten(0, 1), of_blocks, blocks)
            self._list(blocks, contexts, step.chosen.slot_table[part.start * heads : part.stop * heads])

    def _list(self, blocks: Tensor, contexts: Decodes, out: Tensor) -> None:
        """Writes the slots of chosen blocks [tokens * kv_heads, top_k] to `out` [tokens * kv_heads, positions], as the
        cache of one KV head counts them.
        """
        heads = self._heads.num_kv_heads
        slots = slots_of(blocks, self._indexer.block, contexts.slot_table, for_each_head(contexts.rows, heads))
        own = torch.arange(heads, dtype=torch.int32, device=blocks.device).repeat(len(contexts.rows))[:, None]
        torch.add(slots * heads, own, out=out)

    def _read(self, q: Tensor, cache: kernels.KvCache, state: InferState, out: Tensor) -> None:
        if (step := sparse_step(state, self._choice)) is None:
            super()._read(q, cache, state, out)
            return
        self._read_chosen(q, cache, step, state, out)
        if step.dense is not None:
            kernels.prefill_attention(q, cache, step.dense, self._spec.scale, out, False, self._options)

    def _read_chosen(self, q: Tensor, cache: kernels.KvCache, step: SparseStep, state: InferState, out: Tensor) -> None:
        """Attends to chosen blocks, and writes zeros for tokens of `step.dense`."""
        heads, flat = self._heads.num_kv_heads, kernels.KvCache(_by_heads(cache.k), _by_heads(cache.v))
        groups, results = (each.unflatten(1, (heads, -1)) for each in (q, out))
        how = (state.deterministic, self._options)
        for part in parts_of_lists(len(q), heads):
            # Queries of several tokens are copied. So all keys are written when decode attention, which reads those
            # before the newest early, begins.
            lists = some(step.chosen, part, heads)
            of_lists = results[part].view(len(lists.rows), -1, q.shape[2])
            kernels.decode_attention(groups[part].flatten(0, 1), flat, lists, self._spec.scale, of_lists, *how)


def _by_heads(cache: Tensor) -> Tensor:
    """Views keys or values [slots, kv_heads, head_dim] as [slots * kv_heads, 1, head_dim]."""
    slots, heads, size = cache.shape
    return cache.as_strided((slots * heads, 1, size), (cache.stride(1), cache.stride(1), 1))
