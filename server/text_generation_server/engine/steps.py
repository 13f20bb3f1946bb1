"""The input of one step: from a plan and rows to token ids, positions, slots and starts of chunks.

One vector brings all that a step needs from the host to the device; this module declares its layout.
"""

from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from text_generation_kernels import Chunks, Decodes, WindowInputs, newest_tokens

from ..layers.infer import InferState, MediaInput, SharedChunks, StateWindows
from ..layers.weights import StepAdapters
from .context_plan import ContextPlan
from .kv_pool import KVPool
from .media_positions import pool_rows, rope_positions, seen_ends
from .rows import RowTable
from .running import CheckedPlan, Vector

V = TypeVar("V", bound=Any)

NEWEST = -1
"""Stands for the position of the row's newest token, whose id and position only the device knows."""


@dataclass(frozen=True)
class StepSize:
    """The capacity of the input of a step."""

    tokens: int
    chunks: int
    decodes: int
    samples: int
    scores: int = 0
    axes: bool = False
    """Whether rotary positions count along axes."""
    seen_ends: bool = False
    """Whether some tokens attend to later ones."""
    width: int = 1
    """Tokens of each decode, those of its window, and places of each sample."""
    contexts: ContextPlan | None = None
    """None: no cache has positions of one rank alone."""

    @classmethod
    def of(
        cls, plan: CheckedPlan, axes: bool = False, seen_ends: bool = False, contexts: ContextPlan | None = None
    ) -> "StepSize":
        """Returns the exact size of a plan."""
        scores = sum(each.num_scores for each in plan.chunks)
        # At least one, because operators do not take 0 tokens.
        samples = max(1, len(plan.owners)) * plan.width
        sizes = plan.num_tokens, len(plan.chunks), len(plan.decodes), samples, scores
        return cls(*sizes, axes, seen_ends, plan.width, contexts)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the fields of `StepInput`, in their order."""
        return (
            *(self.tokens, self.tokens, self.tokens),
            *(self.chunks, self.chunks + 1, self.chunks),
            *(self.decodes, self.samples + self.scores, self.samples, self.scores),
            *(3 * self.tokens * self.axes, self.tokens * self.seen_ends, self.decodes * (self.width > 1)),
            *((0, 0) if self.contexts is None else (self.chunks, self.contexts.queried)),
        )

    @property
    def total(self) -> int:
        """The length of the whole input."""
        return sum(self.lengths)


@dataclass(frozen=True)
class StepInput(Generic[V]):
    """The fields of one int64 vector, on the host (V: numpy) or on the device (V: torch)."""

    token_rows: V
    """[tokens], the row of each token: decodes, then chunks."""
    token_ids: V
    """[tokens]; `-1 - r` stands for row r of the media pool."""
    positions: V
    """[tokens], `NEWEST` for decodes, also for drafts of their windows."""
    chunk_rows: V
    """[chunks]"""
    chunk_starts: V
    """[chunks + 1]; the first entry is the number of decodes."""
    chunk_kv_lens: V
    """[chunks], the tokens of each request after this step."""
    decode_rows: V
    """[decodes]"""
    logit_tokens: V
    """[samples + scores], the tokens whose logits are wanted: of samples first, then of scores. In a step with windows
    each row that gets tokens has as many samples as a window has tokens; of the end of a chunk, they are the same.
    """
    sample_rows: V
    """[samples], the rows that get a token, each once."""
    score_targets: V
    """[scores], the prompt tokens whose log-probability is wanted."""
    rope_positions: V
    """[3 * tokens], where they count along axes: the rotary positions in time, then height, then width. Those of
    decodes follow from their positions.
    """
    seen_ends: V
    """[tokens], where it is needed: see `Chunks`."""
    caps: V
    """[decodes], where windows are wider than 1: the most tokens of each."""
    gathered_kv_lens: V
    """[chunks], where ranks have some positions of a cache each: `chunk_kv_lens` of those whose contexts come to every
    rank, 0 for the others.
    """
    queried_tokens: V
    """[queried], the tokens of these others."""

    @classmethod
    def of(cls, vector: V, size: StepSize) -> "StepInput[V]":
        """Returns the fields as views of `vector`."""
        names = [each.name for each in fields(cls)]
        ends = accumulate(size.lengths)
        return cls(**{name: vector[end - n : end] for name, n, end in zip(names, size.lengths, ends, strict=True)})


def pack(plan: CheckedPlan, size: StepSize, padding_row: int) -> Vector:
    """Packs the input into one vector of `size`, which is at least the plan's. The rest is padding: tokens and decodes
    of the padding row, empty chunks, logits of the first token.
    """
    vector = np.zeros(size.total, dtype=np.int64)
    step = StepInput[Vector].of(vector, size)
    count, width = len(plan.decodes), size.width
    num_decodes = count * width
    for rows in (step.token_rows, step.chunk_rows, step.decode_rows, step.sample_rows):
        rows[:] = padding_row
    step.token_rows[:num_decodes] = np.repeat(plan.decodes, width)
    step.decode_rows[:count] = step.sample_rows[:count] = plan.decodes
    if width > 1 and plan.widths is not None:
        step.caps[:count] = plan.widths
    step.positions[:num_decodes] = NEWEST
    step.logit_tokens[:num_decodes] = np.arange(num_decodes)
    along = step.rope_positions.reshape(3, -1)
    token, owner, score, queried = num_decodes, count, 0, 0
    for index, each in enumerate(plan.chunks):
        first, end, scores = each.chunk.first, token + each.chunk.count, each.num_scores
        step.token_rows[token:end] = step.chunk_rows[index] = each.chunk.row
        step.token_ids[token:end] = each.input_ids
        step.positions[token:end] = np.arange(first, first + each.chunk.count)
        media, place = each.owner.request.media, (first, each.chunk.count)
        for inside, row in pool_rows(media, *place):
            step.token_ids[token:end][inside] = np.arange(-1 - row, -1 - row - inside.stop + inside.start, -1)
        if size.axes:
            along[:, token:end] = rope_positions(media, *place)
        if size.seen_ends:
            step.seen_ends[token:end] = seen_ends(media, *place)
        step.chunk_starts[index] = token
        step.chunk_kv_lens[index] = first + each.chunk.count
        if size.contexts is not None and size.contexts.gathered[index]:
            step.gathered_kv_lens[index] = first + each.chunk.count
        elif size.contexts is not None:
            step.queried_tokens[queried : queried + each.chunk.count] = np.arange(token, end)
            queried += each.chunk.count
        step.logit_tokens[size.samples + score : size.samples + score + scores] = np.arange(token, token + scores)
        step.score_targets[score : score + scores] = each.score_targets
        if each.is_last:
            step.logit_tokens[owner * width : (owner + 1) * width] = end - 1
            step.sample_rows[owner] = each.chunk.row
            owner += 1
        token, score = end, score + scores
    step.chunk_starts[len(plan.chunks) :] = token
    return vector


@dataclass(frozen=True)
class Extents:
    """Upper bounds of a step, by which the host chooses kernels and grids."""

    max_kv_len: int
    """Tokens that a decode attends to."""
    max_chunk: int
    width: int = 1
    """Of the windows: it is exact."""
    contexts: ContextPlan | None = None
    """That of the step's size."""
    own_matrices: bool = False
    """Whether tokens of images pass matrices of their own."""


