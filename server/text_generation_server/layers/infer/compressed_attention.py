"""Attention to a window of positions and to compressed ones (DeepSeek V4, 2026). One KV head has keys that are values
too, and RoPE in both is turned back in what heads read.
"""

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import Decodes, KvCache

from ...config.spec import CompressedAttentionSpec
from ..rope import RopeTable
from ..weights import Activations, ActivationScheme, CompressedAttentionWeights, HeadSplit
from .entries import Entries
from .entry_lists import KEY, chooses, chosen_entries, lists_of
from .indexer import aligned
from .latent_attention import by_heads
from .mixer import LinearMixer
from .rotation import Angles, angles_at, new_tokens, rotate_first
from .sparse_step import parts_of_lists, parts_of_scores, some
from .state import CacheShape, InferState

_GROUP = 16
"""Heads that decode attention reads a KV head for at once: more would not fit into its registers."""


class CompressedAttention(LinearMixer):
    """The heads of this rank in one layer, whose keys and entries every rank has (`entry_lists.py`). Where the layer
    has an indexer, the cache of the keys of entries comes before its own.
    """

    _weights: CompressedAttentionWeights

    def __init__(
        self,
        index: int,
        spec: CompressedAttentionSpec,
        weights: CompressedAttentionWeights,
        heads: HeadSplit,
        rope: RopeTable,
    ) -> None:
        """`index` is the place of the first of its caches."""
        self._index = index
        self._spec = spec
        self._weights = weights
        self.out = weights.out
        self._num_heads = heads.num_heads
        self._rope = rope
        size, queries = spec.head_dim, torch.ones_like(weights.key_norm)
        self._norms = kernels.IndexNorms(weights.key_norm, None, queries, spec.norm_eps)
        self._options = kernels.AttentionOptions(sinks=weights.sinks)
        self._entries, self._index_entries = (
            None if each is None else Entries(spec.rate, spec.norm_eps, each, rope)
            for each in (weights.entries, weights.index_entries)
        )
        self.caches = [CacheShape(spec.vectors, size, size, shared=True)]
        """What the layer keeps of each position, in the order of the caches."""
        if (indexer := spec.indexer) is not None:
            size = indexer.head_dim
            self.caches.insert(0, CacheShape(spec.index_vectors, size, size, shared=True))

    @property
    def wants(self) -> ActivationScheme | None:
        """See `Mixer`."""
        return self._weights.first.wants

    def forward(self, x: Activations, state: InferState) -> Tensor:
        """Turns [T, hidden] into what the groups of this rank make of what their heads read, [T, groups * out_rank]."""
        spec, weights, block = self._spec, self._weights, state.linear_block
        angles = state.once((Angles, self._rope), lambda: angles_at(self._rope, state.positions))
        back = state.once((Angles, self._rope, "back"), angles.back)
        cache = state.caches[self._index + len(self.caches) - 1].k
        low_rank, key = weights.first.apply(x, block).split((spec.query_dim, spec.head_dim), dim=1)
        made, room = Activations.to_fill(low_rank.new_empty(low_rank.shape), weights.queries.wants)
        kernels.rms_norm(low_rank, weights.query_norm, spec.norm_eps, made.x, room)
        q = weights.queries.apply(made, block).view(-1, self._num_heads, spec.head_dim)
        kernels.index_postprocess(key, self._norms, new_tokens(self._rope, state), q, cache[:, KEY, None])
        self._write_entries(x, cache[:, KEY + 1 :], state)
        lists = self._lists(x, made, angles, state)
        heads = self._attend(q, cache, lists, state)
        rotate_first(heads, back)
        groups = weights.groups
        out = heads.new_empty(len(heads), len(groups), spec.out_rank)
        by_heads(heads.view(len(heads), len(groups), -1), groups, out, block)
        return out.flatten(1)

    def _write_entries(self, x: Activations, cache: Tensor, state: InferState) -> None:
        """Writes what new tokens have for entries to `cache` [slots, 2 * series, head_dim], and to that of keys."""
        spec, weights = self._spec, self._weights
        if self._entries is None or weights.parts is None:
            return
        own = 2 * spec.series * spec.head_dim
        parts = weights.parts.apply(x, state.linear_block)
        self._entries.write(parts[:, :own].unflatten(1, (-1, spec.head_dim)), cache, state)
        if self._index_entries is not None and spec.indexer is not None:
            of_index = parts[:, own:].unflatten(1, (-1, spec.indexer.head_dim))
            self._index_entries.write(of_index, state.caches[self._index].k, state)

    def _lists(self, x: Activations, low_rank: Activations, angles: Angles, state: InferState) -> Decodes:
        """Returns the tokens of the step as decodes over what they read, after an indexer has chosen."""
        spec, weights, block = self._spec, self._weights, state.linear_block
        indexer, queries, of_heads = spec.indexer, weights.index_queries, weights.index_weights
        if indexer is None or queries is None or of_heads is None or not chooses(spec, state):
            return lists_of(spec, state)
        chosen = chosen_entries(spec, indexer.top_k, state)
        q = queries.apply(low_rank, block).unflatten(1, (indexer.num_heads, -1))
        rotate_first(q, angles)
        by_head, width = of_heads.apply(x, block), aligned(chosen.keys.max_kv_len)
        keys = state.caches[self._index].k[:, :1]
        for part in parts_of_scores(len(q), max(width, 2 * indexer.top_k)):
            scores = torch.empty(len(chosen.places[part]), width, dtype=torch.float32, device=q.device)
            kernels.index_scores(q[part], by_head[part], keys, some(chosen.keys, part), indexer.top_k, scores)
            vectors = torch.zeros(len(scores), indexer.top_k, dtype=torch.int32, device=q.device)
            kernels.top_slots(scores, some(chosen.entries, part), vectors)
            chosen.lists.slot_table[part].scatter_(1, chosen.places[part], vectors)
        return chosen.lists

    def _attend(self, q: Tensor, cache: Tensor, lists: Decodes, state: InferState) -> Tensor:
        """Attends with `q` [T, heads, head_dim] to lists of vectors, and returns the same shape."""
        if q.shape[2] * q.element_size() <= kernels.EARLY_BYTES:
            # What is read early must not be written by the kernel before: this copy is between them.
            q = q.clone()
        out, count = torch.empty_like(q), cache.shape[0] * cache.shape[1]
        # Each KV head is the same memory.
        heads = self._num_heads // _GROUP if self._num_heads % _GROUP == 0 else 1
        flat = cache.as_strided((count, heads, q.shape[2]), (q.shape[2], 0, 1))
        how = (state.deterministic, self._options)
        for part in parts_of_lists(len(q), 1):
            of_lists = some(lists, part)
            kernels.decode_attention(q[part], KvCache(flat, flat), of_lists, self._spec.scale, out[part], *how)
        return out
