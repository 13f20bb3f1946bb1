"""Persistent tensors indexed by row: what a step needs to know of running requests.

A request owns one row from its admission until it is dropped. A batch is a list of rows, so requests join and leave it
without moving any tensor. The engine thread owns the tensors; all writes are queued on one stream, so two owners of a
row never write at once.
"""

from collections.abc import Sequence

import numpy as np
import torch

from .media_positions import rope_delta
from .requests import Request
from .running import SlotWrite
from .transfer import upload

_WHOLE = 16
"""Positions of a row are a multiple of so many: Triton specialises kernels for strides that 16 divides, and compiles
them before warm-up knows how many positions there will be.
"""

_FEW = 4
"""Up to so many ranges of slots, one kernel writes each: a new request waits for this, and an upload takes longer."""


class RowTable:
    """`num_rows` rows for sequences of at most `max_total_tokens` tokens, and the padding row.

    slot_table   int32 [rows + 1, max_total_tokens or a few more]   slot of position p
    last_token   int64 [rows + 1]   newest token
    length       int64 [rows + 1]   tokens of prompt and output; 0 for a row that was never owned
    generated    int64 [rows + 1]   tokens generated so far
    rope_delta   int64 [rows + 1]   where positions count along axes: what to add to the position of a generated token

    Row `num_rows` pads batches: its length stays 0 and its slots are `dummy_slot`.
    """

    def __init__(
        self, num_rows: int, max_total_tokens: int, dummy_slot: int, device: torch.device, axes: bool = False
    ) -> None:
        self.num_rows = num_rows
        self.dummy_slot = dummy_slot
        self.max_total_tokens = max_total_tokens
        self._device = device
        shape = (num_rows + 1, -(-max_total_tokens // _WHOLE) * _WHOLE)
        self.slot_table = torch.full(shape, dummy_slot, dtype=torch.int32, device=device)
        self.last_token = torch.zeros(num_rows + 1, dtype=torch.int64, device=device)
        self.length = torch.zeros_like(self.last_token)
        self.generated = torch.zeros_like(self.last_token)
        self.rope_delta = torch.zeros_like(self.last_token) if axes else None

    @property
    def padding_row(self) -> int:
        """The row that nobody owns."""
        return self.num_rows

    @staticmethod
    def bytes_per_position(num_rows: int) -> int:
        """Returns the bytes of one more position of `max_total_tokens`."""
        return torch.int32.itemsize * (num_rows + 1)

    def open(self, requests: Sequence[Request]) -> None:
        """Writes the columns of new requests; `grant` writes their slots."""
        if not requests:
            return
        columns = np.array(
            [[r.row, r.input_ids[-1], len(r.input_ids), r.num_generated] for r in requests], dtype=np.int64
        )
        rows, last, lengths, generated = upload(np.ascontiguousarray(columns.T), self._device)
        # The watermark of the first sampled token depends on the last token of the prompt.
        self.last_token.index_copy_(0, rows, last)
        self.length.index_copy_(0, rows, lengths)
        self.generated.index_copy_(0, rows, generated)
        if self.rope_delta is not None:
            deltas = np.array([rope_delta(request.media) for request in requests], dtype=np.int64)
            self.rope_delta.index_copy_(0, rows, upload(deltas, self._device))

    def grant(self, writes: Sequence[SlotWrite]) -> None:
        """Appends slots to those that rows hold. It drops slots past `max_total_tokens`, which nobody can use."""
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
        """Writes many ranges together. Each piece has row, first position, end position and first slot."""
        width = self.slot_table.stride(0)
        where = [np.arange(row * width + position, row * width + end) for row, position, end, _ in pieces]
        slots = [np.arange(first, first + end - position) for _, position, end, first in pieces]
        entries = upload(np.stack((np.concatenate(where), np.concatenate(slots))), self._device)
        self.slot_table.view(-1).index_copy_(0, entries[0], entries[1].to(torch.int32))
