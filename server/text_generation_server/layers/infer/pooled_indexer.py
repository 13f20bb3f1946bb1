"""The choice of pools of positions that a token of latent attention attends to (GLM 5.3 Flash, 2026).

Successive positions are a pool, and its key is a mean of their index keys: of each element its own, weighted by a
softmax over the pool of what each position says, its gate, and what its place adds. A token chooses the best of the
pools that are full, and attends to the positions of the newest one, where it is not full, besides.

The cache has the key of a position, then its gate. The step with the last position of a pool makes the key of the pool,
which takes the place of the key of that position: nothing else reads the latter. Whatever computes a position again, as
windows do after a rejected draft, computes all that follow it again, so the last of its pool too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels
from text_generation_kernels import Decodes

from ..weights import Activations
from .indexer import Indexer, aligned
from .sparse_step import Choice, SparseStep, block_ends, contexts_of, parts_of_scores, slots_of, some
from .state import InferState


@dataclass(frozen=True)
class _Pools:
    """The pools of which the new tokens of a step are the last positions."""

    slots: Tensor
    """[T, pool] int64, the slots of their positions; the last is that of the token."""
    full: Tensor
    """[T, 1] bool, whether there is such a pool. If not, all slots are that of the token."""


@dataclass(frozen=True)
class _OverPools:
    """The full pools from which the new tokens of a step choose."""

    keys: Decodes
    """Each token as a decode over the keys of those before it, which are in the slots of their last positions."""
    numbers: Decodes
    """The same over their numbers."""
    newest: Tensor
    """[T, 1] int64, the place of the pool that is not full among those that a token attends to."""


class PooledIndexer(Indexer):
    """The indexer of a layer whose index keys are pooled."""

    def _pool(self, x: Activations, state: InferState) -> None:
        weights, size, pool = self._weights, self._spec.head_dim, self._choice.block
        if weights.gates is None or weights.offsets is None:
            raise ValueError("keys are pooled by gates")
        cache = state.caches[self._place].k[:, 0]
        cache[:, size:].index_copy_(0, state.slots, weights.gates.apply(x, state.linear_block))
        pools = state.once((_Pools, pool), lambda: _pools_of(state, pool))
        for part in parts_of_scores(len(pools.slots), pool * 2 * size):
            slots, full = pools.slots[part], pools.full[part]
            keys, gates = cache[slots].split(size, dim=-1)
            # Rounded where transformers rounds.
            shares = (gates.float() + weights.offsets).softmax(dim=1).to(keys.dtype)
            cache[:, :size].index_copy_(0, slots[:, -1], torch.where(full, (shares * keys).sum(dim=1), keys[:, -1]))

    def _list(self, q: Tensor, of_heads: Tensor, step: SparseStep, state: InferState) -> None:
        """See `Indexer`. Pools are chosen by their numbers, and the one that is not full follows them in a list."""
        choice, table = self._choice, step.contexts.slot_table
        over = state.once((_OverPools, choice), lambda: _over_pools(step.contexts, choice))
        cache, width = self._keys(state), over.numbers.max_kv_len
        # Positions of lists have 64 bits.
        for part in parts_of_scores(len(q), max(width, 2 * choice.places)):
            contexts, numbers = some(over.keys, part), some(over.numbers, part)
            count = len(contexts.rows)
            scores = torch.empty(count, width, dtype=torch.float32, device=q.device)
            kernels.index_scores(q[part], of_heads[part], cache, contexts, choice.top_k, scores)
            pools = torch.zeros(count, choice.top_k, dtype=torch.int32, device=q.device)
            kernels.top_slots(scores, numbers, pools)
            pools = functional.pad(pools, (0, 1)).scatter_(1, over.newest[part], numbers.kv_lens[:, None])
            rows = step.contexts.rows[part]
            step.chosen.slot_table[part] = slots_of(pools, choice.block, table, rows)


def _pools_of(state: InferState, pool: int) -> _Pools:
    contexts = contexts_of(state)
    table, lengths, own = contexts.slot_table, contexts.kv_lens[:, None], state.slots[:, None]
    full = (lengths > 0) & (lengths % pool == 0)
    before = lengths - pool + torch.arange(pool - 1, device=own.device)
    slots = table[contexts.rows[:, None], before.clamp(0, table.shape[1] - 1)].to(torch.int64)
    return _Pools(torch.cat((torch.where(full, slots, own), own), dim=1), full)


def _over_pools(contexts: Decodes, choice: Choice) -> _OverPools:
    keys = block_ends(contexts, choice.block)
    width = aligned(keys.max_kv_len)
    numbers = torch.arange(width, dtype=torch.int32, device=keys.kv_lens.device)[None]
    newest = keys.kv_lens.clamp(max=choice.top_k)[:, None].to(torch.int64)
    return _OverPools(keys, Decodes(numbers, torch.zeros_like(contexts.rows), keys.kv_lens, width), newest)
