"""Persistent tensors indexed by row: all that a step needs to know of a running request.

A request owns one row from Prefill until it ends. Batches are lists of rows, so joining and filtering them moves no
tensor. The lowest free row is taken first, so all ranks give a request the same row. Owned by the engine thread.
"""

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

from .batches import RunningRequest
from .requests import NextTokenChooserParameters, SlotRange

_FLOAT_PARAMETERS = ("temperature", "top_p", "typical_p", "repetition_penalty", "frequency_penalty")


def signed_64(value: int) -> int:
    """The int64 with the bit pattern of an unsigned 64-bit number."""
    return value - 2**64 if value >= 2**63 else value


class RowTable:
    """`num_rows` rows for sequences of at most `max_total_tokens` tokens.

    slot_table          int32 [rows, max_total_tokens]   slot of position p
    history             int32 [rows, max_total_tokens]   token at position p
    last_token, length  int64 [rows]                     newest token; tokens of prompt and output
    generated, seed     int64 [rows]                     tokens generated so far; bit pattern of the 64-bit seed
    top_k, top_n        int64 [rows]                     0: off
    do_sample           bool [rows]
    temperature, top_p, typical_p, repetition_penalty, frequency_penalty   float32 [rows]
    """

    def __init__(self, num_rows: int, max_total_tokens: int, device: torch.device) -> None:
        self.num_rows = num_rows
        self.max_total_tokens = max_total_tokens
        self._device = device
        self._free = list(range(num_rows))

        def column(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros((num_rows, *shape), dtype=dtype, device=device)

        self.slot_table = column(torch.int32, max_total_tokens)
        self.history = column(torch.int32, max_total_tokens)
        self.last_token = column(torch.int64)
        self.length = column(torch.int64)
        self.generated = column(torch.int64)
        self.seed = column(torch.int64)
        self.top_k = column(torch.int64)
        self.top_n = column(torch.int64)
        self.do_sample = column(torch.bool)
        self.temperature = column(torch.float32)
        self.top_p = column(torch.float32)
        self.typical_p = column(torch.float32)
        self.repetition_penalty = column(torch.float32)
        self.frequency_penalty = column(torch.float32)

    @staticmethod
    def bytes_per_row(max_total_tokens: int) -> int:
        """Bytes of one row's two long columns, beside which the others do not count."""
        return 2 * torch.int32.itemsize * max_total_tokens

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
            heapq.heappush(self._free, request.row)

    def index(self, running: Sequence[RunningRequest]) -> Tensor:
        """Row numbers as int64 [N] on the device."""
        return self._ints([r.row for r in running])

    def open(self, running: Sequence[RunningRequest], rows: Tensor, positions: Tensor, token_rows: Tensor) -> Tensor:
        """Writes prompts, slots and parameters of new requests into their rows, in few copies for the whole batch.

        `rows` int64 [N]; `positions` and `token_rows` int64 [T]: position and row of each packed prompt token.
        Returns the packed prompts, int64 [T].
        """
        ids = self._ints([token for r in running for token in r.request.input_ids])
        self.history[token_rows, positions] = ids.to(torch.int32)
        for r in running:
            self.grant(r, r.request.slots)
        self._write_parameters(rows, [r.request.parameters for r in running])
        self.top_n[rows] = self._ints([r.request.top_n_tokens for r in running])
        self.length[rows] = self._ints([r.length for r in running])
        # The last prompt token is what a watermark of the first choice looks at.
        self.last_token[rows] = self._ints([r.request.input_ids[-1] for r in running])
        self.generated[rows] = 0
        return ids

    def grant(self, running: RunningRequest, slots: Sequence[SlotRange]) -> None:
        """Appends slots to those that the request holds; what lies past `max_total_tokens` can never be used."""
        running.num_slots = self._write_slots(running.row, running.num_slots, slots)

    def advance(self, rows: Tensor, tokens: Tensor) -> None:
        """Appends the chosen `tokens` int64 [N] to the sequences of `rows` int64 [N]."""
        self.history[rows, self.length[rows]] = tokens.to(torch.int32)
        self.last_token[rows] = tokens
        self.length[rows] += 1
        self.generated[rows] += 1

    def _write_slots(self, row: int, start: int, slots: Sequence[SlotRange]) -> int:
        """Writes slots for positions from `start` on and returns the position after the last."""
        for slot_range in slots:
            end = min(start + slot_range.length, self.max_total_tokens)
            first = slot_range.start
            torch.arange(first, first + end - start, out=self.slot_table[row, start:end])
            start = end
        return start

    def _write_parameters(self, rows: Tensor, parameters: Sequence[NextTokenChooserParameters]) -> None:
        floats = torch.tensor([[getattr(p, name) for name in _FLOAT_PARAMETERS] for p in parameters])
        for name, values in zip(_FLOAT_PARAMETERS, floats.to(self._device).unbind(dim=1), strict=True):
            getattr(self, name)[rows] = values
        seed, top_k, do_sample = self._ints([(signed_64(p.seed), p.top_k, p.do_sample) for p in parameters]).unbind(1)
        self.seed[rows] = seed
        self.top_k[rows] = top_k
        self.do_sample[rows] = do_sample.to(torch.bool)

    def _ints(self, values: Sequence[int] | Sequence[tuple[int, ...]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
