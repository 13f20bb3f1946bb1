"""Where what a drafter keeps of tokens lies: a token at position p has the slot of position p, in caches of the
drafter's own, and is number p - `first` of its sequence.

Pairs of a token and hidden states of the one before (`chain.py`) begin with the token at position 1, so `first` is 1;
tokens alone begin at 0. A token may be known before its position has a slot, which comes with a later step. Until then
it lies in the spare slot of its row, which the slot table names for the first position without a slot
(`engine/drafting.py`).
"""

from dataclasses import replace

import torch
from torch import Tensor

from text_generation_kernels import Chunks, Decodes

from ..layers.infer import InferState
from .base import DraftStep


def followers_of(step: DraftStep, first: int) -> tuple[Tensor, InferState]:
    """Returns the token behind each one that a step of the model computes, [T] int64, and the state of their pass.
    Those of rejected drafts, and padding, lie in the dummy slot.
    """
    state, table = step.state, step.sequences.slot_table
    position = (state.positions + 1).clamp(max=table.shape[1] - 1)
    known = (position < step.sequences.length[step.rows]) & (state.slots != step.dummy_slot)
    slots = torch.where(known, table[step.rows, position].to(torch.int64), step.dummy_slot)
    decodes, chunks, own = state.decodes, state.chunks, table[:, first:]
    longest = own.shape[1]

    def lengths(of_step: Tensor) -> Tensor:
        return of_step if first else torch.where(of_step > 0, (of_step + 1).clamp(max=longest), 0).to(torch.int32)

    if decodes is not None:
        most = min(decodes.max_kv_len + 1 - first, longest)
        decodes = replace(decodes, slot_table=own, kv_lens=lengths(decodes.kv_lens), max_kv_len=most)
    if chunks is not None:
        chunks = replace(chunks, slot_table=own, kv_lens=lengths(chunks.kv_lens), seen_ends=None)
    ids = step.drafts.tokens[step.rows, position].to(torch.int64)
    return ids, _state(step, state.positions if first else position, slots, decodes, chunks)


def repeated(step: DraftStep) -> tuple[Tensor, InferState]:
    """Returns the tokens that a step of the model has computed, [T] int64, and the state of their pass."""
    state, chunks = step.state, step.state.chunks
    if chunks is not None:
        chunks = replace(chunks, seen_ends=None)
    ids = step.drafts.tokens[step.rows, state.positions].to(torch.int64)
    return ids, _state(step, state.positions, state.slots, state.decodes, chunks)


def one_more(step: DraftStep, position: Tensor, limits: Tensor, first: int) -> InferState:
    """Returns the state of a pass over one token of each row, at `position` [D] int64. Where that has no slot, the row
    needs no further draft, and attends to nothing.
    """
    table = step.sequences.slot_table
    inside = (position + 1 < limits) & (position > 0)
    place = torch.where(inside, position, 1)
    slots = torch.where(inside, table[step.chosen, place].to(torch.int64), step.dummy_slot)
    lengths = torch.where(inside, position + 1 - first, 0).to(torch.int32)
    most = min(step.max_kv_len + 1 - first, table.shape[1] - first)
    return _state(step, place - first, slots, Decodes(table[:, first:], step.chosen, lengths, most), None)


def _state(
    step: DraftStep, positions: Tensor, slots: Tensor, decodes: Decodes | None, chunks: Chunks | None
) -> InferState:
    return InferState(
        deterministic=False,
        positions=positions,
        slots=slots,
        decodes=decodes,
        chunks=chunks,
        caches=step.caches,
        states=(),
        logit_tokens=None,
    )
