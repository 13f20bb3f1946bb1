"""Sampling parameters and token counts by row, on the device.

The engine writes them when a request gets its row and when tokens are sampled; the host never reads them.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from text_generation_kernels import MAX_LOGIT_BIAS, Flags, Floats, Ints, SamplingColumns

from .requests import NextTokenChooserParameters, Request
from .transfer import upload

_SEED_WORDS = 2


class SamplingState:
    """Columns for `num_rows` rows; a row that was never admitted is plain and greedy. The engine thread owns them.

    The host has a copy of flags and mask slots, and writes both together.
    """

    def __init__(
        self, num_rows: int, vocab_size: int, device: torch.device, eos_token_ids: Sequence[int], widest: int = 1
    ) -> None:
        """`widest` is the most tokens that a step computes of a row."""

        def column(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros((num_rows, *shape), dtype=dtype, device=device)

        self.num_rows = num_rows
        self.vocab_size = vocab_size
        self.device = device
        self.columns = SamplingColumns(
            floats=column(torch.float32, Floats.WIDTH),
            ints=column(torch.int32, Ints.WIDTH),
            seed=column(torch.int64),
            bias_ids=column(torch.int32, MAX_LOGIT_BIAS),
            bias_values=column(torch.float32, MAX_LOGIT_BIAS),
            counts=column(torch.int32, vocab_size),
        )
        self.columns.floats[:] = torch.tensor(_floats(NextTokenChooserParameters()))
        self._flags = np.zeros(num_rows, dtype=np.int32)
        self._mask_slots = np.zeros(num_rows, dtype=np.int32)
        self.window_masks = column(torch.int32, widest)
        """The mask slots of the places of windows (`SamplingRules`)."""
        known = sorted(token for token in set(eos_token_ids) if token < vocab_size)
        self.eos_token_ids = torch.tensor(known, dtype=torch.int32, device=device)

    @staticmethod
    def bytes_per_row(vocab_size: int) -> int:
        """Returns the device memory of one row."""
        return 4 * (vocab_size + 2 * MAX_LOGIT_BIAS + Floats.WIDTH + Ints.WIDTH + _SEED_WORDS)

    def admit(self, rows: Sequence[int], requests: Sequence[Request]) -> None:
        """Writes the parameters of `requests` into `rows`, in few copies for all, with mask slot 0. It does not wait
        for the device.
        """
        if not rows:
            return
        self._flags[rows] = [int(_flags(request)) for request in requests]
        self._mask_slots[rows] = 0
        index = self._upload(torch.tensor(rows, dtype=torch.int64))
        packed = torch.empty(len(rows), Floats.WIDTH + Ints.WIDTH + _SEED_WORDS, dtype=torch.int32)
        floats, ints, seed = self._unpacked(packed)
        floats.copy_(torch.tensor([_floats(request.parameters) for request in requests]))
        ints.copy_(torch.tensor([_ints(request) for request in requests], dtype=torch.int32))
        seed.copy_(torch.tensor([signed_64(request.parameters.seed) for request in requests]))
        columns = (self.columns.floats, self.columns.ints, self.columns.seed)
        for column, values in zip(columns, self._unpacked(self._upload(packed)), strict=True):
            column.index_copy_(0, index, values)
        pairs = list(zip(rows, requests, strict=True))
        self._write_bias([(row, r.parameters) for row, r in pairs if r.parameters.logit_bias])
        self._count_inputs([(row, r) for row, r in pairs if _flags(r) & Flags.PENALTIES])

    def use_masks(self, rows: ArrayLike, slots: ArrayLike) -> None:
        """Sets the mask slot of the admitted row `rows[i]` to `slots[i]`, from the next sampling on. It uploads what
        changes, and does not wait for the device.
        """
        index, wanted = np.asarray(rows, dtype=np.int32), np.asarray(slots, dtype=np.int32)
        changed = self._mask_slots[index] != wanted
        if not changed.any():
            return
        index, wanted = index[changed], wanted[changed]
        self._mask_slots[index] = wanted
        flags = self._flags[index] | np.where(wanted != 0, np.int32(Flags.MASK), np.int32(0))
        packed = upload(np.stack((index, flags, wanted), axis=1), self.device)
        # The two columns are adjacent.
        columns = self.columns.ints[:, Ints.FLAGS : Ints.MASK_SLOT + 1]
        columns.index_copy_(0, packed[:, 0].to(torch.int64), packed[:, 1:])

    def use_window_masks(self, rows: ArrayLike, slots: NDArray[np.int64]) -> None:
        """Sets the mask slots of the places of windows, `slots` [rows, width], of admitted rows, which occur once. Rows
        with slot 0 alone read no masks.
        """
        index, width = np.asarray(rows, dtype=np.int64), slots.shape[1]
        # What single places read is not known any more: the flag must be right alone.
        self.use_masks(index, slots.max(axis=1, initial=0))
        masked = slots.any(axis=1)
        if masked.any():
            packed = upload(np.column_stack((index, slots))[masked], self.device)
            self.window_masks[:, :width].index_copy_(0, packed[:, 0].contiguous(), packed[:, 1:].to(torch.int32))

    def need_whole_rows(self, rows: ArrayLike) -> bool:
        """Whether one of these rows has a filter or reports alternatives. The host knows it, equally on all ranks."""
        return bool((self._flags[np.asarray(rows, dtype=np.int32)] & int(Flags.FILTERS | Flags.TOP)).any())

    @staticmethod
    def _unpacked(packed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits a matrix into its columns of floats, ints and seeds."""
        floats, ints, seed = packed.split((Floats.WIDTH, Ints.WIDTH, _SEED_WORDS), dim=1)
        return floats.view(torch.float32), ints, seed.view(torch.int64).squeeze(1)

    def _write_bias(self, biased: Sequence[tuple[int, NextTokenChooserParameters]]) -> None:
        if not biased:
            return
        entries = [sorted(parameters.logit_bias) for _, parameters in biased]
        longest = max(len(entry) for entry in entries)
        packed = torch.zeros(2, len(biased), longest, dtype=torch.int32)
        for i, entry in enumerate(entries):
            packed[0, i, : len(entry)] = torch.tensor([token for token, _ in entry], dtype=torch.int32)
            packed[1].view(torch.float32)[i, : len(entry)] = torch.tensor([bias for _, bias in entry])
        index = self._upload(torch.tensor([row for row, _ in biased], dtype=torch.int64))
        ids, values = self._upload(packed)
        self.columns.bias_ids[:, :longest].index_copy_(0, index, ids)
        self.columns.bias_values[:, :longest].index_copy_(0, index, values.view(torch.float32))

    def _count_inputs(self, penalised: Sequence[tuple[int, Request]]) -> None:
        """Counts the tokens of prompts, and those generated earlier, as if they had been counted when sampled."""
        if not penalised:
            return
        self.columns.counts.index_fill_(
            0, self._upload(torch.tensor([row for row, _ in penalised], dtype=torch.int64)), 0
        )
        where = np.concatenate([request.input_ids + row * self.vocab_size for row, request in penalised])
        amount = np.full(len(where), 2, dtype=np.int64)
        start = 0
        for _, request in penalised:
            if request.parameters.penalize_output_only:
                amount[start : start + request.num_prompt] = 0
            start += len(request.input_ids)
        places, added = self._upload(torch.from_numpy(np.stack((where, amount))))
        flat = self.columns.counts.view(-1)
        flat.index_add_(0, places, added.to(torch.int32))
        flat[places] = flat[places] | 1

    def _upload(self, host: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return host.to(self.device)
        return host.pin_memory().to(self.device, non_blocking=True)


def signed_64(value: int) -> int:
    """Returns the int64 with the bits of an unsigned 64-bit number."""
    return value - 2**64 if value >= 2**63 else value


def _floats(parameters: NextTokenChooserParameters) -> list[float]:
    values = dict.fromkeys(range(Floats.WIDTH), 0.0) | {
        Floats.TEMPERATURE: parameters.temperature,
        Floats.TOP_P: parameters.top_p,
        Floats.TYPICAL_P: parameters.typical_p,
        Floats.MIN_P: parameters.min_p,
        Floats.REPETITION: parameters.repetition_penalty,
        Floats.FREQUENCY: parameters.frequency_penalty,
        Floats.PRESENCE: parameters.presence_penalty,
    }
    return [values[column] for column in range(Floats.WIDTH)]


def _ints(request: Request) -> list[int]:
    values = dict.fromkeys(range(Ints.WIDTH), 0) | {
        Ints.FLAGS: int(_flags(request)),
        # Any k above the vocabulary keeps everything.
        Ints.TOP_K: min(request.parameters.top_k, 2**31 - 1),
        Ints.TOP_N: request.top_n_tokens,
        Ints.MIN_NEW_TOKENS: min(request.parameters.min_new_tokens, 2**31 - 1),
        Ints.NUM_BIAS: len(request.parameters.logit_bias),
    }
    return [values[column] for column in range(Ints.WIDTH)]


def _flags(request: Request) -> Flags:
    p = request.parameters
    asked = {
        Flags.SAMPLE: p.do_sample,
        Flags.BIAS: len(p.logit_bias) > 0,
        Flags.WATERMARK: p.watermark,
        Flags.PENALTIES: p.repetition_penalty != 1.0 or p.frequency_penalty != 0.0 or p.presence_penalty != 0.0,
        Flags.MIN_NEW_TOKENS: p.min_new_tokens > 0,
        Flags.FILTERS: p.top_k > 0 or p.top_p < 1.0 or p.typical_p < 1.0 or p.min_p > 0.0,
        Flags.TOP: request.top_n_tokens > 0,
    }
    flags = Flags(0)
    for flag, wanted in asked.items():
        flags |= flag if wanted else Flags(0)
    return flags
