"""Expansion of latent vectors into keys and values, for chunks of prompts that are long enough to win it back.

In the absorbed form, a pair of a query and a position costs each head 2 * (2 * rank + rope) operations. With expanded
keys and values it costs 2 * (key + rope + value), 3.4 times fewer with DeepSeek's sizes, but the expansion costs 2 *
rank * (key + value) for each position of the context, again in every chunk. So a chunk's context is expanded where its
tokens attend to a position so often, on average, that attention wins this back
(docs/lab/2026-11-latent-attention.md).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from text_generation_kernels import Chunks, compiling_only

from ...config.spec import LatentAttentionSpec
from .state import InferState

LEAST_TOKENS = 512
"""Tokens of the smallest step with expanded contexts. Smaller steps have little to win and would launch more kernels.
"""
MOST_POSITIONS = 32_768
"""Positions of all expanded contexts of a step. It bounds the memory of their keys and values, 335 MB for 16 heads of
DeepSeek's."""
WORTH = 1.25
"""Operations that attention must save for each operation of the expansion. On an H200 both forms take equally long
between 0.75 and 1.5."""


@dataclass(frozen=True)
class ExpandedContexts:
    """Which contexts of a step are expanded, and where their keys and values lie."""

    room: int
    """Positions that fit into the tensors of expanded keys and values."""
    first: Tensor
    """[C] int32, where the context of each chunk begins."""
    chunks: Chunks
    """The chunks with expanded contexts; the others have length 0. Their rows are the numbers of `first`: row r of
    their table, int32 [room + 1, room], holds r, r + 1 and so on, the slots of a context that begins at r.
    """
    others: Chunks
    """The chunks of the step, of which those with expanded contexts have length 0."""


def expanded_in(state: InferState, chunks: Chunks | None, spec: LatentAttentionSpec) -> ExpandedContexts | None:
    """Returns the expanded contexts of a step, of those of `chunks`, or None for a step of few tokens. Deterministic
    mode has none: whether a chunk's context is expanded depends on where its prompt is cut. Nor has attention without a
    shared key, which kernels of expanded contexts read.
    """
    tokens = len(state.positions)
    if chunks is None or state.deterministic or not spec.rope_dim:
        return None
    # The compile dry run of many requests has few tokens, and must reach these kernels for their variants of many.
    if tokens < LEAST_TOKENS and not compiling_only():
        return None
    least = least_views(spec)
    key = ExpandedContexts, least, spec.top_k
    return state.once(key, lambda: choose(chunks, least, max(tokens, min(MOST_POSITIONS, chunks.slot_table.shape[1]))))


def least_views(spec: LatentAttentionSpec) -> float:
    """How many tokens of a chunk must attend to a position, on average over its context, for expansion to pay."""
    saved = 2 * spec.latent_dim - spec.key_dim - spec.value_dim
    return WORTH * spec.latent_dim * (spec.key_dim + spec.value_dim) / saved if saved > 0 else float("inf")


def choose(chunks: Chunks, least: float, room: int) -> ExpandedContexts:
    """Chooses the first chunks that are long enough, as many as `room` positions hold."""
    tokens, kv_lens = chunks.starts.diff(), chunks.kv_lens
    long = tokens * (kv_lens - tokens / 2) > least * kv_lens
    ends = torch.where(long, kv_lens, 0).cumsum(0, dtype=torch.int32)
    taken = long & (ends <= room)
    table = torch.arange(2 * room, dtype=torch.int32, device=kv_lens.device).as_strided((room + 1, room), (1, 1))
    first = torch.where(taken, ends - kv_lens, 0)
    lengths, rows = torch.where(taken, kv_lens, 0), first.to(torch.int64)
    own = Chunks(table, rows, chunks.starts, lengths, chunks.max_len)
    return ExpandedContexts(room, first, own, replace(chunks, kv_lens=torch.where(taken, 0, kv_lens)))
