"""Contexts whose keys and values are expanded from latent vectors, for chunks so long that it pays.

In the absorbed form a pair of a query and a position costs each head 2 * (2 * rank + rope) operations; with keys and
values of its own 2 * (key + rope + value), 3.4 times fewer with DeepSeek's sizes, and those cost 2 * rank * (key +
value) for each position of the context, in every chunk anew. So it is for a chunk whose tokens see a position so many
times, on average, that this is won back. With DeepSeek-V2-Lite on an H200 a step with 2,048 tokens of a prompt of
32,768 takes 67 ms instead of 201, one with 512 38 instead of 52
(benchmark/results/engine-deepseek-v2-lite-chunks.json).
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from text_generation_kernels import compiling_only

from ...config.spec import LatentAttentionSpec
from .state import Chunks, InferState

LEAST_TOKENS = 512
"""Of a step: smaller ones have little to win, and each would launch some kernels more."""
MOST_POSITIONS = 32_768
"""Of the contexts of a step: it bounds the memory that keys and values take, 335 MB for 16 heads of DeepSeek's."""
WORTH = 1.25
"""Operations that keys and values must save for each that makes them. Measured on an H200 with 16 heads of DeepSeek's
sizes: attention of 128 tokens behind 8,192 takes 190 us in the absorbed form and 196 with keys and values (0.75
operations are saved for each), of 256 353 and 263 (1.5), of 512 688 and 406, of 1,024 1,358 and 435."""


@dataclass(frozen=True)
class Expanded:
    """Which contexts of a step are expanded, and where their keys and values are."""

    room: int
    """Positions that there is room for."""
    table: Tensor
    """[room + 1, room] int32: row r holds r, r + 1 and so on, as slots of a context that begins at r."""
    first: Tensor
    """[C] int32, where the context of each chunk begins."""
    rows: Tensor
    """[C] int64, the same: rows of `table`."""
    kv_lens: Tensor
    """[C] int32, its length; 0 of one that is not expanded."""
    other_kv_lens: Tensor
    """[C] int32, the lengths of those; 0 of one that is."""


def expanded_in(state: InferState, spec: LatentAttentionSpec) -> Expanded | None:
    """None in steps of few tokens. In which form a chunk is computed depends on where a prompt is cut, so there is none
    in deterministic mode either.
    """
    tokens = len(state.positions)
    if state.chunks is None or state.deterministic:
        return None
    # A compile dry run has few tokens even with many requests, for which there are other variants.
    if tokens < LEAST_TOKENS and not compiling_only():
        return None
    least = least_views(spec)
    if (made := state.made.get((Expanded, least))) is None:
        room = max(tokens, min(MOST_POSITIONS, state.slot_table.shape[1]))
        made = state.made[Expanded, least] = choose(state.chunks, least, room)
    return cast("Expanded", made)


def least_views(spec: LatentAttentionSpec) -> float:
    """How many tokens of a chunk must see a position, on average over its context."""
    saved = 2 * spec.latent_dim - spec.key_dim - spec.value_dim
    return WORTH * spec.latent_dim * (spec.key_dim + spec.value_dim) / saved if saved > 0 else float("inf")


def choose(chunks: Chunks, least: float, room: int) -> Expanded:
    """The first of those that are long enough, as long as there is room."""
    tokens, kv_lens = chunks.starts.diff(), chunks.kv_lens
    long = tokens * (kv_lens - tokens / 2) > least * kv_lens
    ends = torch.where(long, kv_lens, 0).cumsum(0, dtype=torch.int32)
    taken = long & (ends <= room)
    table = torch.arange(2 * room, dtype=torch.int32, device=kv_lens.device).as_strided((room + 1, room), (1, 1))
    first = torch.where(taken, ends - kv_lens, 0)
    return Expanded(
        room,
        table,
        first,
        first.to(torch.int64),
        torch.where(taken, kv_lens, 0),
        torch.where(taken, 0, kv_lens),
    )
