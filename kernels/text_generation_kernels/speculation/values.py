"""Inputs and outputs of the operators of speculation, each value declared once.

A window is up to `width` tokens of one row that a step computes together: the newest token, and drafts of those that
may follow. Entry `d * width + j` of a step is token j of the window of place d. A tensor "by row" is indexed by the row
of a running request.
"""

from typing import NamedTuple

from torch import Tensor


class Windows(NamedTuple):
    """Whose windows a step computes, and how wide they may be."""

    rows: Tensor
    """int64 [D]. A row of length 0 pads the batch, several times in one batch; others occur once."""
    caps: Tensor
    """int64 [D]: the most tokens of each window, 1 to `width`."""
    width: int

    @property
    def is_cuda(self) -> bool:
        """Whether its tensors are on a GPU."""
        return self.rows.is_cuda


class Sequences(NamedTuple):
    """Where each row stands, by row."""

    last_token: Tensor
    """int64: newest token."""
    length: Tensor
    """int64: tokens of prompt and output; 0 for a row that was never owned."""
    generated: Tensor
    """int64: tokens generated so far."""
    slot_table: Tensor
    """int32 [rows, positions], unit stride in the last dimension."""


class Drafts(NamedTuple):
    """What is drafted of each row, by row."""

    tokens: Tensor
    """int32 [rows, positions]: prompt and output, valid below the row's length."""
    ids: Tensor
    """int64 [rows, most]: tokens that may follow the newest one."""
    counts: Tensor
    """int64: how many of `ids` are valid."""
    limits: Tensor
    """int64: the most tokens that the row can have: those of its request, and one more than it has slots, because the
    last token is never computed.
    """
    hinted: Tensor
    """int64: 1 where `ids` are those of a hint (`hint_draft`), which the acceptance of these drafts sets back to 0."""

    @property
    def most(self) -> int:
        """The most drafts of a row."""
        return self.ids.shape[1]


class Hints(NamedTuple):
    """What callers expect of each row, by row."""

    ids: Tensor
    """int32 [rows, most], a power of two"""
    first: Tensor
    """int64: the position of the row's text that `ids` begin at."""
    counts: Tensor
    """int64: how many of `ids` are valid; 0: there is no hint."""

    @property
    def most(self) -> int:
        """The most ids of a hint."""
        return self.ids.shape[1]


class WindowInputs(NamedTuple):
    """The input of a forward pass over N = D * width entries."""

    rows: Tensor
    """int64 [N], the row of each entry."""
    ids: Tensor
    """int64 [N]"""
    positions: Tensor
    """int64 [N]"""
    slots: Tensor
    """int64 [N]"""
    kv_lens: Tensor
    """int32 [N], the tokens that the entry attends to, itself included; 0 for an entry outside its window."""