class _Newest(NamedTuple):
    """What decodes compute beside chunks, each [T] and valid for their tokens alone."""

    ids: Tensor
    positions: Tensor
    unused: Tensor | None
    """The tokens that attend to nothing, as their request has ended or they are outside their window; None: none."""
    decodes: Decodes | None


class InputBuilder:
    """Turns a step's input on the device into the state of a forward pass. It reads no value on the host, so that a
    CUDA graph can replay it for other contents.

    In deterministic mode, prefill and decode have one arithmetic: with `alone`, attention computes each token as a
    decode (torch), else all tokens as chunks (Triton, whose tiles then have one size).
    """

    def __init__(
        self,
        table: RowTable,
        pool: KVPool,
        deterministic: bool,
        alone: bool,
        media_rows: Tensor | None = None,
        limits: Tensor | None = None,
    ) -> None:
        """`media_rows` is the media pool, where media is served: steps with chunks may read it. `limits` int64, by row,
        is there with speculation: a row may be decoded whose request has ended on the device. It has reached its length
        of `limits`, and its newest token has no slot: it attends to nothing.
        """
        self._table = table
        self._pool = pool
        self._media_rows = media_rows
        self._deterministic = deterministic
        self._alone = alone
        self._limits = limits

    def decodes(self, rows: Tensor, max_kv_len: int, adapters: StepAdapters | None = None) -> tuple[Tensor, InferState]:
        """Returns the state of a decode-only step. `rows` int64 [D] may hold the padding row several times. `adapters`
        are those of its tokens, if any uses one.
        """
        table = self._table
        input_ids, positions, slots = (torch.empty_like(rows) for _ in range(3))
        lengths = torch.empty_like(rows, dtype=torch.int32)
        newest_tokens(rows, table.last_token, table.length, table.slot_table, input_ids, positions, slots, lengths)
        return self.windows(WindowInputs(rows, input_ids, positions, slots, lengths), max_kv_len, 1, adapters)

    def windows(
        self, inputs: WindowInputs, max_kv_len: int, width: int, adapters: StepAdapters | None = None
    ) -> tuple[Tensor, InferState]:
        """Returns the state of a step that computes windows of `width` tokens."""
        rows, table = inputs.rows, self._table
        decodes, chunks = Decodes(table.slot_table, rows, inputs.kv_lens, max_kv_len, width), None
        rotary = None if table.rope_delta is None else inputs.positions + table.rope_delta[rows]
        if self._deterministic and not self._alone:
            starts = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device)
            decodes, chunks = None, self._as_chunks(decodes, starts)
        of_states = self._state_windows(inputs, width)
        state = self._state(inputs.positions, inputs.slots, decodes, chunks, None, rotary, None, adapters, of_states)
        return inputs.ids, state

    def mixed(
        self,
        step: StepInput[Tensor],
        extents: Extents,
        adapters: StepAdapters | None = None,
        windows: WindowInputs | None = None,
    ) -> tuple[Tensor, InferState]:
        """Returns the state of a step with chunks, and decodes if it has them: one token of each, or, with `windows`,
        so many.
        """
        table, rows = self._table, step.token_rows
        newest = step.positions == NEWEST
        of_decodes = self._single(step, extents) if windows is None else self._among(windows, extents, rows)
        input_ids = torch.where(newest, of_decodes.ids, step.token_ids)
        positions = torch.where(newest, of_decodes.positions, step.positions).clamp_(min=0)
        starts, kv_lens = step.chunk_starts.to(torch.int32), step.chunk_kv_lens.to(torch.int32)
        ends = step.seen_ends if len(step.seen_ends) else None
        chunks = Chunks(table.slot_table, step.chunk_rows, starts, kv_lens, extents.max_chunk, ends)
        of_states = None if windows is None else self._state_windows(windows, extents.width, chunks)
        decodes, unused = of_decodes.decodes, of_decodes.unused
        if self._deterministic and self._alone:
            seen = positions + 1 if unused is None else torch.where(newest & unused, 0, positions + 1)
            decodes, chunks = Decodes(table.slot_table, rows, seen.to(torch.int32), table.max_total_tokens), None
        elif self._deterministic:
            decodes, chunks = None, self._joined(decodes, chunks)
        slots = table.slot_table[rows, positions].to(torch.int64)
        if unused is not None:
            slots = torch.where(newest & unused, table.dummy_slot, slots)
        rotary = media = None
        if table.rope_delta is not None:
            generated = (positions + table.rope_delta[rows]).expand(3, -1)
            rotary = torch.where(newest, generated, step.rope_positions.view(3, -1))
        if self._media_rows is not None:
            input_ids, media = MediaInput.split(input_ids, self._media_rows, extents.own_matrices)
        shared = None
        if (contexts := extents.contexts) is not None:
            gathered = step.gathered_kv_lens.to(torch.int32)
            shared = SharedChunks(contexts.positions, gathered, step.queried_tokens, contexts.longest)
        logit_tokens = step.logit_tokens
        state = self._state(positions, slots, decodes, chunks, logit_tokens, rotary, media, adapters, of_states)
        return input_ids, replace(state, shared=shared)

    def _state_windows(self, inputs: WindowInputs, width: int, chunks: Chunks | None = None) -> StateWindows | None:
        """Returns how recurrent layers compute windows, beside chunks or without; None: as any tokens."""
        if width == 1 or not self._pool.states:
            return None
        return StateWindows.of(inputs, width, chunks, self._pool.read)

    def _single(self, step: StepInput[Tensor], extents: Extents) -> _Newest:
        """Returns the newest tokens of decodes beside chunks."""
        table, rows, decodes = self._table, step.token_rows, None
        lengths = table.length[rows]
        ended = None if self._limits is None else lengths >= self._limits[rows]
        if len(step.decode_rows):
            of_decodes = table.length[step.decode_rows]
            if self._limits is not None:
                of_decodes = torch.where(of_decodes < self._limits[step.decode_rows], of_decodes, 0)
            decodes = Decodes(table.slot_table, step.decode_rows, of_decodes.to(torch.int32), extents.max_kv_len)
        return _Newest(table.last_token[rows], lengths - 1, ended, decodes)

    def _among(self, windows: WindowInputs, extents: Extents, rows: Tensor) -> _Newest:
        """Returns the tokens of windows beside chunks, which have the first places of the step."""
        decodes = Decodes(self._table.slot_table, windows.rows, windows.kv_lens, extents.max_kv_len, extents.width)
        padding = (0, len(rows) - len(windows.rows))
        ids, positions, lengths = (
            functional.pad(each, padding) for each in (windows.ids, windows.positions, windows.kv_lens)
        )
        return _Newest(ids, positions, lengths == 0, decodes)

    def _joined(self, decodes: Decodes | None, chunks: Chunks) -> Chunks:
        """Turns decodes into chunks of one token, before the others; padding becomes empty chunks."""
        if decodes is None:
            return replace(chunks, max_len=self._table.max_total_tokens, seen_ends=None)
        order = torch.arange(len(decodes.rows), dtype=torch.int32, device=decodes.rows.device)
        # The first chunk begins where the decodes of the plan end.
        ones = self._as_chunks(decodes, torch.minimum(order, chunks.starts[:1]))
        return Chunks(
            chunks.slot_table,
            torch.cat((ones.rows, chunks.rows)),
            torch.cat((ones.starts, chunks.starts)),
            torch.cat((ones.kv_lens, chunks.kv_lens)),
            ones.max_len,
        )

    def _as_chunks(self, decodes: Decodes, starts: Tensor) -> Chunks:
        # The length chooses tiles, so it is equal for all steps. Padding reads the slot of its row.
        kv_lens = decodes.kv_lens.clamp(min=1)
        return Chunks(decodes.slot_table, decodes.rows, starts, kv_lens, self._table.max_total_tokens)

    def _state(
        self,
        positions: Tensor,
        slots: Tensor,
        decodes: Decodes | None,
        chunks: Chunks | None,
        logit_tokens: Tensor | None = None,
        rotary: Tensor | None = None,
        media: MediaInput | None = None,
        adapters: StepAdapters | None = None,
        windows: StateWindows | None = None,
    ) -> InferState:
        return InferState(
            deterministic=self._deterministic,
            positions=positions,
            slots=slots,
            decodes=decodes,
            chunks=chunks,
            caches=self._pool.caches,
            states=self._pool.states,
            logit_tokens=logit_tokens,
            rope_positions=rotary,
            media=media,
            adapters=adapters,
            dummy_slot=self._table.dummy_slot,
            windows=windows,
        )
