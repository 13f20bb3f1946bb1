"""The choice of pools of positions that a token of latent attention attends to (GLM 5.3 Flash, 2026).

Successive positions are a pool, and its key is a mean of their index keys: of each element its own, weighted by a
softmax over the pool of what each position says, its gate, and what its place adds. A token chooses the best of the
pools that are full, and attends to the positions of the newest one, where it is not full, besides.

The cache has the key of a position, then its gate. The step with the last position of a pool makes the key of the pool,
which takes the place of the key of that position: nothing else reads the latter. Whatever computes a position again, as
windows do after a rejected draft, computes all that follow it again, so the last of its pool too.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

import text_generation_kernels as kernels
from text_generation_kernels import Decodes

from ..weights import Activations
from .indexer import Indexer, aligned
from .sparse_step import SparseStep, contexts_of, parts_of_scores, slots_of, some
from .state import InferState


@dataclass(frozen=True)
class _Pools:
    """The pools of which the new tokens of a step are the last positions."""

    slots: Tensor
    """[T, pool] int64, the slots of their positions; the last is that of the token."""
    full: Tensor
    """[T, 1] bool, whether there is such a pool. If not, all slots are that of the token."""


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
            shares = (gates.float() + weights.offsets.float()).softmax(dim=1).to(keys.dtype)
            cache[:, :size].index_copy_(0, slots[:, -1], torch.where(full, (shares * keys).sum(dim=1), keys[:, -1]))

    def _list(self, q: Tensor, of_heads: Tensor, keys: Tensor, step: SparseStep) -> None:
        """See `Indexer`. Pools are chosen by their numbers, and the one that is not full follows them in a list."""
        choice, chosen, table = self._choice, step.chosen.slot_table, step.contexts.slot_table
        pools = _over_pools(step.contexts, choice.block)
        width = aligned(pools.max_kv_len)
        numbers = torch.arange(width, dtype=torch.int32, device=q.device)[None]
        # Positions of lists are of 64 bits.
        for part in parts_of_scores(len(q), max(width, 2 * choice.places)):
            contexts, lists = some(pools, part), some(step.contexts, part)
            scores = torch.empty(len(lists.rows), width, dtype=torch.float32, device=q.device)
            kernels.index_scores(q[part], of_heads[part], keys, contexts, choice.top_k, scores)
            best = torch.zeros(len(lists.rows), choice.top_k, dtype=torch.int32, device=q.device)
            counts = contexts.kv_lens
            kernels.top_slots(scores, Decodes(numbers, torch.zeros_like(lists.rows), counts, width), best)
            places = counts.clamp(max=choice.top_k).to(torch.int64)
            best = functional.pad(best, (0, 1)).scatter_(1, places[:, None], counts[:, None])
            chosen[part] = slots_of(best, choice.block, table, lists.rows)


def _pools_of(state: InferState, pool: int) -> _Pools:
    contexts = contexts_of(state)
    table, lengths, own = contexts.slot_table, contexts.kv_lens[:, None], state.slots[:, None]
    full = (lengths > 0) & (lengths % pool == 0)
    before = lengths - pool + torch.arange(pool - 1, device=own.device)
    slots = table[contexts.rows[:, None], before.clamp(0, table.shape[1] - 1)].to(torch.int64)
    return _Pools(torch.cat((torch.where(full, slots, own), own), dim=1), full)


def _over_pools(contexts: Decodes, pool: int) -> Decodes:
    """Returns the same tokens as decodes over the full pools before them, whose keys are in the slots of their last
    positions.
    """
    table, rows = contexts.slot_table, contexts.rows
    ends = torch.arange(pool - 1, table.shape[1], pool, device=rows.device)
    if len(rows) < len(table):
        table, rows = table[rows[:, None], ends], torch.arange(len(rows), device=rows.device)
    else:
        table = table.index_select(1, ends)
    most = max(1, contexts.max_kv_len // pool)
    return replace(contexts, slot_table=table, rows=rows, kv_lens=contexts.kv_lens // pool, max_kv_len=most)
