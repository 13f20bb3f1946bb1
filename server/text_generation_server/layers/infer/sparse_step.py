"""Steps in which tokens attend to chosen positions alone.

What chooses them, an indexer, keeps one small key of each position in a cache of its own, in the same slots as the
keys that attention reads. It scores the positions before a token and writes the slots of the best as a row of a table.
Attention then reads this table in place of the table of slots: each token is a decode whose context is its row.

Where a request has at most as many tokens as are chosen, a token attends to all before it, and the chunk is computed
as any other. Decodes are not: a graph knows no lengths.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from text_generation_kernels import Chunks, Decodes, compiling_only

from ...config.spec import LatentAttentionSpec
from .state import InferState

_SCORES = 1 << 25
"""Scores that are in memory at a time, 128 MiB."""
_CONTEXTS = 256
"""Lists whose attention is computed at a time: kernels of decodes have variants for so many."""
_SIZES = (1, 2, 3, 5, 9, 17, 33)
"""Tokens that reach every kernel variant of fewer."""


@dataclass(frozen=True)
class Choice:
    """How many positions are chosen, and for how many heads apart."""

    top_k: int
    """Blocks of positions."""
    block: int = 1
    """Positions of a block. The newest block is always chosen where it has more than one."""
    heads: int = 1
    """Lists of each token on this rank."""
    tail: bool = False
    """Whether full blocks alone are chosen, and the positions of the newest one, where it is not full, are read
    besides."""

    @classmethod
    def of(cls, spec: LatentAttentionSpec) -> "Choice":
        """Returns what latent attention with a `top_k` chooses."""
        return cls(spec.top_k // spec.pool, spec.pool, tail=True) if spec.pool else cls(spec.top_k)

    @property
    def positions(self) -> int:
        """The most positions of a list."""
        return self.top_k * self.block + (self.block - 1 if self.tail else 0)

    @property
    def places(self) -> int:
        """The room of a list: whole blocks."""
        return (self.top_k + self.tail) * self.block


@dataclass(frozen=True)
class SparseStep:
    """What tokens of a step read, where they may attend to chosen positions alone."""

    contexts: Decodes
    """Each token of the step as a decode over its whole context; of length 0, if it is one of `dense`."""
    chosen: Decodes
    """The same over chosen slots, [T * heads, positions], which the last indexer has written."""
    dense: Chunks | None
    """The chunks of the step whose requests are so short that they attend to everything; others have length 0."""


def sparse_step(state: InferState, choice: Choice) -> SparseStep | None:
    """Returns what the tokens of a step read, or None where no request can be longer than what is chosen. In
    deterministic mode nothing is dense: a token's arithmetic must not depend on where its prompt is cut.
    """
    key = SparseStep, choice
    if key not in state.made:
        requests = state.decodes or state.chunks
        is_short = requests is None or requests.slot_table.shape[1] <= choice.positions
        state.made[key] = None if is_short else _made(state, choice)
    return cast("SparseStep | None", state.made[key])


def parts_of_scores(tokens: int, width: int) -> Iterator[slice]:
    """Yields the parts of a step whose scores, `width` for each token, are in memory together."""
    yield from _parts(tokens, max(1, _SCORES // width))


def parts_of_lists(tokens: int, heads: int) -> Iterator[slice]:
    """Yields the parts of a step whose attention over lists is computed together, and, in a compile dry run, such as
    reach the kernel variants of any last part.
    """
    yield from _parts(tokens, max(1, _CONTEXTS // heads))
    if compiling_only():
        yield from (slice(0, size) for size in _SIZES if size < tokens)


def some(decodes: Decodes, part: slice, heads: int = 1) -> Decodes:
    """Returns the decodes of some tokens, of which each has as many as it has heads."""
    part = slice(part.start * heads, part.stop * heads)
    return replace(decodes, rows=decodes.rows[part], kv_lens=decodes.kv_lens[part])


def slots_of(blocks: Tensor, size: int, slot_table: Tensor, rows: Tensor) -> Tensor:
    """Returns the slots [lists, blocks * size] int32 of the positions of blocks of this size, by their numbers `blocks`
    [lists, blocks]; `rows` [lists] of `slot_table` are those of the lists.
    """
    within = torch.arange(size, device=blocks.device)
    positions = (blocks[:, :, None].to(torch.int64) * size + within).flatten(1)
    return slot_table[rows[:, None], positions.clamp_(max=slot_table.shape[1] - 1)]


def contexts_of(state: InferState) -> Decodes:
    """Returns each token of the step as a decode over its whole context."""
    if (chunks := state.chunks) is None:
        # The tokens of a window choose each for itself.
        return replace(cast("Decodes", state.decodes), width=1)
    rows, kv_lens, _ = _tokens_of(state, chunks)
    return Decodes(chunks.slot_table, rows, kv_lens, chunks.slot_table.shape[1])


def block_ends(contexts: Decodes, size: int) -> Decodes:
    """Returns each token as a decode over the full blocks of `size` positions before it, by the slots of the last
    position of each.
    """
    table, rows = contexts.slot_table, contexts.rows
    ends = torch.arange(size - 1, table.shape[1], size, device=rows.device)
    counts, most = contexts.kv_lens // size, max(1, contexts.max_kv_len // size)
    # Of the table or of rows that tokens have, whichever is smaller.
    if len(rows) < len(table):
        return Decodes(table[rows[:, None], ends], torch.arange(len(rows), device=rows.device), counts, most)
    return Decodes(table.index_select(1, ends), rows, counts, most)


def for_each_head(of_tokens: Tensor, heads: int) -> Tensor:
    """Repeats what there is of each token [T] for each of its heads, [T * heads], contiguous."""
    return of_tokens.repeat_interleave(heads)


def _parts(tokens: int, most: int) -> Iterator[slice]:
    return (slice(first, min(first + most, tokens)) for first in range(0, tokens, most))


def _made(state: InferState, choice: Choice) -> SparseStep:
    contexts, dense = contexts_of(state), None
    if (chunks := state.chunks) is not None and not state.deterministic:
        _, kv_lens, number = _tokens_of(state, chunks)
        short = chunks.kv_lens <= choice.positions
        dense = replace(chunks, kv_lens=torch.where(short, chunks.kv_lens, 0))
        kv_lens = torch.where((number >= 0) & short[number.clamp(min=0)], 0, kv_lens)
        contexts = replace(contexts, kv_lens=kv_lens)
    return SparseStep(contexts, _lists(contexts, choice), dense)


def _lists(contexts: Decodes, choice: Choice) -> Decodes:
    """Room for the lists of all tokens, and their lengths: whole blocks, and what there is of the newest."""
    kv_lens, block = contexts.kv_lens, choice.block
    if choice.tail:
        lengths = (kv_lens // block).clamp(max=choice.top_k) * block + kv_lens % block
    else:
        blocks = ((kv_lens + block - 1) // block).clamp(max=choice.top_k)
        lengths = torch.where(kv_lens > 0, (blocks - 1) * block + (kv_lens - 1) % block + 1, 0)
    lengths = for_each_head(lengths.to(torch.int32), choice.heads)
    order = torch.arange(len(kv_lens) * choice.heads, device=kv_lens.device)
    slots = torch.zeros(len(order), choice.places, dtype=torch.int32, device=kv_lens.device)
    return Decodes(slots, order, lengths, choice.positions)


def _tokens_of(state: InferState, chunks: Chunks) -> tuple[Tensor, Tensor, Tensor]:
    """Returns, for each token of the step, its row, the tokens that it attends to, and the number of its chunk, -1 for
    a decode. The first call of a step computes them.
    """
    return state.once(_tokens_of, lambda: _computed_tokens(state, chunks))


def _computed_tokens(state: InferState, chunks: Chunks) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.arange(len(state.positions), dtype=torch.int32, device=state.positions.device)
    number = torch.searchsorted(chunks.starts[1:].contiguous(), tokens, right=True).clamp(max=len(chunks.rows) - 1)
    rows = chunks.rows[number]
    lengths = torch.minimum((state.positions + 1).to(torch.int32), chunks.kv_lens[number])
    if (d := state.decodes) is not None:
        is_decode = tokens < chunks.starts[0]
        number = torch.where(is_decode, -1, number)
        first = min(len(d.rows), len(tokens))
        rows[:first] = torch.where(is_decode[:first], d.rows[:first], rows[:first])
        # A row whose request has ended attends to nothing.
        lengths[:first] = torch.where(is_decode[:first], d.kv_lens[:first], lengths[:first])
    return rows, lengths, number
