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

from dataclasses import dataclass

import torch
from torch import Tensor

import text_generation_kernels as kernels

from ..rope import RopeTable
from ..weights import EntryWeights
from .rotation import angles_at, rotate_last
from .sparse_step import contexts_of, parts_of_scores
from .state import InferState


@dataclass(frozen=True)
class _Ends:
    """New tokens of a step of which some are the last positions of entries: all that are, and others."""

    own: Tensor
    """[N] int64, their slots."""
    slots: Tensor
    """[N, rate] int64, the slots of the positions of their entries; of others their own slot."""
    before: Tensor
    """[N, rate] int64, the same of the positions before."""
    are_full: Tensor
    """[N, 1] bool, whether there is an entry."""
    have_before: Tensor
    """[N, 1] bool, whether there are positions before it."""
    firsts: Tensor
    """[N] int64, the first positions of entries; 0 where there is none."""


class Entries:
    """Makes the entries of one layer, or their keys."""

    def __init__(self, rate: int, norm_eps: float, weights: EntryWeights, rope: RopeTable) -> None:
        self._rate = rate
        self._norm_eps = norm_eps
        self._weights = weights
        self._rope = rope
        self._offsets = weights.offsets.flip(0).flatten(0, 1)

    def write(self, projected: Tensor, cache: Tensor, state: InferState) -> None:
        """Writes what a position has, `projected` [T, 2 * series, size], to `cache` [slots, 2 * series, size], and the
        entries that end in this step.
        """
        cache.index_copy_(0, state.slots, projected)
        ends = state.once((Entries, self._rate), lambda: _ends_of(state, self._rate))
        for part in parts_of_scores(len(ends.own), self._rate * cache.shape[1] * cache.shape[2]):
            entries, old = self._made(cache, ends, part)
            made = torch.where(ends.are_full[part], entries, old)
            cache[:, 0].index_copy_(0, ends.own[part], made)

    def _made(self, cache: Tensor, ends: _Ends, part: slice) -> tuple[Tensor, Tensor]:
        """Returns entries [N, size], and what is where they belong."""
        read = cache[:, :2][ends.slots[part]]
        old, rate = read[:, -1, 0], self._rate
        if cache.shape[1] > 2:
            read = torch.cat((cache[:, 2:][ends.before[part]], read), dim=1)
        values, logits = read.unbind(2)
        logits = logits.float() + self._offsets
        if cache.shape[1] > 2:
            logits[:, :rate].masked_fill_(~ends.have_before[part, :, None], float("-inf"))
        # Rounded where transformers rounds.
        entries = (logits.softmax(dim=1).to(values.dtype) * values).sum(dim=1)
        kernels.rms_norm(entries, self._weights.norm, self._norm_eps, entries)
        rotate_last(entries[:, None], angles_at(self._rope, ends.firsts[part]))
        return entries, old


def _ends_of(state: InferState, rate: int) -> _Ends:
    contexts = contexts_of(state)
    table, rows, lengths, own = contexts.slot_table, contexts.rows, contexts.kv_lens.to(torch.int64), state.slots
    are_full = (lengths > 0) & (lengths % rate == 0)
    most = _most_ends(state, rate)
    if most < len(own):
        chosen = are_full.to(torch.int8).argsort(descending=True, stable=True)[:most]
        rows, lengths, own, are_full = (each[chosen] for each in (rows, lengths, own, are_full))
    full, single = are_full[:, None], own[:, None]
    within = torch.arange(-rate, 0, device=own.device)
    positions, have_before = lengths[:, None] + within, full & (lengths >= 2 * rate)[:, None]

    def slots(exist: Tensor, at: Tensor) -> Tensor:
        return torch.where(exist, table[rows[:, None], at.clamp(0, table.shape[1] - 1)].to(torch.int64), single)

    current = torch.cat((slots(full, positions[:, :-1]), single), dim=1)
    firsts = torch.where(are_full, lengths - rate, 0)
    return _Ends(own, current, slots(have_before, positions - rate), full, have_before, firsts)


def _most_ends(state: InferState, rate: int) -> int:
    """An upper bound of the entries that end in the step: the host knows no lengths."""
    if (chunks := state.chunks) is None:
        return len(state.slots)
    decodes = 0 if state.decodes is None else len(state.decodes.rows)
    return len(state.slots) // rate + len(chunks.rows) + decodes
