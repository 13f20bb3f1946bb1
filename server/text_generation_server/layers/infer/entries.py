"""Entries: compressed positions (DeepSeek V4, 2026).

    entry = norm(sum over positions of softmax(logits + offsets) * values)    of each element its own softmax

Values and logits are projections of hidden states, offsets belong to the places of positions in an entry, and RoPE
rotates the result by its first position. Where entries overlap, an entry reads a second series of both projections, of
as many positions before its own.

The cache has of each position the values and logits of every series, `[slots, 2 * series, size]`: those of its own
entry, then those of the next one. The step with the last position of an entry makes it, and puts it in place of the
first values of that position: nothing else reads these. Whatever computes a position again, as windows do after a
rejected draft, computes all that follow it again, so the last of its entry too.
"""

from torch import Tensor

import text_generation_kernels as kernels

from ..rope import RopeTable
from ..weights import EntryWeights
from .sparse_step import contexts_of
from .state import InferState


class Entries:
    """Makes the entries of one layer, or their keys."""

    def __init__(self, rate: int, norm_eps: float, weights: EntryWeights, rope: RopeTable) -> None:
        self._rate = rate
        self._norm_eps = norm_eps
        self._weights = weights
        self._rope = rope

    def write(self, projected: Tensor, cache: Tensor, state: InferState) -> None:
        """Writes what a position has, `projected` [T, 2 * series, size], to `cache` [slots, 2 * series, size], and the
        entries that end in this step.
        """
        cache.index_copy_(0, state.slots, projected)
        offsets, norm = self._weights.offsets, self._weights.norm
        contexts, angles = contexts_of(state), self._rope.cos_sin
        kernels.compress_entries(cache, contexts, self._rate, offsets, norm, self._norm_eps, angles)
