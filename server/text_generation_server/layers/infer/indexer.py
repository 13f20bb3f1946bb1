"""The choice of positions that a token of latent attention attends to (DeepSeek sparse attention, 2025)."""

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ...config.spec import IndexerSpec
from ..rope import RopeTable
from ..weights import Activations, IndexerWeights
from .rotation import new_tokens
from .sparse_step import Choice, SparseStep, parts_of_lists, parts_of_scores, some, sparse_step
from .state import CacheShape, InferState


class Indexer:
    """The indexer of a layer, whole on every rank. Its keys are in cache `place`."""

    def __init__(self, place: int, spec: IndexerSpec, choice: Choice, weights: IndexerWeights, rope: RopeTable) -> None:
        """`rope` is the table of the attention."""
        self._place = place
        self._spec = spec
        self._choice = choice
        self._weights = weights
        self._rope = rope
        self.cache = CacheShape(1, spec.head_dim, spec.head_dim, shared=True)
        """What the layer keeps of each position besides latent vectors."""

    def choose(self, x: Activations, query: Activations, state: InferState) -> None:
        """Writes the keys of hidden states `x` [T, hidden], and chooses slots by the low-rank query vectors `query`
        [T, query_dim]: `sparse_step` has them until the next indexer of the step writes its own.
        """
        spec, weights, block = self._spec, self._weights, state.linear_block
        q = weights.queries.apply(query, block).unflatten(1, (spec.num_heads, -1))
        keys = weights.keys.apply(x, block)
        cache, tokens = state.caches[self._place].k, new_tokens(self._rope, state)
        norms = kernels.IndexNorms(weights.norm, weights.norm_bias, None, spec.norm_eps)
        kernels.index_postprocess(keys, norms, tokens, q, cache)
        if (step := sparse_step(state, self._choice)) is None:
            return
        of_heads = weights.weights.apply(x, block)
        # Rows are aligned, whatever the context is.
        width = -(-step.contexts.max_kv_len // 64) * 64
        for part in parts_of_scores(len(q), width):
            scores = torch.empty(part.stop - part.start, width, dtype=torch.float32, device=q.device)
            contexts = some(step.contexts, part)
            kernels.index_scores(q[part], of_heads[part], cache, contexts, self._choice.top_k, scores)
            kernels.top_slots(scores, contexts, step.chosen.slot_table[part])


def attend_to_chosen(
    q: Tensor, cache: Tensor, step: SparseStep, scale: float, out: Tensor, deterministic: bool
) -> None:
    """Attends with absorbed queries `q` [T, heads, latent_dim + rope_dim] to the chosen slots, and writes `out`
    [T, heads, latent_dim]: zeros for tokens of `step.dense`.
    """
    for part in parts_of_lists(len(q), 1):
        kernels.latent_decode_attention(q[part], cache, some(step.chosen, part), scale, out[part], deterministic)
