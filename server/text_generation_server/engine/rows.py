"""Persistent tensors indexed by row: all that a step needs to know of a running request.

A request owns one row from Prefill until it ends. Batches are lists of rows, so joining and filtering them moves no
tensor. The lowest free row is taken first, so all ranks give a request the same row. Owned by the engine thread; all
writes are queued on one stream, so a row that changes its owner is never written by both.
"""

import heapq
from collections.abc import Sequence

import numpy as np
import torch

from .batches import RunningRequest
from .requests import SlotRange
from .transfer import upload, upload_parts


class RowTable:
    """`num_rows` rows for sequences of at most `max_total_tokens` tokens, and one more that nobody owns.

    slot_table   int32 [rows + 1, max_total_tokens]   slot of position p
    last_token   int64 [rows + 1]                     newest token
    length       int64 [rows + 1]                     tokens of prompt and output; 0 for a row that was never owned
    generated    int64 [rows + 1]                     tokens generated so far

    Row `num_rows` is what batches are padded with: its length stays 0 and its slots are `dummy_slot`.
    """

    def __init__(self, num_rows: int, max_total_tokens: int, dummy_slot: int, device: torch.device) -> None:
        self.num_rows = num_rows
        self.max_total_tokens = max_total_tokens
        self._device = device
        self._free = list(range(num_rows))
        shape = (num_rows + 1, max_total_tokens)
        self.slot_table = torch.full(shape, dummy_slot, dtype=torch.int32, device=device)
        self.last_token = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
        self.length = torch.zeros_like(self.last_token)
        self.generated = torch.zeros_like(self.last_token)

    @staticmethod
    def bytes_per_row(max_total_tokens: int) -> int:
        """Bytes of one row's slots, beside which the other columns do not count."""
        return torch.int32.itemsize * max_total_tokens

    @property
    def num_free(self) -> int:
        """Rows that nobody owns."""
        return len(self._free)

    def take(self) -> int:
        """The lowest free row; the caller has checked `num_free`."""
        return heapq.heappop(self._free)

    def release(self, running: Sequence[RunningRequest]) -> None:
        """Frees the rows of requests that ended. What the tensors hold there is overwritten by the next owner."""
        for request in running:
            if not request.released:
                request.released = True
                heapq.heappush(self._free, request.row)

    def open(self, running: Sequence[RunningRequest]) -> None:
        """Writes the columns of new requests; their slots come by `grant`."""
        rows, last, lengths = upload_parts(
            [
                np.array([r.row for r in running]),
                # The last prompt token is what a watermark of the first choice looks at.
                np.array([r.request.input_ids[-1] for r in running]),
                np.array([len(r.request.input_ids) for r in running]),
            ],
            self._device,
        )
        self.last_token.index_copy_(0, rows, last)
        self.length.index_copy_(0, rows, lengths)
        self.generated.index_fill_(0, rows, 0)

    def grant(self, grants: Sequence[tuple[RunningRequest, Sequence[SlotRange]]]) -> None:
        """Appends slots to those that requests hold; what lies past `max_total_tokens` can never be used."""
        where, slots = [], []
        for running, ranges in grants:
            position = running.num_slots
            for slot_range in ranges:
                end = min(position + slot_range.length, self.max_total_tokens)
                first = running.row * self.max_total_tokens
                where.append(np.arange(first + position, first + end))
                slots.append(np.arange(slot_range.start, slot_range.start + end - position))
                position = end
            running.num_slots = position
        if where:
            entries = upload(np.stack((np.concatenate(where), np.concatenate(slots))), self._device)
            self.slot_table.view(-1).index_copy_(0, entries[0], entries[1].to(torch.int32))
