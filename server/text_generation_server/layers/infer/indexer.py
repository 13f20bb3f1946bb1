"""The choice of positions that a token of latent attention attends to (DeepSeek sparse attention, 2025)."""

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...config.spec import IndexerSpec, LatentAttentionSpec
from ..rope import RopeTable
from ..weights import Activations, IndexerWeights
from .rotation import new_tokens, unrotated_tokens
from .sparse_step import Choice, SparseStep, parts_of_lists, parts_of_scores, some, sparse_step
from .state import CacheShape, InferState


class Indexer:
    """The indexer of a layer, whole on every rank. Its keys are in cache `place`."""

    def __init__(
        self, place: int, attention: LatentAttentionSpec, spec: IndexerSpec, weights: IndexerWeights, rope: RopeTable
    ) -> None:
        """`rope` is the table of the attention, or one of angles of 0 where nothing is rotated."""
        self._place = place
        self._spec = spec
        self._choice = Choice.of(attention)
        self._weights = weights
        self._rope = rope
        self._rotates = attention.rope is not None
        self.cache = CacheShape(1, attention.index_dim, attention.index_dim, shared=True)
        """What the layer keeps of each position besides latent vectors."""

    def choose(self, x: Activations, query: Activations, state: InferState) -> None:
        """Writes the keys of hidden states `x` [T, hidden], and chooses slots by the low-rank query vectors `query`
        [T, query_dim]: `sparse_step` has them until the next indexer of the step writes its own.
        """
        spec, weights, block = self._spec, self._weights, state.linear_block
        q = weights.queries.apply(query, block).unflatten(1, (spec.num_heads, -1))
        keys = weights.keys.apply(x, block)
        where = new_tokens if self._rotates else unrotated_tokens
        norms = kernels.IndexNorms(weights.norm, weights.norm_bias, None, spec.norm_eps)
        kernels.index_postprocess(keys, norms, where(self._rope, state), q, self._keys(state))
        self._pool(x, state)
        if (step := sparse_step(state, self._choice)) is not None:
            self._list(q, weights.weights.apply(x, block), step, state)

    def _keys(self, state: InferState) -> Tensor:
        """Returns the cache of index keys, [slots, 1, head_dim]."""
        return state.caches[self._place].k[..., : self._spec.head_dim]

    def _pool(self, x: Activations, state: InferState) -> None:
        """Makes keys of pools, where keys are pooled."""

    def _list(self, q: Tensor, of_heads: Tensor, step: SparseStep, state: InferState) -> None:
        """Writes the slots of the best keys by queries `q` [T, heads, head_dim] and the weights of heads [T, heads], as
        the lists of `step`.
        """
        keys, width = self._keys(state), aligned(step.contexts.max_kv_len)
        for part in parts_of_scores(len(q), width):
            scores = torch.empty(part.stop - part.start, width, dtype=torch.float32, device=q.device)
            contexts = some(step.contexts, part)
            kernels.index_scores(q[part], of_heads[part], keys, contexts, self._choice.top_k, scores)
            kernels.top_slots(scores, contexts, step.chosen.slot_table[part])


def aligned(positions: int) -> int:
    """Returns the width of rows of scores of at most so many positions: they are aligned, whatever the context is."""
    return -(-positions // 64) * 64


def attend_to_chosen(
    q: Tensor, cache: Tensor, step: SparseStep, scale: float, out: Tensor, deterministic: bool
) -> None:
    """Attends with absorbed queries `q` [T, heads, latent_dim + rope_dim] to the chosen slots, and writes `out`
    [T, heads, latent_dim]: zeros for tokens of `step.dense`.
    """
    for part in parts_of_lists(len(q), 1):
        kernels.latent_decode_attention(q[part], cache, some(step.chosen, part), scale, out[part], deterministic)
