"""Attention within stretches of positions (Llama 4): a token at position p attends to those from p // size * size on.

Kernels know contexts that begin at position 0. So each request gets a row of a table of its own, which begins where the
stretch of its newest token does, and a chunk of a prompt that goes on in the next stretch is several chunks.
"""

from dataclasses import replace

import torch
from torch import Tensor

from text_generation_kernels import Chunks, Decodes

from .state import InferState

Requests = tuple[Decodes | None, Chunks | None]
_WHOLE = 16
"""Rows of tables have a multiple of so many positions, which kernels are compiled for."""


def within_stretches(state: InferState, size: int) -> Requests:
    """Returns the decodes and chunks of a step as layers see them whose tokens attend within stretches of `size`
    positions. Raises ValueError for tokens that attend to later ones.
    """
    requests = state.decodes or state.chunks
    if requests is None or requests.slot_table.shape[1] <= size:
        return state.decodes, state.chunks
    return state.once((within_stretches, size), lambda: _made(state, size))


def _made(state: InferState, size: int) -> Requests:
    decodes, chunks = state.decodes, state.chunks
    return (
        None if decodes is None else _of_decodes(decodes, size),
        None if chunks is None else _of_chunks(chunks, len(state.positions), size),
    )


def _of_decodes(decodes: Decodes, size: int) -> Decodes:
    """The tokens of a window may lie in two stretches, so each is a request of its own."""
    firsts = (decodes.kv_lens - 1).clamp(min=0) // size * size
    order, table = _rows(decodes.slot_table, decodes.rows, firsts, size)
    lengths = (decodes.kv_lens - firsts).to(torch.int32)
    return Decodes(table, order, lengths, min(decodes.max_kv_len, size))


def _of_chunks(chunks: Chunks, tokens: int, size: int) -> Chunks:
    """As many parts of each chunk as a step of so many tokens may have; those that are not there have length 0."""
    if chunks.seen_ends is not None:
        raise ValueError("tokens that attend within stretches attend to none behind them")
    parts = (tokens + size - 2) // size + 1
    counts = chunks.starts.diff()
    first = chunks.kv_lens - counts
    firsts = first[:, None] // size * size + size * torch.arange(parts, device=first.device)
    begins = torch.maximum(firsts, first[:, None]).minimum(chunks.kv_lens[:, None])
    ends = torch.minimum(firsts + size, chunks.kv_lens[:, None])
    lengths = torch.where(ends > begins, ends - firsts, 0).flatten().to(torch.int32)
    starts = chunks.starts[:-1, None] + begins - first[:, None]
    starts = torch.cat((starts.flatten(), chunks.starts[-1:])).to(torch.int32)
    rows = chunks.rows.repeat_interleave(parts)
    order, table = _rows(chunks.slot_table, rows, firsts.flatten(), size)
    return replace(
        chunks, slot_table=table, rows=order, starts=starts, kv_lens=lengths, max_len=min(chunks.max_len, size)
    )


def _rows(slot_table: Tensor, rows: Tensor, firsts: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Returns the numbers of the rows of a table, [D] int64, and the table [D, positions] int32: the slots of `rows`
    from position `firsts` on.
    """
    width = -(-min(size, slot_table.shape[1]) // _WHOLE) * _WHOLE
    # Behind the end of a row comes what no length reaches.
    places = (rows * slot_table.shape[1] + firsts)[:, None] + torch.arange(width, device=rows.device)
    places.clamp_(max=slot_table.numel() - 1)
    table = slot_table.flatten().index_select(0, places.flatten()).view(len(rows), width)
    return torch.arange(len(rows), device=rows.device), table
