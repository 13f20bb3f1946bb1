"""What tokens of attention to compressed positions read: for each a list of vectors of the cache.

A slot has several vectors: the key of its position, and, where it is the last position of an entry, that entry (see
`entries.py`). Attention reads the cache as though each vector had a slot of its own, and a table with a row for each
token in place of the table of slots: the last positions first, then entries. So each token is a decode over its list.
Lists are the same in all layers of a kind, but for entries that an indexer chooses.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from text_generation_kernels import Decodes

from ...config.spec import CompressedAttentionSpec
from .indexer import aligned
from .sparse_step import block_ends, contexts_of, parts_of_scores
from .state import InferState

KEY, ENTRY = 0, 1
"""Which vectors of a slot have the key of its position and the entry that ends there."""


@dataclass(frozen=True)
class ChosenEntries:
    """The entries from which the tokens of a step choose, and room for what they choose."""

    keys: Decodes
    """Each token as a decode over the keys of entries, by the slots of their last positions."""
    entries: Decodes
    """The same over entries, by their vectors."""
    lists: Decodes
    """Each token as a decode over its list; the indexer of each layer writes the entries in it."""
    places: Tensor
    """[T, top_k] int64, the places of entries in a list."""


def chooses(spec: CompressedAttentionSpec, state: InferState) -> bool:
    """Whether some token of the step may have more entries before it than are chosen."""
    if spec.indexer is None:
        return False
    return contexts_of(state).max_kv_len // spec.rate > spec.indexer.top_k


def lists_of(spec: CompressedAttentionSpec, state: InferState) -> Decodes:
    """Returns the tokens of the step as decodes over the last positions and all entries before them."""
    key = lists_of, spec.window, spec.rate, spec.vectors
    return state.once(key, lambda: _made(contexts_of(state), spec, spec.rate))


def chosen_entries(spec: CompressedAttentionSpec, top_k: int, state: InferState) -> ChosenEntries:
    """Returns the same where `top_k` entries are chosen."""
    key = chosen_entries, spec.window, spec.rate, spec.vectors, top_k
    return state.once(key, lambda: _room(contexts_of(state), spec, top_k))


def _made(contexts: Decodes, spec: CompressedAttentionSpec, rate: int, room: int = 0) -> Decodes:
    """With `rate` 0 lists have positions alone, and `room` for so many entries."""
    most = contexts.max_kv_len
    longest = min(spec.window, most) + (most // rate if rate else room)
    width, table = aligned(longest), contexts.slot_table
    vectors = torch.empty(len(contexts.rows), width, dtype=torch.int32, device=table.device)
    places = torch.arange(width, device=table.device)
    for part in parts_of_scores(len(vectors), width):
        lengths = contexts.kv_lens[part, None].to(torch.int64)
        seen = lengths.clamp(max=spec.window)
        positions, is_entry = lengths - seen + places, places >= seen
        if rate:
            positions = torch.where(is_entry, (places - seen + 1) * rate - 1, positions)
        slots = table[contexts.rows[part, None], positions.clamp_(0, table.shape[1] - 1)]
        vectors[part] = slots * spec.vectors + torch.where(is_entry, ENTRY, KEY)
    kv_lens = contexts.kv_lens.clamp(max=spec.window)
    if rate:
        kv_lens = kv_lens + contexts.kv_lens // rate
    return Decodes(vectors, torch.arange(len(vectors), device=table.device), kv_lens, longest)


def _room(contexts: Decodes, spec: CompressedAttentionSpec, top_k: int) -> ChosenEntries:
    keys = block_ends(contexts, spec.rate)
    entries = replace(keys, slot_table=keys.slot_table * spec.vectors + ENTRY)
    lists, seen = _made(contexts, spec, 0, top_k), contexts.kv_lens.clamp(max=spec.window)
    places = seen[:, None].to(torch.int64) + torch.arange(top_k, device=seen.device)
    return ChosenEntries(keys, entries, replace(lists, kv_lens=seen + keys.kv_lens.clamp(max=top_k)), places)
