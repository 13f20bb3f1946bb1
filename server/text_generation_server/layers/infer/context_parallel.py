"""Context parallelism of latent attention: each rank keeps some positions of every context.

All heads read the same latent vector of a position, so tensor-parallel ranks would all keep the same cache. With
context parallelism slot s of the pool is row s // ranks of rank s % ranks, and the pool has `ranks` times as many
slots.

Where the queries are few (decodes), they go to every rank: all-gather of the queries of all heads, attention of each
rank over its positions, all-to-all of the results with the logarithms of their sums, and a merge. Where they are many
(chunks of prompts), the context comes to every rank: an all-reduce of its latent vectors, in which each rank has its
own beside zeros; then each rank attends with its own heads as without context parallelism. A short chunk behind a
long context is treated as decodes (`SharedChunks`).

The bytes of each way, and why positions are divided by slots: docs/lab/2026-11-latent-attention-over-cards.md.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

import text_generation_kernels as kernels
from text_generation_kernels import Chunks, Decodes, NewTokens, Shares, compiling_only

from ...distributed import TensorParallelGroup
from .state import InferState, SharedChunks

MOST_QUERIES = 256
"""Tokens whose queries go to every rank at a time, which bounds the memory of these queries and of their results."""
_SIZES = (1, 2, 3, 5, 9, 17, 33, 65, 129)
"""Tokens that reach every kernel variant of `MOST_QUERIES`."""


@dataclass(frozen=True)
class _Gathering:
    """The contexts that come to every rank, one after the other."""

    rows: Tensor
    """[positions] int64, the row of the cache of each position that this rank has; the last row for the others."""
    others: Tensor
    """[positions, 1, 1] bool, whether another rank has the position, or there is none."""
    chunks: Chunks
    """The chunks of the step over what was gathered."""


class ContextParallel:
    """The positions of one rank, in all layers."""

    def __init__(self, group: TensorParallelGroup) -> None:
        self._group = group

    @property
    def ranks(self) -> int:
        """How many ranks share the positions."""
        return self._group.world_size

    @staticmethod
    def num_bytes(heads: int, width: int, positions: int, itemsize: int) -> int:
        """Returns the bytes that a step may need besides what the largest steps of warm-up need, for latent vectors of
        `width` elements: `positions` of contexts, and queries of `heads` with their results on their ways.
        """
        return (positions + 6 * MOST_QUERIES * heads) * width * itemsize

    def tokens(self, tokens: NewTokens, state: InferState, cache: Tensor) -> NewTokens:
        """Returns `tokens` with rows of `cache` for slots: the last for what another rank keeps."""

        def made() -> NewTokens:
            own, row = self._own(tokens.slots)
            return NewTokens(tokens.cos_sin, tokens.positions, torch.where(own, row, len(cache) - 1))

        return state.once((ContextParallel, tokens), made)

    def attend(self, q: Tensor, cache: Tensor, batch: Decodes, scale: float, out: Tensor, state: InferState) -> None:
        """`latent_decode_attention` with the queries `q` of this rank's heads over the positions of all ranks."""
        own = state.once((ContextParallel, batch), lambda: self._own_of_decodes(batch))
        self._attend(q, cache, own, scale, out)

    def attend_with_queries(
        self, q: Tensor, cache: Tensor, chunks: Chunks, scale: float, out: Tensor, state: InferState
    ) -> None:
        """The same with the tokens of those of `chunks` whose contexts do not come to every rank; `q` and `out` are
        those of all tokens.
        """
        shared = _shared(state)
        if compiling_only():
            self._name_variants(q, cache, chunks, scale, out)
        if not len(shared.tokens):
            return
        own = state.once((ContextParallel, shared), lambda: self._own_of_tokens(chunks, shared, state))
        attended = out.new_empty(len(shared.tokens), *out.shape[1:])
        self._attend(q.index_select(0, shared.tokens), cache, own, scale, attended)
        out.index_copy_(0, shared.tokens, attended)

    def gathered(self, cache: Tensor, chunks: Chunks, state: InferState) -> tuple[Tensor, Chunks]:
        """Returns a cache with the contexts that come to every rank, and the chunks that attend to it: those whose
        contexts do not come have length 0.
        """
        gathering = state.once((ContextParallel, chunks), lambda: self._gathering(chunks, _shared(state), len(cache)))
        rows = cache.index_select(0, gathering.rows).masked_fill_(gathering.others, 0)
        # Zeros change no bit, in whatever order they are added.
        self._group.all_reduce(rows.flatten(1))
        return rows, gathering.chunks

    def _attend(self, q: Tensor, cache: Tensor, own: Decodes, scale: float, out: Tensor) -> None:
        for first in range(0, len(q), MOST_QUERIES):
            part = slice(first, first + MOST_QUERIES)
            some = replace(own, rows=own.rows[part], kv_lens=own.kv_lens[part])
            self._attend_part(q[part], cache, some, scale, out[part])

    def _attend_part(self, q: Tensor, cache: Tensor, own: Decodes, scale: float, out: Tensor) -> None:
        (tokens, heads, size), ranks = out.shape, self.ranks
        whole = self._group.gather_heads(q)
        results = out.new_empty(tokens, ranks * heads, size)
        log_sums = out.new_empty(tokens, ranks * heads, dtype=torch.float32)
        kernels.latent_decode_attention(whole, cache, own, scale, results, False, log_sums)
        shares = Shares.empty(out, ranks, tokens, heads, size)
        shares.results(size).copy_(results.unflatten(1, (ranks, heads)).transpose(0, 1))
        shares.log_sums.copy_(log_sums.unflatten(1, (ranks, heads)).transpose(0, 1))
        kernels.merge_shares(Shares(self._group.all_to_all(shares.rows)), out)

    def _name_variants(self, q: Tensor, cache: Tensor, chunks: Chunks, scale: float, out: Tensor) -> None:
        """Lets a compile dry run reach the kernel variants of any number of tokens."""
        for tokens in (size for size in _SIZES if size <= len(q)):
            requests = torch.zeros(tokens, dtype=torch.int64, device=q.device)
            batch = Decodes(chunks.slot_table, requests, requests.to(torch.int32), chunks.slot_table.shape[1])
            self._attend(q[:tokens], cache, self._own_slots(batch, requests, 1), scale, out[:tokens])
        self._group.reduce_every_size(cache.shape[-1], cache.dtype)

    def _own(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Returns whether this rank has each slot, and its row."""
        return slots % self.ranks == self._group.rank, slots // self.ranks

    def _own_of_decodes(self, batch: Decodes) -> Decodes:
        order = torch.arange(len(batch.rows), device=batch.rows.device) // batch.width
        return self._own_slots(batch, order, len(batch.rows) // batch.width)

    def _own_of_tokens(self, chunks: Chunks, shared: SharedChunks, state: InferState) -> Decodes:
        number = torch.searchsorted(chunks.starts[1:].contiguous(), shared.tokens.to(torch.int32), right=True)
        kv_lens = (state.positions[shared.tokens] + 1).to(torch.int32)
        batch = Decodes(chunks.slot_table, chunks.rows[number], kv_lens, shared.longest)
        return self._own_slots(batch, number, len(chunks.rows))

    def _own_slots(self, batch: Decodes, requests: Tensor, count: int) -> Decodes:
        """Returns each token of `batch` as a request of its own over the positions of this rank; those of one request
        have the same row. Their lengths need not grow one by one, as those of a window do.
        """
        # Triton specialises kernels for strides that 16 divides.
        width = -(-batch.max_kv_len // 16) * 16
        own = torch.empty(count, width, dtype=torch.int32, device=requests.device)
        kv_lens = torch.zeros_like(batch.kv_lens)
        kernels.own_slots(batch, requests, self._group.rank, self.ranks, own, kv_lens)
        return Decodes(own, requests, kv_lens, batch.max_kv_len)

    def _gathering(self, chunks: Chunks, shared: SharedChunks, rows: int) -> _Gathering:
        """`rows` are those of a cache."""
        kv_lens, device = shared.kv_lens, shared.kv_lens.device
        ends = kv_lens.cumsum(0)
        place = torch.arange(shared.positions, device=device)
        number = torch.searchsorted(ends, place, right=True).clamp_(max=len(kv_lens) - 1)
        firsts = ends - kv_lens
        position = (place - firsts[number]).clamp_(max=chunks.slot_table.shape[1] - 1)
        own, row = self._own(chunks.slot_table[chunks.rows[number], position].to(torch.int64))
        own &= place < ends[-1]
        # Row r of this table holds r, r + 1 and so on.
        table = torch.arange(2 * shared.positions, dtype=torch.int32, device=device)
        table = table.as_strided((shared.positions + 1, shared.positions), (1, 1))
        return _Gathering(
            torch.where(own, row, rows - 1),
            ~own[:, None, None],
            replace(chunks, slot_table=table, rows=firsts, kv_lens=kv_lens),
        )


def _shared(state: InferState) -> SharedChunks:
    if state.shared is None:
        raise ValueError("a step with chunks must say how ranks share their contexts")
    return state.shared
