"""Hints on the device: what callers expect the texts of rows to be, from which the device drafts (`hint_draft`).

A hint comes a step or two after the tokens that it follows, while the row goes on; the device itself sees whether it
still fits.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from text_generation_kernels import Drafts, Hints, Sequences, Windows, hint_draft

from .hints import MAX_HINT
from .requests import Hint
from .transfer import upload


class HintTable:
    """The hint of each row, on the device. The engine thread owns it."""

    def __init__(self, rows: int, device: torch.device) -> None:
        """`rows` are those of the row table, the padding row included."""
        self._hints = Hints(
            ids=torch.zeros((rows, MAX_HINT), dtype=torch.int32, device=device),
            first=torch.zeros(rows, dtype=torch.int64, device=device),
            counts=torch.zeros(rows, dtype=torch.int64, device=device),
        )

    def clear(self, rows: Tensor) -> None:
        """Forgets the hints of rows, int64."""
        self._hints.counts.index_fill_(0, rows, 0)

    def write(self, hints: Sequence[Hint]) -> None:
        """Gives rows their hints, at most one each."""
        if not hints:
            return
        packed = np.zeros((len(hints), 3 + MAX_HINT), dtype=np.int64)
        for line, each in zip(packed, hints, strict=True):
            line[:3] = each.row, each.at, len(each.ids)
            line[3 : 3 + len(each.ids)] = each.ids
        found = upload(packed, self._hints.first.device)
        rows = found[:, 0].contiguous()
        self._hints.first.index_copy_(0, rows, found[:, 1])
        self._hints.counts.index_copy_(0, rows, found[:, 2])
        self._hints.ids.index_copy_(0, rows, found[:, 3:].to(torch.int32))

    def draft(self, windows: Windows, sequences: Sequences, drafts: Drafts) -> None:
        """Drafts for the rows of windows whose hints fit; the others keep their drafts."""
        hint_draft(windows, sequences, self._hints, drafts)
