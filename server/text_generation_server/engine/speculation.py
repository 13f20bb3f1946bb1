"""Speculation: a decode computes several tokens of a row, of which all but the first are drafts, and keeps those that
the model chooses itself.

A draft is accepted only where it is what the row would have chosen, by its own parameters and seed, so text does not
depend on drafts (`text_generation_kernels.speculation`). True lengths are on the device alone; plans name upper bounds.
Nothing is undone: the slot of a rejected draft is written again by the step that computes its position.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from text_generation_kernels import (
    MAX_MATCH,
    Drafts,
    SampledTokens,
    SamplingColumns,
    Sequences,
    WindowInputs,
    Windows,
    accept_tokens,
    ngram_draft,
    window_tokens,
)

from .drafting import Drafting, Passed
from .hint_table import HintTable
from .requests import Hint, Request
from .rows import RowTable
from .running import SlotWrite, Vector
from .transfer import upload
from .widths import MAX_WINDOW_TOKENS, window_widths


class Chosen(NamedTuple):
    """What a step has chosen."""

    sampled: SampledTokens
    """Of each entry: those of one row follow each other."""
    outcome: Tensor | None = None
    """int64 [rows, 4]: how many tokens each row has got, how many drafts its window had, how many were right, and
    whether they were those of a hint (`accept_tokens`). None: there is no speculation, and each row has got one token.
    """
    classes: Tensor | None = None
    """float32 [rows, classes]: the logits of a classifier. None: the model generates text."""


class Speculation:
    """The drafts of all rows, and the text that they come from. The engine thread owns it."""

    def __init__(self, table: RowTable, most: int, columns: SamplingColumns, drafting: Drafting | None = None) -> None:
        """`most` is the number of drafts that a row has at most. With `drafting` they come from a drafter."""
        self._drafting = drafting
        rows, device = table.num_rows + 1, table.last_token.device
        self.widths = window_widths(most)
        self._dummy_slot = table.dummy_slot
        self._columns = columns
        self._sequences = Sequences(table.last_token, table.length, table.generated, table.slot_table)
        self._drafts = Drafts(
            tokens=torch.zeros(table.slot_table.shape, dtype=torch.int32, device=device),
            ids=torch.zeros((rows, most), dtype=torch.int64, device=device),
            counts=torch.zeros(rows, dtype=torch.int64, device=device),
            limits=torch.zeros(rows, dtype=torch.int64, device=device),
            hinted=torch.zeros(rows, dtype=torch.int64, device=device),
        )
        self._hints = HintTable(rows, device)
        self._ones = torch.ones(max(rows, MAX_WINDOW_TOKENS), dtype=torch.int64, device=device)

    @staticmethod
    def bytes_per_position(num_rows: int) -> int:
        """Returns the bytes of one more position of `max_total_tokens`."""
        return torch.int32.itemsize * (num_rows + 1)

    def open(self, requests: Sequence[Request], reach: Vector) -> None:
        """Writes the text of new requests, which have no drafts and hints yet. `reach` has the meaning of
        `RunningRows`.
        """
        if not requests:
            return
        width = self._drafts.tokens.stride(0)
        where = [np.arange(len(each.input_ids)) + each.row * width for each in requests]
        ids = [each.input_ids for each in requests]
        places, values = upload(np.stack((np.concatenate(where), np.concatenate(ids))), self._ones.device)
        self._drafts.tokens.view(-1).index_copy_(0, places, values.to(torch.int32))
        of_rows = np.array([each.row for each in requests], dtype=np.int64)
        rows, limits = upload(np.stack((of_rows, reach)), self._ones.device)
        self._drafts.counts.index_fill_(0, rows, 0)
        self._drafts.hinted.index_fill_(0, rows, 0)
        self._hints.clear(rows)
        self._drafts.limits.index_copy_(0, rows, limits)
        if self._drafting is not None:
            self._drafting.spare(self._sequences.slot_table, of_rows.tolist(), reach)

    def extend(self, writes: Sequence[SlotWrite], rows: Sequence[int], reach: Vector) -> None:
        """Lets `rows` go on as far as their new slots, those of `writes`."""
        if not rows:
            return
        places, limits = upload(np.stack((np.array(rows, dtype=np.int64), reach)), self._ones.device)
        self._drafts.limits.index_copy_(0, places, limits)
        if self._drafting is not None:
            self._drafting.grant(writes)
            self._drafting.spare(self._sequences.slot_table, rows, reach)

    def hint(self, hints: Sequence[Hint]) -> None:
        """Gives rows hints, at most one each, from which later windows draft first."""
        self._hints.write(hints)

    @property
    def limits(self) -> Tensor:
        """The length that each row can have, int64: see `RunningRows.reach`."""
        return self._drafts.limits

    def inputs(self, windows: Windows) -> WindowInputs:
        """Returns the input of a forward pass over these windows, whose drafts are those of a hint where one fits."""
        self._hints.draft(windows, self._sequences, self._drafts)
        number, like = len(windows.rows) * windows.width, windows.rows
        rows, ids, positions, slots = (like.new_empty(number) for _ in range(4))
        inputs = WindowInputs(rows, ids, positions, slots, like.new_empty(number, dtype=torch.int32))
        window_tokens(windows, self._sequences, self._drafts, self._dummy_slot, inputs)
        return inputs

    def single(self, rows: Tensor) -> Windows:
        """Returns windows of one token each."""
        return Windows(rows, self._ones[: len(rows)], 1)

    def advance(self, windows: Windows, sampled: SampledTokens) -> Chosen:
        """Appends what was chosen to the rows, and drafts what may follow."""
        outcome = windows.rows.new_empty((len(windows.rows), 4))
        accept_tokens(windows, sampled, self._sequences, self._drafts, self._columns, outcome)
        if self._drafting is None:
            ngram_draft(windows, self._sequences, self._drafts)
        return Chosen(sampled, outcome)

    @property
    def reads_passes(self) -> bool:
        """Whether drafts come from a drafter, which reads forward passes of the model."""
        return self._drafting is not None

    def keep(self, tokens: int) -> None:
        """Keeps what a drafter reads of the forward pass that was just computed, over so many tokens."""
        if self._drafting is not None:
            self._drafting.keep(tokens)

    def draft(
        self, passed: Passed | None, windows: Windows, last: Tensor, hidden: Tensor, places: Tensor | None
    ) -> None:
        """Lets the drafter compute what follows a pass, once its tokens are appended to the rows of `windows`. `last`,
        `hidden` and `places` have the meaning of `DraftStep`.
        """
        if self._drafting is None or passed is None:
            return
        self._drafting.draft(passed, windows, last, hidden, places, self._sequences, self._drafts, self._columns)
        if not passed.wants_drafts:
            self._drafts.counts.index_fill_(0, windows.rows, 0)
            return
        # What a text copies from itself no drafter knows better.
        ngram_draft(windows, self._sequences, self._drafts, MAX_MATCH, True)
