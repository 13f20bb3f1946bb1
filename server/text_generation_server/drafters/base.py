"""Interface between the engine and a model that drafts tokens.

A drafter computes within the steps of its model, whose hidden states or tokens it reads, on every rank whole: each rank
has the same hidden states behind an all-reduce, and so drafts the same tokens. What it drafts cannot change the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from text_generation_kernels import Drafts, KvCache, SamplingColumns, Sequences, Windows

from ..layers.infer import CacheShape, InferState


@dataclass(frozen=True)
class DraftStep:
    """A step of the model with T tokens, after the tokens that it has chosen were appended to the rows."""

    state: InferState
    """That of the model's forward pass, made before tokens were appended."""
    rows: Tensor
    """[T] int64, the row of each token."""
    features: Tensor
    """[T, feature_size], what the drafter has kept of the pass."""
    chosen: Tensor
    """[D] int64, the rows that have got tokens, each once but for padding."""
    last: Tensor
    """[D] int64, the token of the step behind which the newest token of the row was chosen."""
    hidden: Tensor
    """[N, hidden], the last hidden states of the model, normalised: those of `places` are of the tokens `last`."""
    places: Tensor | None
    """[D] int64; None: all, in order."""
    width: int
    """The most tokens that a row could get."""
    sequences: Sequences
    drafts: Drafts
    columns: SamplingColumns
    caches: Sequence[KvCache]
    """Those of the drafter, for all slots that `sequences` name."""
    dummy_slot: int
    """Where padding is written."""
    max_kv_len: int
    """An upper bound of the tokens of the rows `chosen`."""
    wanted: bool
    """Whether the rows that have got tokens get drafts. If not, the drafter computes what later drafts need alone."""


class Drafter(Protocol):
    """Drafts tokens that may follow. The engine thread owns it."""

    kind: str
    """Its name as a method of speculation."""
    caches: Sequence[CacheShape]
    """What it keeps of each position."""
    keeps_pairs: bool = False
    """Whether what it keeps of a position depends on hidden states of the model at the one before, so that the last
    cached position of a request is computed again.
    """
    feature_size: int
    """Elements that it keeps of each token of a forward pass until tokens are chosen."""
    bytes_per_position: int
    """See `CausalLM`."""

    def reserve_positions(self, count: int) -> None:
        """See `CausalLM`."""
        ...

    def read(self, features: Tensor) -> None:
        """Writes what it needs of the last forward pass of the model, with T tokens, to [T, feature_size]."""
        ...

    def draft(self, step: DraftStep) -> None:
        """Computes the positions of the step, and writes drafts, where they are `wanted`, of the rows that have got
        tokens: as many as tokens of a window, at most. Rows at their limit get none.
        """
        ...


def draft_windows(windows: Windows, outcome: Tensor) -> Tensor:
    """Returns, for each window of a step that computes windows alone, its last token that counts: [D] int64. `outcome`
    has the meaning of `accept_tokens`.
    """
    first = torch.arange(len(windows.rows), device=windows.rows.device) * windows.width
    # In a compile dry run, nothing was written there.
    return first + (outcome[:, 0] - 1).clamp_(0, windows.width - 1)
