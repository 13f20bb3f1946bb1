"""Where the pairs of a drafter lie (`eagle.py`): the pair of the token at position p is number p - 1 of its sequence,
and has the slot of position p, in caches of the drafter's own.

A token may be known before its position has a slot, which comes with a later step. Until then its pair lies in the
spare slot of its row, which the slot table names for the first position without a slot (`engine/drafting.py`).
"""

from dataclasses import replace

import torch
from torch import Tensor

from text_generation_kernels import Decodes

from ..layers.infer import InferState
from .base import DraftStep


def pairs_of(step: DraftStep) -> tuple[Tensor, InferState]:
    """Returns the token of each pair that a step of the model makes, [T] int64, and the state of their pass. Pairs of
    rejected drafts, and padding, lie in the dummy slot.
    """
    state, table = step.state, step.sequences.slot_table
    position = (state.positions + 1).clamp(max=table.shape[1] - 1)
    known = (position < step.sequences.length[step.rows]) & (state.slots != step.dummy_slot)
    slots = torch.where(known, table[step.rows, position].to(torch.int64), step.dummy_slot)
    decodes, chunks, shifted = state.decodes, state.chunks, table[:, 1:]
    if decodes is not None:
        most = min(decodes.max_kv_len, shifted.shape[1])
        decodes = replace(decodes, slot_table=shifted, max_kv_len=most)
    return step.drafts.tokens[step.rows, position].to(torch.int64), InferState(
        deterministic=False,
        positions=state.positions,
        slots=slots,
        decodes=decodes,
        chunks=None if chunks is None else replace(chunks, slot_table=shifted, seen_ends=None),
        caches=step.caches,
        states=(),
        logit_tokens=None,
    )


def one_more(step: DraftStep, position: Tensor, limits: Tensor) -> InferState:
    """Returns the state of a pass over one drafted token of each row, at `position` [D] int64. Where that has no slot,
    the row needs no further draft, and attends to nothing.
    """
    table = step.sequences.slot_table
    inside = (position + 1 < limits) & (position > 0)
    place = torch.where(inside, position, 1)
    slots = torch.where(inside, table[step.chosen, place].to(torch.int64), step.dummy_slot)
    lengths = torch.where(inside, position, 0).to(torch.int32)
    return InferState(
        deterministic=False,
        positions=place - 1,
        slots=slots,
        decodes=Decodes(table[:, 1:], step.chosen, lengths, min(step.max_kv_len, table.shape[1] - 1)),
        chunks=None,
        caches=step.caches,
        states=(),
        logit_tokens=None,
    )
