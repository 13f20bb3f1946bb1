"""Persistent tensors indexed by row: all that a step needs to know of a running request.

A request owns one row from its admission until it is dropped. A batch is a list of rows, so requests join and leave it
without any tensor being moved. Owned by the engine thread; all writes are queued on one stream, so a row that changes
its owner is never written by both.
"""

from collections.abc import Sequence

import numpy as np
import torch

from .requests import Request
from .running import SlotWrite
from .transfer import upload

_WHOLE = 16
"""Positions of a row are a multiple of so many: kernels have another form for other strides, and forms are compiled
before it is known how many positions there will be.
"""

_FEW = 4
"""Ranges of slots that are written by a kernel each: a new request waits for it, and an upload takes longer."""


class RowTable:
    """`num_rows` rows for sequences of at most `max_total_tokens` tokens, and one more that nobody owns.

    slot_table   int32 [rows + 1, max_total_tokens or a few more]   slot of position p
    last_token   int64 [rows + 1]   newest token
    length       int64 [rows + 1]   tokens of prompt and output; 0 for a row that was never owned
    generated    int64 [rows + 1]   tokens generated so far

    Row `num_rows` is what batches are padded with: its length stays 0 and its slots are `dummy_slot`.
    """

    def __init__(self, num_rows: int, max_total_tokens: int, dummy_slot: int, device: torch.device) -> None:
        self.num_rows = num_rows
        self.max_total_tokens = max_total_tokens
        self._device = device
        shape = (num_rows + 1, -(-max_total_tokens // _WHOLE) * _WHOLE)
        self.slot_table = torch.full(shape, dummy_slot, dtype=torch.int32, device=device)
        self.last_token = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
        self.length = torch.zeros_like(self.last_token)
        self.generated = torch.zeros_like(self.last_token)

    @property
    def padding_row(self) -> int:
        """The row that nobody owns."""
        return self.num_rows

    @staticmethod
    def bytes_per_position(num_rows: int) -> int:
        """Bytes that one more position of `max_total_tokens` takes."""
        return torch.int32.itemsize * (num_rows + 1)

    def open(self, requests: Sequence[Request]) -> None:
        """Writes the columns of new requests; their slots come by `grant`."""
        if not requests:
            return
        columns = np.array(
            [[r.row, r.input_ids[-1], len(r.input_ids), r.num_generated] for r in requests], dtype=np.int64
        )
        rows, last, lengths, generated = upload(np.ascontiguousarray(columns.T), self._device)
        # The last token of a prompt is what a watermark of the first choice looks at.
        self.last_token.index_copy_(0, rows, last)
        self.length.index_copy_(0, rows, lengths)
        self.generated.index_copy_(0, rows, generated)

    def grant(self, writes: Sequence[SlotWrite]) -> None:
        """Appends slots to those that rows hold; what lies past `max_total_tokens` can never be used."""
        pieces: list[tuple[int, int, int, int]] = []
        for write in writes:
            position = write.position
            for slots in write.slots:
                end = min(position + slots.length, self.max_total_tokens)
                if end > position:
                    pieces.append((write.row, position, end, slots.start))
                position = end
        if len(pieces) <= _FEW:
            for row, position, end, first in pieces:
                torch.arange(first, first + end - position, out=self.slot_table[row, position:end])
        else:
            self._upload_slots(pieces)

    def _upload_slots(self, pieces: Sequence[tuple[int, int, int, int]]) -> None:
        """Writes many ranges together. Each piece: row, first position, position behind the last, first slot."""
        width = self.slot_table.stride(0)
        where = [np.arange(row * width + position, row * width + end) for row, position, end, _ in pieces]
        slots = [np.arange(first, first + end - position) for _, position, end, first in pieces]
        entries = upload(np.stack((np.concatenate(where), np.concatenate(slots))), self._device)
        self.slot_table.view(-1).index_copy_(0, entries[0], entries[1].to(torch.int32))
